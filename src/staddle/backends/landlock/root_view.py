"""Plan -> the mount namespace with the files of root's sandbox, which does not run as root.

Root becomes a user that owns nothing. Each grant is cloned in place, with its owner mapped to that user.
Private directories are mounted over the host's, as is an /etc with only the plan's files. If a parent of
a grant cannot be traversed by everybody, an empty directory covers it.
"""

from __future__ import annotations

import os
import stat

from ..._value import Value
from ...hostinfo.toolchains import ORIGIN as VIRTUAL_ENVIRONMENT
from ...paths import KERNEL_TREES, above, covers, upward
from ...policy import system
from .rules import ASKS_OVER_TCP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...policy.plan import Plan, Text

#: Shown unchanged: everybody may read them, and the plan grants no write in them.
_AS_IT_IS = (*system.DIRECTORIES["linux"], *KERNEL_TREES)
#: Rebuilt from the plan's grants, files and links below it.
_MADE_ANEW = "/etc"
#: Size for directories, links and small files.
_SMALL = 16 << 20


class RootView(Value):
    """The mounts, files and links that `inside.root_view` makes, as text."""

    trees: tuple[tuple[str, int, int, bool], ...]
    empty: tuple[tuple[str, int, int], ...]
    texts: tuple[tuple[str, bytes], ...]
    links: tuple[tuple[str, str], ...]


def view(plan: Plan, uid: int, home: str) -> RootView:
    """The view of `plan` for a sandbox user `uid` with this home directory."""
    trees: dict[str, tuple[int, int, bool]] = {}
    for grant in plan.grants:
        if grant.access == "write":
            trees[grant.path] = (*_owner(grant.path), False)
        elif covers(_MADE_ANEW, grant.path):  # everybody may read it; it keeps its owner
            trees[grant.path] = (-1, -1, True)
        elif not any(covers(place, grant.path) for place in _AS_IT_IS):
            trees[grant.path] = (*_owner(grant.path), True)
    for socket in plan.sockets:
        if socket.present:  # the user must own it to connect, and must not change it
            trees.setdefault(socket.path, (*_owner(socket.path), True))
    most = plan.limits.disk
    empty = {
        item.path: (item.mode, item.size if most is None else min(item.size, most))
        for item in plan.scratch
        if _is_directory(item.path)
    }
    empty.setdefault("/tmp", (0o1777, most or 0))
    if _MADE_ANEW not in trees:
        empty[_MADE_ANEW] = (0o755, _SMALL)
    for path in trees:
        obstacle = _obstacle(path, trees, empty)
        if obstacle:
            empty[obstacle] = (0o755, _SMALL)
    return RootView(
        trees=tuple((path, *row) for path, row in sorted(trees.items())),
        empty=tuple((path, *row) for path, row in sorted(empty.items())),
        texts=tuple(
            (text.path, as_user(text, plan, uid, home)) for text in plan.texts if not text.mode & 0o200
        ),
        # The home's files are not made here: a virtual environment in it would be only an interpreter.
        links=tuple((link.path, link.target) for link in plan.links if link.origin != VIRTUAL_ENVIRONMENT),
    )


def _owner(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_uid, found.st_gid


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _obstacle(
    path: str, trees: dict[str, tuple[int, int, bool]], empty: dict[str, tuple[int, int]]
) -> str | None:
    """The outermost directory above `path` that an unprivileged user may not traverse."""
    for directory in reversed(list(above(path))):
        if directory in empty or directory == "/":
            continue
        around = next((place for place in upward(directory) if place in trees or place in empty), "")
        if around in empty:
            continue  # staddle makes the directories there
        found = os.lstat(directory)
        owned = around in trees and trees[around][0] == found.st_uid
        if not owned and not found.st_mode & stat.S_IXOTH:
            return directory
    return None


def as_user(text: Text, plan: Plan, uid: int, home: str) -> bytes:
    """The content of `text`; account files get the real user id of the plan's user."""
    if text.path not in ("/etc/passwd", "/etc/group"):
        over_tcp = text.content == system.RESOLV_CONF
        return text.content + b"options %s\n" % ASKS_OVER_TCP.encode() if over_tcp else text.content
    lines = []
    for line in text.content.split(b"\n"):
        cells = line.split(b":")
        if cells[0] == os.fsencode(plan.identity.user) and len(cells) >= 4:
            cells[2] = b"%d" % uid
            if text.path == "/etc/passwd":
                cells[3], cells[5] = b"%d" % uid, os.fsencode(home)
        lines.append(b":".join(cells))
    return b"\n".join(lines)
