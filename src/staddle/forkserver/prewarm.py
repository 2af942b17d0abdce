"""Doing ahead, to no end, what a sandbox will do, and somebody wait for.

Memory that two processes share since a clone is copied page by page when one of them writes, and
an interpreter writes to whatever it uses. Twice that can be had at a time when nobody waits:

    before the first clone    what an interpreter remembers about code that it has run some times (its
                              caches, the code itself, which it rewrites) is then the same for all
    in each clone             what is not shared any more once a request was heard and understood
"""

from __future__ import annotations

import _socket
import os

from ..inside.agent import verify
from ..inside.agent.greeting import greeting
from ..inside.agent.processes import Line
from ..inside.agent.shell_files import Files, InDirectory
from ..ipc import agent_messages
from ..ipc.descriptors import receive, send
from ..ipc.forkserver_messages import LONGEST, Request, decode_request, encode
from ..ipc.status import NotStarted
from ..linux import process
from ..mounts.operations import Bind
from ..mounts.rows import decoded, encoded
from ..mounts.shared_view import ASIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.forkserver_messages import Blueprint

#: As most requests are.
_VIEW = encoded((Bind("/workspace", True, "workspace", source="/w"),))
_USUAL = encode(Request(b"/w", 1, 1, b"/s/1/upper", b"/s/1/work", (), _VIEW))
#: From the eighth time on CPython (3.11) runs code in a form of its own.
_TIMES = 12
#: A directory of the zygote's own, in what no sandbox gets to see.
_PLACE = f"{ASIDE}/rehearsal"


def rehearse_all(blueprint: Blueprint, outside: verify.Outside) -> None:
    """For a zygote, before it clones itself: all that its clones do and that changes nothing."""
    os.mkdir(_PLACE, 0o700)
    directory = os.open(_PLACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_TIMES):
            rehearse()
            _look(blueprint, outside)
            _say(InDirectory(directory, _PLACE.encode()))
            process.capabilities()
    finally:
        os.close(directory)


def _look(blueprint: Blueprint, outside: verify.Outside) -> None:
    decoded(blueprint.own)
    try:
        verify.around(blueprint, outside)
    except NotStarted:
        pass  # this is no sandbox


def _say(channel: InDirectory) -> None:
    """What there is to say about a shell."""
    files = Files(channel, 0)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        files.pipes()
        greeting(files.places())
        Line(ours).say(agent_messages.encode(agent_messages.OPENED, 2, files.places()), files.descriptors())
    finally:
        files.close()
        ours.close()
        theirs.close()


def rehearse() -> None:
    """Hear and understand a request, with a descriptor."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        send(theirs, _USUAL, (0,))
        message, descriptors = receive(ours, LONGEST)
        for fd in descriptors:
            os.close(fd)
        decode_request(message).operations()
    finally:
        ours.close()
        theirs.close()
