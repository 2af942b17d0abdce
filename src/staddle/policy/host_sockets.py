"""Mask UNIX sockets of the host that are in granted directories but were not granted by name.

A read-only directory does not prevent connect(), so each socket in it has to be masked. The kernel lists
sockets that were bound by an absolute path in our network namespace. A socket that is bound later, by a
relative path, or in another network namespace (a container's) is not found and not masked.
"""

from __future__ import annotations

import os
import stat

from ..errors import PolicyNotEnforceable
from ..linux.fileio import read_whole
from ..paths import covers
from .plan import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import Grant, Plan

_TABLE = "/proc/net/unix"
#: Maximum number of masked sockets. Each needs a mount.
_MOST = 1000
#: The origin of system grants, which contain no sockets. With no other grant, the search is skipped.
_SYSTEM = "system"


def mask_host_sockets(plan: Plan, *, but: str = "", table: str = _TABLE) -> Plan:
    """Return the plan with each socket masked that is in a granted directory and not in `sockets`.

    Sockets below `but` are not masked. If there is no such socket, the plan itself is returned.
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
    """Yield the paths inside at which the host's path `outside` is visible."""
    for grant in grants:
        shown = grant.source or grant.path
        if covers(shown, outside):
            path = grant.path + outside[len(shown) :]
            if not any(covers(item.path, path) for item in plan.hidden):
                yield path


def _sockets(table: str) -> Iterator[tuple[str, str]]:
    """Yield the real paths of existing bound sockets, with an identifier for each."""
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
            continue  # deleted, or in another mount namespace
        if stat.S_ISSOCK(status.st_mode):
            # Not the inode number alone, because the next socket may get the same.
            yield path, f"{status.st_dev}:{status.st_ino}:{status.st_ctime_ns}"
