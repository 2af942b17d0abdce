"""Clones the sandboxes of a program that runs several commands, so that no interpreter starts for each.

    host program ══ socket ══ launch server
          └── PID 1 of a sandbox, cloned by the server as a child of the program

The server has the rights of the program, and gets SIGKILL when that ends. Of the program's descriptors it
has only the socket, as its standard input. It exits when that is closed, or unused for ten seconds.
"""

from __future__ import annotations

import _socket
import gc
import os
import select

from ..ipc import namespace_spec, wire
from ..linux import process
from .child import HANDLED
from .namespace_init import start_here
from .namespace_launcher import contents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: Seconds without a request after which it exits.
_IDLE = 10.0


def main(words: list[str]) -> NoReturn:
    """Serve the process with the number in `words`, our parent. Never returns."""
    try:
        process.block_signals(HANDLED)  # Ctrl-C reaches the program, and the commands
        process.death_signal(process.SIGKILL)
        if os.getppid() == int(words[0]):
            process.close_from(3)
            os.chdir("/")
            gc.freeze()  # shared with every clone
            gc.enable()
            _serve(_socket.socket(fileno=0))
    finally:
        os._exit(0)


def _serve(channel: _socket.socket) -> None:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while poll.poll(_IDLE * 1000):
        request, given = wire.receive(channel, 4096)
        if not request:
            return
        try:
            pid = _start(request, given)
        finally:
            wire.close_all(given)
        wire.send(channel, b"%d" % pid)


def _start(request: bytes, given: list[int]) -> int:
    """Return the first process of a new sandbox. It starts no command before it reads a byte from a pipe.

    `given` are three streams, that pipe, and the descriptors of a launch, of which the last is the
    specification. `request` are the numbers that the latter have in the program, and so in the specification.
    """
    streams, confirmed = given[:3], given[3]
    ours = dict(zip(map(int, request.split()), given[4:], strict=True))
    asked = namespace_spec.decode(contents(given.pop()))
    spec = asked.replace(
        status=ours[asked.status],
        cgroup_fds=tuple(ours[fd] for fd in asked.cgroup_fds),
        tally=ours.get(asked.tally, -1),
    )

    def prepare() -> None:
        for number, fd in enumerate(streams):
            os.dup2(fd, number)

    return start_here(spec, prepare, confirmed=confirmed)
