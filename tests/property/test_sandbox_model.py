"""A real sandbox and a plain directory, worked on in step: whatever is done, the two agree, byte for byte.

STADDLE_MODEL=500 tries so many random stories instead of the same few, for as long as that takes,
and STADDLE_MODEL_BACKEND=bwrap those of a sandbox that works in a copy.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from staddle import Sandbox, Snapshot
from staddle.files.remove_tree import remove
from staddle.layers import trash
from tests.support.layers_overlay import Picture, naive_changes, picture

STORIES = int(os.environ.get("STADDLE_MODEL", "0"))
BACKEND = os.environ.get("STADDLE_MODEL_BACKEND", "namespaces")
LAYERED = BACKEND == "namespaces"
pytestmark = pytest.mark.timeout(0 if STORIES else 120)

NAMES = ["a", "b", "c d", "new\nline", "caf\udce9", "quo'te"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
CONTENT = st.sampled_from(["", "one", "two", "x" * 5000, "\u00e9\u2028"])
# Links lead nowhere but within: outside, the plain directory is in another place than the workspace.
TARGETS = st.sampled_from(["a", "b/a", "nowhere", "c d"])
OPERATION = st.one_of(
    st.tuples(st.just("printf %s {1} > {0}"), PATHS, CONTENT),
    st.tuples(st.just("printf %s {1} >> {0}"), PATHS, CONTENT),
    st.tuples(st.just("rm -f {0}; printf %s {1} > {0}"), PATHS, CONTENT),
    st.tuples(st.just("mkdir -p {0}"), PATHS),
    st.tuples(st.just("mkdir -p {0}"), PATHS),
    st.tuples(st.just("rm -rf {0}"), PATHS),
    st.tuples(st.just("rm -rf {0}; mkdir {0}"), PATHS),
    st.tuples(st.just("mv -T {0} {1}"), PATHS, PATHS),
    st.tuples(st.just("ln -s {1} {0}"), PATHS, TARGETS),
    st.tuples(st.just("ln -T {0} {1}"), PATHS, PATHS),
    st.tuples(st.just("chmod {1} {0}"), PATHS, st.sampled_from(["755", "700", "775"])),
    st.tuples(st.just("test -d {0} || chmod {1} {0}"), PATHS, st.sampled_from(["644", "600"])),
    st.tuples(st.just("touch {0}"), PATHS),
)
OPERATIONS = st.lists(OPERATION, min_size=1, max_size=5)
START = [("a", "1"), ("b/a", "2"), ("b/c d/a", "3"), ("c d/caf\udce9", "4"), ("new\nline/b/a", "5")]


def script(operations: list[tuple[str, ...]]) -> str:
    """Shell text that does all of them, whatever comes of each."""
    return "umask 022; " + "; ".join(form.format(*map(shlex.quote, words)) for form, *words in operations)


class Story(RuleBasedStateMachine):
    """What may happen to a sandbox, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="model", dir="/var/tmp"))
        self.host, self.model = self.place / "host", self.place / "model"
        self.host.mkdir()
        self.snapshots: list[tuple[Snapshot, Path]] = []
        self.serial = 0

    @initialize(links=st.booleans())
    def begin(self, links: bool) -> None:
        for path, content in START:
            (self.host / path).parent.mkdir(parents=True, exist_ok=True)
            (self.host / path).write_text(content)
        if links:
            (self.host / "quo'te").symlink_to("b/a")
            os.link(self.host / "a", self.host / "c d/b")
        os.chmod(self.host / "b", 0o755)
        self._copy(self.host, self.model)
        self._break_links()
        self.sandbox = Sandbox(self.host, backend=BACKEND)

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
        self._work(self.sandbox, self.model, operations)

    @rule(path=PATHS, content=CONTENT)
    def write_a_file(self, path: str, content: str) -> None:
        if os.path.isdir(self.model / os.path.dirname(path)) and not os.path.lexists(self.model / path):
            self.sandbox.files.write(f"/workspace/{path}", content)
            (self.model / path).write_text(content)
            os.chmod(self.model / path, self._mode_inside(path))

    @rule()
    def snapshot(self) -> None:
        self.serial += 1
        saved = self.place / f"saved-{self.serial}"
        taken = self.sandbox.snapshot(str(self.serial))
        assert taken.method == ("swap" if LAYERED else "copy")
        self._break_links()
        self._copy(self.model, saved)
        self.snapshots.append((taken, saved))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        taken, saved = data.draw(st.sampled_from(self.snapshots))
        self.sandbox.restore(taken)
        shutil.rmtree(self.model)
        self._copy(saved, self.model)

    @rule()
    def save_and_load(self) -> None:
        taken = self.sandbox.snapshot()
        taken.save(self.place / "archive")
        loaded = Snapshot.load(self.place / "archive")
        self.sandbox.restore(loaded)
        for one in (taken, loaded):
            one.close()
        self._break_links()

    @rule(operations=OPERATIONS, goes_on=st.booleans())
    def fork(self, operations: list[tuple[str, ...]], goes_on: bool) -> None:
        (fork,) = self.sandbox.fork()
        self._break_links()
        other = self.place / "other"
        self._copy(self.model, other)
        self._work(fork, other, operations)
        self._agree(fork, other)
        self._agree(self.sandbox, self.model)
        leaves, stays = (self.sandbox, fork) if goes_on else (fork, self.sandbox)
        leaves.close()
        self.sandbox = stays
        if goes_on:
            shutil.rmtree(self.model)
            other.rename(self.model)
        else:
            shutil.rmtree(other)

    @rule()
    def commit(self) -> None:
        done = self.sandbox.commit(allow_protected=True)
        assert not done.kept
        assert picture(self.host) == picture(self.model)
        assert self.sandbox.diff() == []
        self._forget_snapshots()

    @rule(name=st.sampled_from(NAMES))
    def commit_some(self, name: str) -> None:
        if not any(_top(change.path) == name for change in self.sandbox.diff()):
            return
        before, model = picture(self.host), picture(self.model)
        self.sandbox.commit([name], allow_protected=True)
        after = picture(self.host)
        assert _below(after, name) == _below(model, name)
        for path in before.keys() | after.keys():  # what was moved into it or out of it goes along
            assert after.get(path) in (before.get(path), model.get(path)), path
        self._forget_snapshots()

    @rule()
    def discard(self) -> None:
        self.sandbox.discard()
        shutil.rmtree(self.model)
        self._copy(self.host, self.model)
        self._break_links()

    @rule(name=st.sampled_from(NAMES))
    def discard_some(self, name: str) -> None:
        self.sandbox.discard([name])
        self._break_links()
        if os.path.lexists(self.model / name):
            subprocess.run(["rm", "-rf", self.model / name], check=True)
        if os.path.lexists(self.host / name):
            subprocess.run(["cp", "-a", self.host / name, self.model / name], check=True)

    # ------------------------------------------------------------ what must hold

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "sandbox"):
            self._agree(self.sandbox, self.model)

    def _agree(self, sandbox: Sandbox, model: Path) -> None:
        expected = picture(model)
        assert _inside(sandbox) == expected
        told = set()
        for change in sandbox.diff():
            path = change.path.removeprefix("/workspace/")
            if change.kind == "renamed":
                told |= {("added", path), ("deleted", (change.old_path or "").removeprefix("/workspace/"))}
            else:
                told.add((change.kind, path))
        assert told == naive_changes(picture(self.host), expected)

    # ------------------------------------------------------------ how

    def _work(self, sandbox: Sandbox, model: Path, operations: list[tuple[str, ...]]) -> None:
        text = script(operations)
        sandbox.run(text, cwd="/workspace")
        subprocess.run(
            ["bash", "-c", os.fsencode(text)], cwd=model, capture_output=True, timeout=30, check=False
        )

    def _mode_inside(self, path: str) -> int:
        return stat.S_IMODE(self.sandbox.files.stat(f"/workspace/{path}").mode)

    def _forget_snapshots(self) -> None:
        """They show what the host has now where they have nothing of their own: not what it had then."""
        for taken, saved in self.snapshots:
            taken.close()
            shutil.rmtree(saved)
        self.snapshots.clear()

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", source, target], check=True)

    def _break_links(self) -> None:
        """Names of one file of the host, or in a layer that is frozen, become files when one is written."""
        if not LAYERED:
            return
        for directory, _, names in os.walk(os.fsencode(self.model)):
            for name in names:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    shutil.copy2(path, path + b".copy")
                    os.rename(path + b".copy", path)


def _inside(sandbox: Sandbox) -> Picture:
    """The workspace as whoever is inside sees it."""
    packed = io.BytesIO()
    sandbox.download_tar(packed, "/workspace")
    packed.seek(0)
    found: Picture = {}
    with tarfile.open(fileobj=packed, encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            path = os.path.normpath(member.name)
            if path == ".":
                continue
            if member.issym():
                found[path] = ("symlink", 0, os.fsencode(member.linkname))
            elif member.isdir():
                found[path] = ("directory", member.mode, b"")
            else:
                content = archive.extractfile(member)
                assert content is not None
                found[path] = ("file", member.mode, content.read())
    return found


def _top(path: str) -> str:
    return path.removeprefix("/workspace/").split("/")[0]


def _below(several: Picture, name: str) -> Picture:
    return {path: what for path, what in several.items() if path.split("/")[0] == name}


TestStory = Story.TestCase
TestStory.settings = settings(
    max_examples=STORIES or 3,
    stateful_step_count=40 if STORIES else 12,
    derandomize=not STORIES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
