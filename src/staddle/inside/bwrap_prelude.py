"""The step before bubblewrap, where something outside can be reached: a network with a gateway.

    python -I -S .../inside/__main__.py bwrap DESCRIPTOR PRLIMIT... BWRAP...

It starts the gateway as a child, in the host's network, makes a network namespace with the sockets
that the gateway serves, and becomes bubblewrap, who shares that network with its command and has
no right over it. Where the view was staged, it enters that as well. It has the rights of its
caller until then; the gateway lives as long as the process that we become.
"""

from __future__ import annotations

import os

from .._value import Value
from ..ipc import wire
from ..ipc.network_spec import NETWORK_ROW_SHAPE
from ..ipc.status import ARGUMENTS, EXEC, NotStarted, not_started, tell
from ..linux import process, userns
from ..linux.syscalls import call
from . import parent as parent_process
from .gateway import CommandGateway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..ipc.network_spec import NetworkRow

MAGIC = b"staddle-before-bwrap-1\n"


class PreludeSpec(Value):
    """The steps before bubblewrap starts."""

    #: The descriptor on which a failure is told; bubblewrap tells on it, too. And who asked for all this.
    status: int
    launcher: int
    #: What is made in the network namespace, and the ends of the gateway's sockets: see `CommandGateway`.
    network: tuple[NetworkRow, ...]
    gateway: tuple[int, int, int]
    #: Descriptors of the namespaces that hold the staged view, -1 where there are none.
    user_namespace: int
    mount_namespace: int
    #: An id that no account has, to become in the place of root; -1 for an ordinary user.
    unprivileged_uid: int


_SHAPES = wire.shapes(PreludeSpec, NetworkRow=NETWORK_ROW_SHAPE)


def encode(spec: PreludeSpec) -> bytes:
    """The bytes for the memory file."""
    return wire.pack(MAGIC, spec, _SHAPES)


def decode(data: bytes) -> PreludeSpec:
    """The specification in `data`, or Malformed."""
    return wire.unpack(MAGIC, data, PreludeSpec, _SHAPES)


def main(words: list[str]) -> NoReturn:
    """Do it, and become what follows in `words`. Never returns."""
    status = -1
    try:
        if len(words) < 2 or not words[0].isdecimal():
            raise NotStarted(ARGUMENTS, "usage: bwrap DESCRIPTOR COMMAND...")
        spec = decode(parent_process.contents(int(words[0])))
        status = spec.status
        _prepare(spec)
        try:
            os.execve(words[1], words[1:], dict(os.environ))  # noqa: S606 - never a shell
        except OSError as error:
            raise NotStarted(EXEC, f"{words[1]!r}: {error.strerror}") from None
    except BaseException as error:
        failure = not_started(error)
        tell(status, failure)
        os._exit(failure.code)


def _prepare(spec: PreludeSpec) -> None:
    # bubblewrap asks for the same, but only when it has set everything up.
    parent = os.getppid()
    parent_process.die_with(parent, spec.launcher, -1)
    spaces = (spec.user_namespace, spec.mount_namespace)
    for fd in (*spec.gateway, *spaces):
        if fd >= 0:
            os.set_inheritable(fd, False)  # nothing of ours is left for bubblewrap to hand on
    gateway = CommandGateway(spec.gateway)
    for fd, kind in zip(spaces, (userns.CLONE_NEWUSER, 0), strict=True):
        if fd >= 0:
            call("setns", fd, kind)
    # Root has the right to make one; who entered a staged view has it there; another gets it
    # in a user namespace of its own, in which everybody keeps the id they have.
    if spec.unprivileged_uid >= 0 or spec.user_namespace >= 0:
        call("unshare", userns.CLONE_NEWNET)
    else:
        uid, gid = os.geteuid(), os.getegid()
        call("unshare", userns.CLONE_NEWUSER | userns.CLONE_NEWNET)
        userns.map_ids(uid, gid, uid, gid)
    gateway.give_sockets(spec.network)
    gateway.await_ready()
    if spec.unprivileged_uid >= 0:
        process.become(spec.unprivileged_uid, spec.unprivileged_uid)
        parent_process.die_with(parent, spec.launcher, -1)  # a change of identity has cleared it
    elif any(process.capabilities()):
        # An exec would drop them, as our id is not 0; bubblewrap has none of them in any case.
        process.clear_capabilities()
