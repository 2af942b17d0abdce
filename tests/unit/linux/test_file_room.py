"""Room for open files: what gives some back, when it is waited for, and what is told when there is none."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from staddle.errors import LaunchFailed, LayerError, TooManyOpenFiles
from staddle.limits import memory_watch
from staddle.linux import file_room, open_files
from staddle.linux.file_room import FileRoom, refuse_if_full


class Process:
    """A process with a limit and so many open files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.limit = 10, 200
        for name in ("limit", "original_limit"):
            monkeypatch.setattr(open_files, name, lambda: self.limit)
        monkeypatch.setattr(open_files, "count", lambda: self.open)
        monkeypatch.setattr(open_files, "raise_limit", lambda: False)
        monkeypatch.setattr(file_room, "_SHORT_PATIENCE", 0.01)

    def park(self) -> bool:
        """Some of them are of something idle."""
        was_open, self.open = self.open, min(self.open, 100)
        return self.open < was_open


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_what_is_idle_gives_files_back(process: Process) -> None:
    room = FileRoom()
    room.givers.append(process.park)
    process.open = 190
    with room.reserve(16):
        assert process.open == 100


def test_who_can_do_without_takes_nothing_from_others_unless_it_has_patience(process: Process) -> None:
    room = FileRoom()
    room.givers.append(process.park)
    process.open = 190
    room.reserve_if_possible(16, 0).end()
    assert process.open == 190
    room.reserve_if_possible(10, 5).end()
    assert process.open == 190, "there is just enough"
    room.reserve_if_possible(16, 5).end()
    assert process.open == 100


def test_who_can_do_without_waits_only_for_those_who_have_reserved_some(process: Process) -> None:
    room = FileRoom()
    process.open = 170
    first = room.reserve_if_possible(20, 60)
    threading.Timer(0.02, first.end).start()
    second = room.reserve_if_possible(20, 60)
    process.open = 199
    assert room.reserve_if_possible(20, 0.01) is not second, "it does not wait for ever"
    second.end()
    room.reserve_if_possible(20, 600)  # nobody has any: it does not wait at all


def test_patience_begins_anew_when_others_give_some_back(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, now = FileRoom(), [1000.0]
    monkeypatch.setattr(file_room.time, "monotonic", lambda: now[0])
    first, second = room.reserve_if_possible(10, 0), room.reserve_if_possible(10, 0)
    now[0] = 1050.0
    first.end()
    now[0] = 1100.0
    assert not room.has_waited(1000.0, 60)
    assert room.has_waited(1000.0, 40)
    now[0] = 1590.0
    second.end()
    assert not room.has_waited(1000.0, 60)
    now[0] = 1601.0
    assert room.has_waited(1000.0, 60), "not for ever"


def test_a_reservation_ends_once(process: Process) -> None:
    room = FileRoom()
    reserved = room.reserve_if_possible(100, 0)
    assert room.reserve_now(100) is None
    reserved.end()
    reserved.end()
    found = room.reserve_now(100)
    assert found is not None
    assert room.reserve_now(100) is None


def test_a_count_is_not_gone_by_for_long(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    room = FileRoom()
    room.reserve_if_possible(1, 0).end()
    process.open = 199  # by the rest of the program
    with room.reserve(16):
        pass  # not noticed yet
    monkeypatch.setattr(room, "_credit_ends", 0.0)
    with pytest.raises(TooManyOpenFiles, match="199 are open, and this process may have 200"):
        room.reserve(16)


def test_a_full_process_is_told_as_such_and_other_errors_are_not() -> None:
    refuse_if_full(None)
    refuse_if_full(FileNotFoundError(errno.ENOENT, "gone"))
    for code in (errno.EMFILE, errno.ENFILE):
        with pytest.raises(TooManyOpenFiles) as caught:
            refuse_if_full(OSError(code, "no room"))
        assert isinstance(caught.value, LaunchFailed)
        assert isinstance(caught.value, LayerError)
        assert not isinstance(caught.value, OSError)


def test_processes_that_cannot_be_looked_at_do_not_count_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> list[str]:
        raise OSError(errno.EMFILE, "no room")

    assert memory_watch.below(1 << 30) == []
    monkeypatch.setattr(memory_watch.os, "listdir", full)
    with pytest.raises(TooManyOpenFiles):
        memory_watch.below(1)


@pytest.mark.parametrize("kernel_counts", [True, False])
def test_open_files_are_counted(kernel_counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel_counts:  # before Linux 6.2
        monkeypatch.setattr(open_files.os, "stat", lambda path: os.stat_result((0,) * 10))
    before = open_files.count()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    try:
        assert open_files.count() == before + 3
    finally:
        for fd in opened:
            os.close(fd)
