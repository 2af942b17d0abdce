"""A commit that is killed, at whatever point, leaves the old state or the new one, after the next start."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staddle.errors import CommitFailed
from staddle.files.remove_tree import remove
from staddle.layers import commit as commits
from staddle.layers import commit_dir, journal, trash
from staddle.layers.baseline import Baseline
from staddle.layers.commit import commit
from staddle.layers.commit_dir import recover
from staddle.layers.merged_view import LayerView
from tests.support.kills import killed_at
from tests.support.layers_overlay import MEMORY, Picture, fill, picture


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host directory, and a layer that changes it in every way. The records go beside them."""
    tmp_path = Path(tempfile.mkdtemp(prefix="layers", dir=MEMORY))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(commit_dir, "homes", lambda: iter([f"{tmp_path}/state/staddle/commits"]))
    host, layer = tmp_path / "host", tmp_path / "layer"
    fill(
        host,
        [
            *(("kept", "kept\n"), ("changed", "old\n"), ("gone", "gone\n"), ("link", "-> kept")),
            *(("tree/a", "a\n"), ("tree/b/c", "c\n"), ("becomes a directory", "file\n")),
            *(("becomes a file/x", "x\n"), ("open/y", "y\n"), ("moved", "moved\n")),
        ],
    )
    fill(
        layer,
        [
            *(("changed", "new\n"), ("added", "added\n"), ("link", "-> changed"), ("new/deep/er", "deep\n")),
            *(("becomes a directory/z", "z\n"), ("becomes a file", "file now\n"), ("elsewhere", "moved\n")),
            ("open/y", "Y\n"),
        ],
    )
    (layer / "open").chmod(0o700)
    for closed in (host / "tree", layer / "new"):  # only open directories can be moved
        closed.chmod(0o555)
    for name in ("gone", "tree", "moved"):
        os.mknod(layer / name, stat.S_IFCHR, 0)
    yield tmp_path
    trash.wait()
    remove((os.fsencode(tmp_path),))


def new_state(host: Path, old: Picture) -> Picture:
    state = dict(old)
    for path in ("gone", "tree", "tree/a", "tree/b", "tree/b/c", "becomes a file/x", "moved"):
        del state[path]
    mode = old["kept"][1]
    folder = 0o777 & ~_umask()
    for path, text in (
        ("changed", "new\n"),
        ("added", "added\n"),
        ("new/deep/er", "deep\n"),
        ("open/y", "Y\n"),
    ):
        state[path] = ("file", mode, text.encode())
    state["becomes a directory/z"] = ("file", mode, b"z\n")
    state["becomes a file"] = ("file", mode, b"file now\n")
    state["elsewhere"] = ("file", mode, b"moved\n")
    for path in ("new", "new/deep", "becomes a directory"):
        state[path] = ("directory", folder, b"")
    state["open"] = ("directory", 0o700, b"")
    state["new"] = ("directory", 0o555, b"")
    state["link"] = ("symlink", 0, b"changed")
    return state


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def view(world: Path) -> LayerView:
    return LayerView((str(world / "layer"),), (str(world / "host"),))


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_after_a_kill_at_any_step_the_host_is_wholly_old_or_wholly_new(world: Path) -> None:
    seen = killed_everywhere(world, 1)
    assert seen["old"] > 30
    assert seen["new"] > 15


def killed_everywhere(world: Path, stride: int) -> dict[str, int]:
    """Commit again and again, with a kill ever later; how often the outcome was which."""
    host = world / "host"
    old = picture(host)
    new = new_state(host, old)
    seen = {"old": 0, "new": 0}
    number = 0
    while True:
        number += stride
        if not killed_at(number, lambda: commit(view(world), allow_protected=True)):
            break
        recover()
        state = picture(host)
        assert state in (old, new), number
        seen["old" if state == old else "new"] += 1
        assert _left(world) == [], number
        if state == new:
            # Back to the beginning, for the next one.
            _again(world, old)
            assert picture(host) == old
    assert picture(host) == new
    return seen


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_recovery_itself_may_be_killed(world: Path) -> None:
    host = world / "host"
    old = picture(host)
    new = new_state(host, old)
    # Somewhere in the middle of the renames.
    middle = 0
    while picture(host) in (old, new):
        _again(world, old)
        middle += 1
        assert killed_at(middle, lambda: commit(view(world), allow_protected=True))
    number = 0
    while True:
        number += 1
        if not killed_at(number, recover):
            break
    assert picture(host) == new
    assert _left(world) == []


