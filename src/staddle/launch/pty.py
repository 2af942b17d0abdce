"""Reads, writes and sizes of the master side of a pseudo-terminal that does not block."""

from __future__ import annotations

import errno
import os
import select
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .redaction import Redactor

_PIECE = 64 << 10
#: As much as the line discipline takes at once.
_TYPED = 4096


def read_available(master: int) -> bytes | None:
    """The bytes that were printed; None when there are none yet, empty when no program has it open."""
    try:
        if not _is_ready(master, select.POLLIN):
            return None
        return os.read(master, _PIECE)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


def read_redacted(master: int, redactor: Redactor) -> bytes | None:
    """The same without the values of secrets. A person types there: nothing waits for what may still come."""
    seen = b""
    while len(seen) < _PIECE:
        data = read_available(master)
        if data is None:
            return seen + redactor.release() or None
        if not data:
            return seen + redactor.finish()
        seen += redactor.feed(data)
        if seen and not redactor.holds:
            break
    return seen


def write_available(master: int, data: bytes | memoryview) -> int:
    """Type as much of `data` as there is room for, and return how much. All, when no program has it open."""
    try:
        if not _is_ready(master, select.POLLOUT):
            return 0
        return os.write(master, data[:_TYPED])
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno == errno.EIO:
            return len(data)
        raise


def _is_ready(master: int, event: int) -> bool:
    """Whether a call need not wait. The open file may be an agent's, too, and blocking since."""
    os.set_blocking(master, False)
    poll = select.poll()
    poll.register(master, event)
    return bool(poll.poll(0))


def set_size(master: int, rows: int, cols: int) -> None:
    """Set the window size; the kernel sends SIGWINCH to the foreground job."""
    termios.tcsetwinsize(master, (rows, cols))
