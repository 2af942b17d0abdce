"""Run the hot code paths before cloning, so that the pages the interpreter writes to are shared.

Memory that two processes share since a clone is copied page by page when one of them writes, and an
interpreter writes to whatever it uses. This is done at two times at which no caller waits:

    before the first clone    the interpreter's caches, and code that it rewrites when it has run some
                              times, are then the same for all
    in each clone             pages that receiving and decoding a request would copy are copied already
"""

from __future__ import annotations

import _socket
import os

from ..inside.agent import verify
from ..inside.agent.greeting import greeting
from ..inside.agent.processes import QueuedSocket
from ..inside.agent.shell_files import ChannelFiles, InDirectory
from ..ipc import agent_messages
from ..ipc.descriptors import receive, send
from ..ipc.forkserver_messages import LONGEST, SandboxRequest, decode_request, encode
from ..ipc.status import NotStarted
from ..linux import process
from ..mounts.operations import Bind
from ..mounts.rows import decoded, encoded
from ..mounts.shared_view import ASIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.forkserver_messages import ForkServerConfig

#: As most requests are.
_VIEW = encoded((Bind("/workspace", True, "workspace", source="/w"),))
_USUAL = encode(SandboxRequest(b"/w", 1, 1, b"/s/1/upper", b"/s/1/work", (), _VIEW))
#: From the eighth time on CPython (3.11) runs code in a form of its own.
_TIMES = 12
#: A directory of the fork server's own, in a part that no sandbox sees.
_PLACE = f"{ASIDE}/prewarm"


def prewarm_all(config: ForkServerConfig, outside: verify.Outside) -> None:
    """For a fork server, before it clones itself: run all that its clones run and that changes nothing."""
    os.mkdir(_PLACE, 0o700)
    directory = os.open(_PLACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_TIMES):
            prewarm_request()
            _look(config, outside)
            _say(InDirectory(directory, _PLACE.encode()))
            process.capabilities()
    finally:
        os.close(directory)


def _look(config: ForkServerConfig, outside: verify.Outside) -> None:
    """Run the checks of `verify`, which fail here: this is no sandbox."""
    decoded(config.own)
    try:
        verify.around(config, outside)
    except NotStarted:
        pass  # this is no sandbox


def _say(channel: InDirectory) -> None:
    """Encode and send the announcement of a shell."""
    files = ChannelFiles(channel, 0)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        files.pipes()
        greeting(files.paths())
        QueuedSocket(ours).send(
            agent_messages.encode(agent_messages.OPENED, 2, files.paths()), files.descriptors()
        )
    finally:
        files.close()
        ours.close()
        theirs.close()


def prewarm_request() -> None:
    """Receive and decode a request, with a descriptor."""
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
