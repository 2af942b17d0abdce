"""A process in the network of a single command that makes sockets there for the host program.

    python -I -S .../inside/__main__.py forwarder

Descriptor 0 is its socket to the host program, descriptor 1 the network namespace. It enters that namespace,
drops every capability, and answers requests from `network.host.forward`. It is in no other namespace of the
command, which can neither see nor signal it. It ends when its socket is closed.
"""

from __future__ import annotations

import _socket
import errno
import os

from ..ipc.wire import reason, receive
from ..linux import process, userns
from ..linux.syscalls import call
from ..network.namespace.socket_handoff import ENTERED, answer, is_forward_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_LONGEST = 4096
#: ioctl(2) on a namespace: returns a descriptor of the user namespace that owns it.
_NS_GET_USERNS = 0xB701


def main() -> NoReturn:
    """Serve requests until the socket is closed. Never returns."""
    channel = _socket.socket(fileno=os.dup(0))
    try:
        _enter(1)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        process.close_from(3, keep=(channel.fileno(),))
    except OSError as error:
        channel.send(reason(error))
        os._exit(1)
    channel.send(ENTERED)
    while message := receive(channel, _LONGEST)[0]:
        if is_forward_request(message):
            answer(channel.fileno(), message)
    os._exit(0)


def _enter(network: int) -> None:
    """Enter `network`, and drop all rights."""
    try:
        call("setns", network, userns.CLONE_NEWNET)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        # The creator of a user namespace has every right in it, but only once inside.
        call("setns", call("ioctl", network, _NS_GET_USERNS, 0), userns.CLONE_NEWUSER)
        call("setns", network, userns.CLONE_NEWNET)
    process.no_new_privs()
    process.drop_capabilities()
    process.dumpable(False)
