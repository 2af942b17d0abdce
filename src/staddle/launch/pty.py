"""Non-blocking reads and writes on the master side of a pseudo-terminal, and its size."""

from __future__ import annotations

import errno
import os
import select
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..observe.redaction import Redactor

_PIECE = 64 << 10
#: Maximum input that the line discipline accepts at once.
_TYPED = 4096


def read_available(master: int) -> bytes | None:
    """Return the printed bytes; None if there are none yet, empty if no program has the terminal open."""
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
    """Read without secret values. A person is typing, so bytes are never held back to wait for more."""
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
    """Write as much of `data` as fits, and return its length. Returns all if no program has it open."""
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
    """Whether a call would not block. An agent may share the open file and have made it blocking."""
    os.set_blocking(master, False)
    poll = select.poll()
    poll.register(master, event)
    return bool(poll.poll(0))


def set_size(master: int, rows: int, cols: int) -> None:
    """Set the window size; the kernel sends SIGWINCH to the foreground job."""
    termios.tcsetwinsize(master, (rows, cols))
