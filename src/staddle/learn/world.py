"""The view of a watched command: the host's files as far as its user may read them, without the secrets.

`readable` adds to a policy the directories in which programs keep data. The denies of the policy, of its
preset and of this host stay, so keys, logins and sockets of other programs cannot be read while learning.
Files of /etc that only root may read are denied as well.
"""

from __future__ import annotations

import os
import stat

from ..hostinfo.resolution import HostPaths, PathContext
from ..paths import covers, not_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy import Policy
    from ..policy.plan import Plan

#: Directories of `/` that are not granted: the kernel's, private ones, and those with other users' files.
_NOT_TOP = frozenset(("proc", "sys", "dev", "run", "tmp", "home", "root", "boot", "etc", "var", "lost+found"))
#: Files of /etc that each sandbox has for itself.
_OWN_IN_ETC = frozenset(("resolv.conf", "hosts", "hostname", "passwd", "group", "nsswitch.conf", "mtab"))
#: Directories in a home with one tool, of which the toolchains grant what is used.
_ONE_TOOL = frozenset((".pyenv", ".nvm", ".rbenv", ".asdf", ".volta", ".rustup", ".sdkman", "mise", "shims"))
#: How deep a home is granted in parts, and the most entries of one directory in it.
_DEEPEST, _MOST_IN_HOME = 4, 400
#: The most entries of /etc that are looked at.
_MOST = 20_000


def home() -> str:
    """Return the home of the user who starts the sandbox, without links."""
    return os.path.realpath(PathContext("/").home)


def readable(policy: Policy, plan: Plan) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy, whose plan is `plan`, with the files that this user may read.

    Also returns the files of /etc that other users may not read, which are denied.
    """
    granted, private = _etc("/etc", plan)
    for name in sorted(os.listdir("/")):
        path = f"/{name}"
        if name not in _NOT_TOP and _others_may_read(path) and HostPaths().find(path).path == path:
            granted.append(path)
    granted += _around(home(), plan, _DEEPEST)
    granted = [each for each in granted if not not_for("read", each)]
    return policy.with_read(*granted).with_deny(*private), tuple(private)


def _around(place: str, plan: Plan, depth: int) -> list[str]:
    """Return `place`, or what is in it if the plan grants something below it.

    A toolchain is granted in parts: what is around these only chooses between them.
    """
    if plan.shows(place) and depth < _DEEPEST:
        return []
    below = any(covers(place, grant.path) for grant in plan.grants)
    if depth < _DEEPEST and not below:
        return [place] if os.access(place, os.R_OK) else []
    if depth == 0 or os.path.basename(place) in _ONE_TOOL:
        return []
    try:
        with os.scandir(place) as entries:
            found = sorted((not each.is_dir(follow_symlinks=False), each.path) for each in entries)
    except OSError:
        return []
    paths = [path for _, path in found[:_MOST_IN_HOME] if not os.path.islink(path)]
    return [each for path in paths for each in _around(path, plan, depth - 1)]


def _etc(place: str, plan: Plan) -> tuple[list[str], list[str]]:
    """Return the entries of /etc that every user may read, and what is private below them.

    Entries that every sandbox has for itself stay as they are.
    """
    granted, private, looked = [], [], 0
    with os.scandir(place) as entries:
        tops = sorted(entry.path for entry in entries)
    for top in tops:
        if os.path.islink(top) or os.path.basename(top) in _OWN_IN_ETC:
            continue
        if not _others_may_read(top):
            private.append(top)
            continue
        if plan.access(top) != "none":
            continue
        granted.append(top)
        for directory, below, files in os.walk(top):
            for name in (*below, *files):
                looked += 1
                path = os.path.join(directory, name)
                if not os.path.islink(path) and not _others_may_read(path):
                    private.append(path)
            below[:] = [name for name in below if os.path.join(directory, name) not in private]
            if looked > _MOST:
                granted.remove(top)  # too much to look at: its use is reported as hidden
                break
    return granted, private


def _others_may_read(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return mode & needed == needed and (stat.S_ISDIR(mode) or stat.S_ISREG(mode))
