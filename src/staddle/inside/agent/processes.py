"""The agent's children, each with its socket; and the terminals of the sandbox."""

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

    from .shell_files import ChannelFiles

#: Signals that are meant to end a process.
_ENDING = (process.SIGINT, process.SIGTERM, process.SIGKILL)
_TIOCSPTLCK, _TIOCGPTN, _TIOCSWINSZ = 0x40045431, 0x80045430, 0x5414


class Child:
    """A process that the host program has asked for."""

    def __init__(self, pid: int, socket: QueuedSocket, files: ChannelFiles | None) -> None:
        self.pid, self.socket, self.files = pid, socket, files
        self.ending = process_tree.Ending(pid)
        self.again: tuple[bytes, tuple[bytes, ...], bytes] = (b"", (), b"")
        self.is_file_server = False  # a process of ours: a swap of trees need not wait for it
        self.is_ours = False  # our process of a SPAWN_WHOLE, with the program below it
        self.ended = False
        self.doomed: dict[
            int, process_tree.ProcessEntry
        ] = {}  # what was below it when all of that was told to end
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
        """End it, if its socket was closed: everything below it, and what was told to end before."""
        if not self.ended:
            process_tree.signal(
                (*process_tree.below(self.pid, process_tree.table()), self.pid), process.SIGKILL
            )
        process_tree.signal(self.doomed, process.SIGKILL, self.doomed)  # maybe orphans by now


class QueuedSocket:
    """A socket that is never waited for: messages it has no room for are kept and sent later."""

    def __init__(self, raw: _socket.socket) -> None:
        raw.setblocking(False)
        self.raw = raw
        self._later: list[tuple[bytes, list[int]]] = []

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message, or keep it with copies of the descriptors."""
        if self._later or not self._sent(data, descriptors):
            self._later.append((data, [os.dup(fd) for fd in descriptors]))

    def flush(self) -> bool:
        """Send what there is room for; whether messages are left."""
        while self._later:
            data, descriptors = self._later[0]
            if not self._sent(data, descriptors):
                return True
            for fd in descriptors:
                os.close(fd)
            del self._later[0]
        return False

    def _sent(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Whether there was room for it."""
        try:
            agent_messages.send_message(self.raw, data, descriptors)
        except BlockingIOError:
            return False
        except OSError:
            pass  # it is closed; reading it tells the agent
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
    """Read without waiting; empty if there is nothing."""
    try:
        return os.read(fd, 2048)
    except BlockingIOError:
        return b""