@pytest.mark.slow
def test_an_edit_between_crash_and_recovery_is_not_lost(world: Path) -> None:
    host = world / "host"
    old = picture(host)
    new = new_state(host, old)
    number = 0
    while picture(host) in (old, new):
        _again(world, old)
        number += 1
        assert killed_at(number, lambda: commit(view(world), allow_protected=True))
    waiting = next(path for path in ("open/y", "moved", "gone") if picture(host).get(path) == old[path])
    (host / waiting).unlink()
    (host / waiting).write_text("edited by hand\n")
    recover()
    state = picture(host)
    assert state[waiting][2] == b"edited by hand\n"
    assert {**state, waiting: old[waiting]} == old


@pytest.mark.parametrize("at", range(1, 7))
def test_a_step_that_the_host_refuses_takes_everything_back(
    world: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    host = world / "host"
    old = picture(host)
    calls: list[object] = []

    def refusing(*args: object, real: Callable[..., object] = journal.rename_new) -> object:
        calls.append(args)
        if len(calls) == at:
            raise OSError(errno.EACCES, "Permission denied", "here")
        return real(*args)

    monkeypatch.setattr(journal, "rename_new", refusing)
    with pytest.raises(CommitFailed, match="here: Permission denied"):
        commit(view(world), allow_protected=True)
    assert picture(host) == old
    assert _left(world) == []


@pytest.mark.slow
def test_a_record_that_others_could_have_written_is_not_obeyed(world: Path) -> None:
    host = world / "host"
    old = picture(host)
    number = 0
    while picture(host) == old:
        number += 1
        assert killed_at(number, lambda: commit(view(world), allow_protected=True))
        if picture(host) == old:
            _again(world, old)
    half = picture(host)
    home = world / "state/staddle/commits"
    home.chmod(0o777)
    assert recover() == []
    assert picture(host) == half
    home.rename(world / "elsewhere")
    home.symlink_to(world / "elsewhere")
    (world / "elsewhere").chmod(0o700)
    assert recover() == []
    assert picture(host) == half
    home.unlink()
    (world / "elsewhere").rename(home)
    # The slots are named by where they were: everything is as it was left, and can go on.
    assert recover() == [str(host)]
    assert picture(host) == new_state(host, old)


@pytest.mark.slow
def test_where_names_cannot_be_exchanged_it_is_done_in_two_moves(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "exchange_names", lambda *_: False)
    assert min(killed_everywhere(world, 3).values()) > 5


@pytest.mark.slow
def test_where_directories_cannot_be_renamed_they_are_emptied(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "is_overlay", lambda _: True)
    assert min(killed_everywhere(world, 3).values()) > 5


@pytest.mark.slow
def test_slots_in_the_target_are_gone_too(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_dir, "_mount_of", lambda path: (0, ""))  # as when /home is another file system
    host = world / "host"
    old = picture(host)
    new = new_state(host, old)
    for number in range(1, 400, 9):
        if not killed_at(number, lambda: commit(view(world), allow_protected=True)):
            break
        recover()
        assert picture(host) in (old, new), number
        assert _left(world) == [], number
        _again(world, old)
    assert picture(host) == new


def _again(world: Path, old: Picture) -> None:
    """Let the host be as it was."""
    host = world / "host"
    inode = host.stat().st_ino
    for entry in host.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            entry.chmod(0o755)
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for path in sorted(old):
        kind, mode, content = old[path]
        spot = host / path
        if kind == "directory":
            spot.mkdir()
        elif kind == "symlink":
            spot.symlink_to(os.fsdecode(content))
        else:
            spot.write_bytes(content)
            spot.chmod(mode)
    for path, (kind, mode, _) in old.items():
        if kind == "directory":
            (host / path).chmod(mode)
    assert host.stat().st_ino == inode
    remove((os.fsencode(world / "state"),))


def _left(world: Path) -> list[str]:
    trash.wait()
    state = world / "state/staddle/commits"
    records = os.listdir(state) if state.exists() else []
    return [*records, *(name for name in os.listdir(world / "host") if name.startswith(".staddle"))]


def test_a_commit_in_progress_is_left_alone_by_a_recovery(world: Path) -> None:
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append((recover(), done, total))

    commit(view(world), allow_protected=True, baseline=Baseline(), progress=progress)
    assert seen
    assert all(found == [] for found, _, _ in seen)
    assert seen[-1][1] == seen[-1][2] > 0
    trash.wait()
