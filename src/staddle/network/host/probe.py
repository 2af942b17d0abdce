"""Test in a child process whether this kernel can redirect every port to one listener. Changes nothing."""

from __future__ import annotations

import os

from ..._value import Value
from ...interrupts import uninterrupted
from ...ipc.namespace_spec import NetworkSpec
from ...linux.syscalls import call
from ...linux.userns import CLONE_NEWNET, CLONE_NEWUSER, map_ids
from ..namespace.setup import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SMALLEST = NetworkSpec(resolver=True, gates=((bytes((192, 0, 2, 0)), 24, ()),))
_REDIRECTS, _TELLS, _V6, _FAILED = 1, 2, 4, 128


class NetworkSupport(Value):
    """The network features that a sandbox can have here. All False without namespaces."""

    works: bool
    redirects: bool
    tells: bool
    v6: bool


def probe() -> NetworkSupport:
    """Set up a network namespace as for a sandbox, and report the result.

    Without `redirects`, `NetworkSpec.unheld` lists the limits of a policy. Without `tells`, packets refused
    by address cause no event.
    """
    status = uninterrupted(_tried)
    code = os.waitstatus_to_exitcode(status)
    works = 0 <= code < _FAILED
    return NetworkSupport(works, *(works and bool(code & bit) for bit in (_REDIRECTS, _TELLS, _V6)))


def _tried() -> int:
    child = os.fork()
    if child == 0:
        _try()
    return os.waitpid(child, 0)[1]


def _try() -> NoReturn:
    code = _FAILED
    try:
        uid, gid = os.geteuid(), os.getegid()
        call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        map_ids(uid, gid, 0, 0)
        ready = prepare(_SMALLEST)
        tells = any(label[0] == "refusals" for label, _ in ready.sockets)
        code = ready.redirects * _REDIRECTS | tells * _TELLS | ready.v6 * _V6
    finally:
        os._exit(code)
