"""The step before bubblewrap if the policy allows network access: a network with a gateway.

    python -I -S .../inside/__main__.py bwrap DESCRIPTOR PRLIMIT... BWRAP...

This process starts the gateway as a child in the host's network, and makes a network namespace with the
sockets that the gateway serves. It enters the staged view, if there is one. Then it becomes bubblewrap, which
shares that network with its command and has no rights over it. Until then it has the rights of its caller.
The gateway lives as long as the process that we become.
"""

from __future__ import annotations

import os

from .._value import Value
from ..ipc import wire
from ..ipc.namespace_spec import NETWORK_ROW_SHAPE
from ..ipc.wire import ARGUMENTS, EXEC, NotStarted, not_started, tell
from ..linux import process, userns
from ..linux.syscalls import call
from . import namespace_launcher as parent_process
from .gateway import CommandGateway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..ipc.namespace_spec import NetworkRow

MAGIC = b"staddle-before-bwrap-1\n"


class PreludeSpec(Value):
    """The steps before bubblewrap starts."""

    #: The descriptor for reports of failures, which bubblewrap uses too; and the pid of the process that
    #: asked.
    status: int
    launcher: int
    #: Rows of the network namespace's setup, and the gateway's socket ends: see `CommandGateway`.
    network: tuple[NetworkRow, ...]
    gateway: tuple[int, int, int]
    #: Descriptors of the namespaces with the staged view (-1: there is none).
    user_namespace: int
    mount_namespace: int
    #: An id without an account, to become instead of root; -1 for an ordinary user.
    unprivileged_uid: int


_SHAPES = wire.shapes(PreludeSpec, NetworkRow=NETWORK_ROW_SHAPE)


def encode(spec: PreludeSpec) -> bytes:
    """Return the bytes for the memory file."""
    return wire.pack(MAGIC, spec, _SHAPES)


def decode(data: bytes) -> PreludeSpec:
    """Return the specification in `data`; raise Malformed if it is none."""
    return wire.unpack(MAGIC, data, PreludeSpec, _SHAPES)


def main(words: list[str]) -> NoReturn:
    """Prepare, and become the command in `words`. Never returns."""
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
    # bubblewrap sets a death signal too, but only after its whole setup.
    parent = os.getppid()
    parent_process.die_with(parent, spec.launcher, -1)
    spaces = (spec.user_namespace, spec.mount_namespace)
    for fd in (*spec.gateway, *spaces):
        if fd >= 0:
            os.set_inheritable(fd, False)  # bubblewrap must not pass our descriptors on
    gateway = CommandGateway(spec.gateway)
    for fd, kind in zip(spaces, (userns.CLONE_NEWUSER, 0), strict=True):
        if fd >= 0:
            call("setns", fd, kind)
    # Root may create a network namespace, and so may a process that entered a staged view. Others get the
    # right in their own user namespace, in which all ids stay the same.
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
        # A change of identity has cleared the death signal.
        parent_process.die_with(parent, spec.launcher, -1)
    elif any(process.capabilities()):
        # The exec would drop them anyway, as our id is not 0.
        process.clear_capabilities()
