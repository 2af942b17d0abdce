"""The process that started ours: read what it asks for, and end when it does."""

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
    """Everything in the memory file, which is closed then. OSError or Malformed when there is none."""
    size = os.fstat(file).st_size
    if size > _LONGEST:
        raise Malformed("they are too long")
    data = bytearray()
    while chunk := os.pread(file, size + 1 - len(data), len(data)):
        data += chunk
    os.close(file)
    return bytes(data)


def die_with(parent: int, launcher: int, status: int, number: int = process.SIGKILL) -> None:
    """Be sent `number` when `parent`, our parent a moment ago, ends; notice when it did before we asked.

    `launcher` is the process that prepared this start. Usually it is the parent itself.
    """
    process.death_signal(number)
    if os.getppid() != parent or (parent != launcher and _is_deserted(launcher, status)):
        raise NotStarted(CONFINEMENT, "the process that started this has exited")


def _is_deserted(launcher: int, status: int) -> bool:
    """Whether our parent is a reaper that adopted us: the launcher is gone, the status pipe unread."""
    if launcher == os.getpid():
        return False  # it became us
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
