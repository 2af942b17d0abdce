"""Mask UNIX sockets of the host that are in granted directories but were not granted by name.

A directory that can only be read does not stop connect(): the sockets in it have to be covered one by
one. The kernel lists those that were bound by a whole path in our network. Not found, and not
covered, is one that is bound later, by a relative path, or in another network (a container's).
"""

from __future__ import annotations

import os
import stat

from ..errors import PolicyNotEnforceable
from ..linux.fileio import read_whole
from .paths import covers
from .plan import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import Grant, Plan

_TABLE = "/proc/net/unix"
#: Each takes a mount.
_MOST = 1000
#: Where no server has its socket; looking is not worth the time when nothing else is granted.
_SYSTEM = "system"


def mask_host_sockets(plan: Plan, *, but: str = "", table: str = _TABLE) -> Plan:
    """The plan with each socket masked that lies in a granted directory now and is not named in `sockets`.

    Below `but` there is nothing to close. The very same plan, when there is none.
    """
    grants = [grant for grant in plan.grants if grant.directory and grant.path != but]
    if all(grant.origin == _SYSTEM for grant in grants):
        return plan
    named = {socket.path for socket in plan.sockets}
    found = {
        path: which
        for outside, which in _sockets(table)
        if outside not in named
        for path in _seen(plan, grants, outside)
        if not (but and covers(but, path)) and path not in named
    }
    if not found:
        return plan
    if len(found) > _MOST:
        raise PolicyNotEnforceable(
            f"the granted directories contain {len(found)} UNIX sockets",
            why=f"each has to be covered, and {_MOST} can be",
            fix="grant less",
        )
    origin = "a socket that is not named"
    return plan.replace(closed=tuple(Closed(path, origin, found[path]) for path in sorted(found)))


def _seen(plan: Plan, grants: list[Grant], outside: str) -> Iterator[str]:
    """Paths inside at which the host's `outside` is seen."""
    for grant in grants:
        shown = grant.source or grant.path
        if covers(shown, outside):
            path = grant.path + outside[len(shown) :]
            if not any(covers(item.path, path) for item in plan.hidden):
                yield path


def _sockets(table: str) -> Iterator[tuple[str, str]]:
    """The real paths of bound sockets that are still there, and which they are."""
    try:
        rows = read_whole(table).split(b"\n")
    except OSError:
        return
    directories: dict[str, str] = {}
    for name in {row.split(b" /", 1)[1] for row in rows if b" /" in row}:
        above, _, last = f"/{os.fsdecode(name)}".rpartition("/")
        if above not in directories:
            directories[above] = os.path.realpath(above or "/")
        path = f"{directories[above].rstrip('/')}/{last}"
        try:
            status = os.lstat(path)
        except OSError:
            continue  # it is gone, or in another file system than ours
        if stat.S_ISSOCK(status.st_mode):
            # Not by its number alone: the next one may get the same.
            yield path, f"{status.st_dev}:{status.st_ino}:{status.st_ctime_ns}"
