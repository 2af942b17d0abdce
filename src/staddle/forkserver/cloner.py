"""The process that sandboxes are cloned from, and that does nothing else.

Memory is shared between it and them page by page, until one of them writes. An interpreter writes
to whatever it uses, so whatever this one did between two clones each of them would have to itself,
and pay for. The zygote, which hears requests and builds trees, is another process: it never
clones, and never has to copy what it uses.
"""

from __future__ import annotations

import _socket
import os
import select

from ..ipc.descriptors import receive, send
from ..linux import process
from . import spare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from ..inside.agent import verify
    from ..ipc.forkserver_messages import Blueprint

#: To it: one is wanted, with this layer. From it: here is its line; or the number of what went wrong.
_MAKE, _MADE, _FAILED = b"m", b"d", b"x"
_LONGEST = 4096
#: How often those that have ended are looked for while nobody asks, in milliseconds.
_OFTEN = 1000


class Maker:
    """The process, as the zygote has it."""

    def __init__(self, blueprint: Blueprint, outside: verify.Outside) -> None:
        """Start it. Everything that sandboxes share is there, and everything is imported."""
        self._line, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._process = os.fork()
        if self._process == 0:
            _Making(theirs, blueprint, outside).serve()
        theirs.close()

    def fileno(self) -> int:
        """Readable when `made` need not wait."""
        return self._line.fileno()

    def ask(self, layer: bytes, doors: Sequence[int] = ()) -> None:
        """Have a new sandbox begun, see `spare.make`; then call `made`."""
        send(self._line, _MAKE + layer, doors)

    def made(self) -> _socket.socket:
        """The host's end of the line of the one that was asked for. ConnectionError: the process is gone."""
        answer, descriptors = receive(self._line, _LONGEST)
        if not answer:
            raise ConnectionResetError
        if answer[:1] != _MADE or len(descriptors) != 1:
            error = int(answer[1:] or b"0")
            raise OSError(error, f"a sandbox could not be begun: {os.strerror(error)}")
        return _socket.socket(fileno=descriptors[0])

    def end(self) -> None:
        """End it, and every sandbox; returns when there is none any more."""
        self._line.close()
        os.waitpid(self._process, 0)


class _Making:
    """What that process does."""

    def __init__(self, line: _socket.socket, blueprint: Blueprint, outside: verify.Outside) -> None:
        self._line, self._draft = line, spare.Draft(blueprint, outside)
        self._children: set[int] = set()

    def serve(self) -> NoReturn:
        """Make one whenever the zygote asks, until that is gone."""
        try:
            process.death_signal(process.SIGKILL)
            process.close_from(3, keep=(self._line.fileno(),))
            poll = select.poll()
            poll.register(self._line, select.POLLIN)
            while True:
                asked = poll.poll(_OFTEN)
                self._reap()
                if asked:
                    message, doors = receive(self._line, _LONGEST)
                    if not message:
                        break
                    self._make(message[1:], doors)
            self._end()
        finally:
            os._exit(0)

    def _make(self, layer: bytes, doors: list[int]) -> None:
        try:
            pid, line = spare.make(self._draft, layer, tuple(doors))
        except OSError as error:
            send(self._line, _FAILED + b"%d" % (error.errno or 0))
            return
        finally:
            for door in doors:
                os.close(door)
        self._children.add(pid)
        send(self._line, _MADE, (line.fileno(),))
        line.close()

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._children.discard(ended)
        except ChildProcessError:
            pass

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, process.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
