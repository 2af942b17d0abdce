"""Run by root: whose files are shown as the sandbox's own.

The sandbox is never root, it runs as an unused id. What it is granted is shown
through mounts that translate the owner to that id; only root can make those, and not every
filesystem takes part.
"""

from __future__ import annotations

import os

from ..errors import PolicyNotEnforceable
from ..linux import mounts
from .host import open_named
from .operations import Bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .operations import Operation

#: Shown to root's sandbox as anybody sees them: what only root may read there stays root's.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/snap")


def needs_translation(path: str, writable: bool = False) -> bool:
    """Whether this path is shown to root's sandbox with its owner translated."""
    return writable or not any(path == place or path.startswith(place + "/") for place in SYSTEM)


def translate(tree: int, user_namespace: int) -> None:
    """Show the detached `tree` with owners as `user_namespace` has them. OSError: its filesystem cannot."""
    try:
        mounts.map_ids(tree, user_namespace)
    except OSError:
        # Something mounted below cannot be translated: that part is shown as anybody sees it.
        mounts.map_ids(tree, user_namespace, recursive=False)


def unwritable_grants(
    operations: Iterable[Operation], unprivileged_uid: int
) -> Iterator[PolicyNotEnforceable]:
    """Errors for writable grants that cannot be shown as owned by `unprivileged_uid`. Changes nothing."""
    for operation in operations:
        if isinstance(operation, Bind) and operation.writable and not operation.again:
            why = untranslatable(operation.outside, unprivileged_uid)
            if why:
                yield unwritable(operation.outside, why)


def unwritable(path: str, why: str) -> PolicyNotEnforceable:
    """The error for a file system that cannot show its files with another owner, for root's sandbox."""
    return PolicyNotEnforceable(
        f"{path!r} cannot be made writable for a sandbox that root starts",
        why=f"its filesystem cannot translate owners ({why}), and the sandbox never runs as root",
        fix="run staddle as the user who owns it, or use a directory on ext4, xfs, btrfs or tmpfs",
    )


def untranslatable(path: str, unprivileged_uid: int) -> str:
    """Why what is at `path` cannot be shown as belonging to `unprivileged_uid`; empty when it can."""
    from ..linux.idmaps import translation  # not in the process that only carries out

    source = open_named(path)
    try:
        tree = mounts.clone_tree(source)
        try:
            status = os.fstat(source)
            translate(tree, translation(status.st_uid, status.st_gid, unprivileged_uid))
        finally:
            os.close(tree)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(source)
    return ""
