"""The process that started ours: read its specification, and end when it ends."""

from __future__ import annotations

import errno
import os
import select

from ..ipc.status import CONFINEMENT, NotStarted
from ..ipc.wire import Malformed
from ..linux import process

#: More than a thousand paths of the longest kind need; a larger file is not ours.
_LONGEST = 64 << 20


def contents(file: int) -> bytes:
    """Return the contents of the memory file, and close it. OSError or Malformed if it cannot be read."""
    size = os.fstat(file).st_size
    if size > _LONGEST:
        raise Malformed("they are too long")
    data = bytearray()
    while chunk := os.pread(file, size + 1 - len(data), len(data)):
        data += chunk
    os.close(file)
    return bytes(data)


def die_with(parent: int, launcher: int, status: int, number: int = process.SIGKILL) -> None:
    """Get the signal `number` when `parent` ends; NotStarted if it has ended already.

    `parent` was our parent a moment ago. `launcher` is the process that prepared this start, usually the
    parent itself.
    """
    process.death_signal(number)
    if os.getppid() != parent or (parent != launcher and _is_deserted(launcher, status)):
        raise NotStarted(CONFINEMENT, "the process that started this has exited")


def _is_deserted(launcher: int, status: int) -> bool:
    """Whether a reaper has adopted us: the launcher is gone, and the status pipe has no reader."""
    if launcher == os.getpid():
        return False  # it became us by exec
    return status >= 0 and _is_up(status, 0) and _has_ended(launcher)


def _has_ended(pid: int) -> bool:
    """Whether there is no such process, or only a zombie."""
    try:
        descriptor = process.pidfd_open(pid)
    except OSError as error:
        return error.errno == errno.ESRCH
    try:
        return _is_up(descriptor, select.POLLIN)
    finally:
        os.close(descriptor)


def _is_up(descriptor: int, events: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(0))
