"""A sandbox with a history and plain directories, worked on in step: each step of either is one of the other.

The model is a list of directories, one for each point, and the index of the present one.
STADDLE_MODEL=500 tries so many random stories instead of the same few.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from staddle import Sandbox, Snapshot
from staddle.errors import InvalidCall
from staddle.files.remove_tree import remove
from staddle.layers import trash
from tests.property.test_sandbox_model import OPERATIONS, START, script
from tests.property.test_sandbox_model import _inside as inside
from tests.support.layers_overlay import Picture, naive_changes, picture

STORIES = int(os.environ.get("STADDLE_MODEL", "0"))
pytestmark = pytest.mark.timeout(0 if STORIES else 120)


class HistoryStory(RuleBasedStateMachine):
    """What may happen to a sandbox with a history, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="history", dir="/var/tmp"))
        self.host = self.place / "host"
        self.serial = 0
        self.snapshots: list[tuple[Snapshot, Path]] = []

    @initialize()
    def begin(self) -> None:
        for path, content in START:
            (self.host / path).parent.mkdir(parents=True, exist_ok=True)
            (self.host / path).write_text(content)
        self.sandbox = Sandbox(self.host, history=True)
        self.points = [self._copy(self.host)]
        self.at = 0

    def teardown(self) -> None:
        if hasattr(self, "sandbox"):
            self.sandbox.close()
        for snapshot, _ in self.snapshots:
            snapshot.close()
        remove((os.fsencode(self.place),))
        trash.wait()

    # ------------------------------------------------------------ what is done

    @rule(operations=OPERATIONS)
    def work(self, operations: list[tuple[str, ...]]) -> None:
        text = script(operations)
        result = self.sandbox.run(text, cwd="/workspace")
        following = self._copy(self.points[self.at])
        subprocess.run(
            ["bash", "-c", os.fsencode(text)], cwd=following, capture_output=True, timeout=30, check=False
        )
        if result.changes:
            self._add(following)

    @rule(content=st.sampled_from(["", "one", "two"]))
    def write_files(self, content: str) -> None:
        """Several writes are one point."""
        following = self._copy(self.points[self.at])
        for name in ("tool 1", "tool 2"):
            if not (following / name).is_dir():
                self.sandbox.files.write(f"/workspace/{name}", content)
                (following / name).write_text(content)
        # A second write of equal content to one layer is taken for a change; a missing change never is.
        has_point = len(self.sandbox.history()) > self.at + 1
        assert has_point or picture(following) == picture(self.points[self.at])
        if has_point:
            self._add(following)

    @rule(n=st.integers(1, 3))
    def undo(self, n: int) -> None:
        if n > self.at:
            with pytest.raises(InvalidCall):
                self.sandbox.undo(n)
            return
        step = self.sandbox.undo(n)
        assert len(step.points) == n
        self.at -= n

    @rule(n=st.integers(1, 3))
    def redo(self, n: int) -> None:
        if self.at + n >= len(self.points):
            with pytest.raises(InvalidCall):
                self.sandbox.redo(n)
            return
        assert len(self.sandbox.redo(n).points) == n
        self.at += n

    @rule()
    def snapshot(self) -> None:
        self.snapshots.append((self.sandbox.snapshot(), self._copy(self.points[self.at])))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        taken, saved = data.draw(st.sampled_from(self.snapshots))
        self.sandbox.restore(taken)
        self._add(self._copy(saved))

    @rule()
    def discard(self) -> None:
        self.sandbox.discard()
        self._add(self._copy(self.host))

    @rule(goes_on=st.booleans())
    def fork(self, goes_on: bool) -> None:
        """A fork has a history of its own, which begins there."""
        (fork,) = self.sandbox.fork(freeze=False)
        assert len(fork.history()) == 1
        following = self._copy(self.points[self.at])
        (following / following.name).mkdir()
        fork.run(f"umask 022; mkdir /workspace/{following.name}")
        fork.undo()
        assert inside(fork) == picture(self.points[self.at])
        leaves, stays = (self.sandbox, fork) if goes_on else (fork, self.sandbox)
        leaves.close()
        self.sandbox = stays
        if goes_on:
            self.points, self.at = [self.points[self.at], following], 0

    @rule()
    def commit(self) -> None:
        done = self.sandbox.commit(allow_protected=True)
        if done.changes:
            self.points, self.at = [self.points[self.at]], 0
            for taken, _ in self.snapshots:  # they show what the host has now
                taken.close()
            self.snapshots.clear()
        assert picture(self.host) == picture(self.points[self.at])

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        points = self.sandbox.history()
        index = data.draw(st.integers(0, self.at))
        with self.sandbox.at(points[index]) as past:
            for path, (kind, _, content) in picture(self.points[index]).items():
                if kind == "file" and os.access(self.points[index] / path, os.R_OK):
                    assert past.read_bytes(f"/workspace/{path}") == content

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        points = self.sandbox.history()
        one, other = (data.draw(st.integers(0, self.at)) for _ in range(2))
        told = set()
        for change in points[one].diff(points[other]):
            path = change.path.removeprefix("/workspace/")
            if change.elsewhere:
                continue
            if change.kind == "renamed":
                told |= {("added", path), ("deleted", (change.old_path or "").removeprefix("/workspace/"))}
            else:
                told.add((change.kind, path))
        assert told == naive_changes(self._picture(other), self._picture(one))

    # ------------------------------------------------------------ what must hold

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "sandbox"):
            assert inside(self.sandbox) == picture(self.points[self.at])
            assert len(self.sandbox.history()) == self.at + 1

    def _picture(self, index: int) -> Picture:
        return picture(self.points[index])

    def _add(self, following: Path) -> None:
        self.points[self.at + 1 :] = [following]
        self.at += 1

    def _copy(self, source: Path) -> Path:
        self.serial += 1
        made = self.place / f"point-{self.serial}"
        shutil.copytree(source, made, symlinks=True)
        for directory, _, _ in os.walk(source):  # copytree sets the modes of directories only at the end
            shutil.copystat(directory, made / os.path.relpath(directory, source))
        return made


TestHistoryStory = HistoryStory.TestCase
TestHistoryStory.settings = settings(
    max_examples=STORIES or 3,
    stateful_step_count=40 if STORIES else 12,
    derandomize=not STORIES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
