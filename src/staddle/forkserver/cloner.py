"""The process from which sandboxes are cloned, and which does nothing else.

It shares memory with its clones page by page, until one of them writes. An interpreter writes to every object
that it uses. So anything that this process did between two clones would be copied in each of them. The fork
server, which receives requests and mounts trees, is another process: it never clones, and never copies its
pages.
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
    from ..ipc.forkserver_messages import ForkServerConfig

#: To the cloner: clone, with this layer. From it: cloned, with the agent's socket; or failed, with an errno.
_CLONE, _CLONED, _FAILED = b"m", b"d", b"x"
_LONGEST = 4096
#: Milliseconds between two checks for ended clones while there is no request.
_OFTEN = 1000


class Cloner:
    """The fork server's handle of the cloner."""

    def __init__(self, config: ForkServerConfig, outside: verify.Outside) -> None:
        """Start it. Everything that sandboxes share exists already, and everything is imported."""
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._process = os.fork()
        if self._process == 0:
            CloneServer(theirs, config, outside).serve()
        theirs.close()

    def fileno(self) -> int:
        """Readable when `made` need not wait."""
        return self._socket.fileno()

    def ask(self, layer: bytes, cgroup_fds: Sequence[int] = ()) -> None:
        """Request a new sandbox, see `spare.make`; then call `made`."""
        send(self._socket, _CLONE + layer, cgroup_fds)

    def made(self) -> _socket.socket:
        """Return the host's end of the new agent's socket. ConnectionError: the cloner has ended."""
        answer, descriptors = receive(self._socket, _LONGEST)
        if not answer:
            raise ConnectionResetError
        if answer[:1] != _CLONED or len(descriptors) != 1:
            error = int(answer[1:] or b"0")
            raise OSError(error, f"a sandbox could not be started: {os.strerror(error)}")
        return _socket.socket(fileno=descriptors[0])

    def end(self) -> None:
        """End it, and every sandbox; returns when none is left."""
        self._socket.close()
        os.waitpid(self._process, 0)


class CloneServer:
    """The cloner's own loop."""

    def __init__(self, socket: _socket.socket, config: ForkServerConfig, outside: verify.Outside) -> None:
        self._socket, self._template = socket, spare.SandboxTemplate(config, outside)
        self._children: set[int] = set()

    def serve(self) -> NoReturn:
        """Clone once for each request of the fork server, until that has ended."""
        try:
            process.death_signal(process.SIGKILL)
            process.close_from(3, keep=(self._socket.fileno(),))
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while True:
                asked = poll.poll(_OFTEN)
                self._reap()
                if asked:
                    message, cgroup_fds = receive(self._socket, _LONGEST)
                    if not message:
                        break
                    self._make(message[1:], cgroup_fds)
        finally:  # even if the last clone could not be handed over any more
            try:
                self._end()
            finally:
                os._exit(0)

    def _make(self, layer: bytes, cgroup_fds: list[int]) -> None:
        try:
            pid, socket = spare.make(self._template, layer, tuple(cgroup_fds))
        except OSError as error:
            send(self._socket, _FAILED + b"%d" % (error.errno or 0))
            return
        finally:
            for cgroup_fd in cgroup_fds:
                os.close(cgroup_fd)
        self._children.add(pid)
        send(self._socket, _CLONED, (socket.fileno(),))
        socket.close()

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
