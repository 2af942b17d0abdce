"""The processes that were asked for, each with its line; and the terminals of the sandbox."""

from __future__ import annotations

import _socket
import fcntl
import os
import struct

from ...ipc import agent_messages
from ...linux import process
from . import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shell_files import Files

#: Who is told this is to end.
_ENDING = (process.SIGINT, process.SIGTERM, process.SIGKILL)
_TIOCSPTLCK, _TIOCGPTN, _TIOCSWINSZ = 0x40045431, 0x80045430, 0x5414


class Child:
    """A process that was asked for."""

    def __init__(self, pid: int, line: Line, files: Files | None) -> None:
        self.pid, self.line, self.files = pid, line, files
        self.ending = process_tree.Ending(pid)
        self.again: tuple[bytes, tuple[bytes, ...], bytes] = (b"", (), b"")
        self.is_clerk = False  # a process of ours, which is in nobody's way
        self.is_ours = False  # a process of ours, with the program below it
        self.ended = False
        self.doomed: dict[int, process_tree.Entry] = {}  # what was below it when all of that was told to end
        self.why = b""

    def signal(self, number: int, *, everything: bool) -> None:
        """Send it a signal, if it has not ended; `everything` that it has started, too."""
        if self.ended:
            return
        more = process_tree.below(self.pid, process_tree.table()) if everything or self.is_ours else ()
        if everything and number in _ENDING:
            self.doomed |= process_tree.seen(more)
        process_tree.signal(
            (*(() if self.is_ours else (self.pid,)), *more), number
        )  # who stays above it is not it

    def end(self) -> None:
        """Nobody is interested any more: it ends with everything below it, and what was to end before."""
        if not self.ended:
            process_tree.signal(
                (*process_tree.below(self.pid, process_tree.table()), self.pid), process.SIGKILL
            )
        process_tree.signal(self.doomed, process.SIGKILL, self.doomed)  # they may be nobody's by now


class Line:
    """A line that is never waited for: what it has no room for is said later."""

    def __init__(self, socket: _socket.socket) -> None:
        socket.setblocking(False)
        self.socket = socket
        self._later: list[tuple[bytes, list[int]]] = []

    def say(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Say it, or keep it with copies of the descriptors."""
        if self._later or not self._said(data, descriptors):
            self._later.append((data, [os.dup(fd) for fd in descriptors]))

    def flush(self) -> bool:
        """Say what there is room for; whether something is left."""
        while self._later:
            data, descriptors = self._later[0]
            if not self._said(data, descriptors):
                return True
            for fd in descriptors:
                os.close(fd)
            del self._later[0]
        return False

    def _said(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Whether there was room for it."""
        try:
            agent_messages.say(self.socket, data, descriptors)
        except BlockingIOError:
            return False
        except OSError:
            pass  # nobody listens; the line says so itself
        return True


def terminal(rows: int, columns: int, user: int) -> tuple[list[int], int]:
    """A new terminal of the sandbox: its master, in a list, and its other side."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        (number,) = struct.unpack("i", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))
        fcntl.ioctl(master, _TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if user >= 0:
            os.chown(f"/dev/pts/{number}", user, -1)
        return [master], os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except BaseException:
        os.close(master)
        raise


def available(fd: int) -> bytes:
    """What can be read at once."""
    try:
        return os.read(fd, 2048)
    except BlockingIOError:
        return b""
