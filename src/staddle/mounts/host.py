"""The host's directories for the layout, read without following links; and their owners, for root.

A sandbox that root starts runs as an unused id. Its granted files are shown through mounts that translate the
owner to that id. Only root can make these, and not every filesystem supports them.
"""

from __future__ import annotations

import errno
import os
import stat

from .._value import Value
from ..errors import LaunchFailed, PolicyNotEnforceable
from ..linux import mounts
from ..linux.openat2 import open_without_symlinks
from .operations import Bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Literal, Protocol, TypeAlias

    #: Returns, by owner and group, a user namespace that shows them as the sandbox's user; None without one.
    Translation: TypeAlias = Callable[[int, int], int | None]

    from .operations import DeviceNode, Operation

    Kind = Literal["directory", "file", "link"]

    class View(Protocol):
        """The questions of the layout; tests answer them from a dictionary."""

        def kind(self, path: str) -> Kind | None:
            """Return the kind of the entry at `path`; None if it is missing or a link leads to it."""

        def entries(self, path: str) -> tuple[Entry, ...]:
            """Return the entries of a directory."""

        def searchable(self, path: str) -> bool:
            """Whether names in this directory can be reached at all."""


_CHANGED = "if it moved on purpose, try again; otherwise see what else is changing it"


class Entry(Value):
    """One name in a directory. `target` is that of a link."""

    name: str
    kind: Kind
    target: str = ""


class Host:
    """The real host."""

    def kind(self, path: str) -> Kind | None:
        """Return the kind of the entry at `path`, reached without any link; it may itself be a link."""
        try:
            fd = open_without_symlinks(path, os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return _kind(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def entries(self, path: str) -> tuple[Entry, ...]:
        """Return the names in `path`, sorted. OSError if it cannot be listed."""
        fd = open_without_symlinks(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = []
            for name in sorted(os.listdir(fd)):
                try:
                    kind = _kind(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
                    target = os.readlink(name, dir_fd=fd) if kind == "link" else ""
                except FileNotFoundError:
                    continue  # deleted meanwhile
                found.append(Entry(name, kind, target))
            return tuple(found)
        finally:
            os.close(fd)

    def searchable(self, path: str) -> bool:
        """Whether we may look up names in `path`; if not, the sandbox may not either."""
        try:
            os.close(open_without_symlinks(f"{path}/.", os.O_PATH))
        except PermissionError:
            return False
        except OSError:
            return True
        return True


def _kind(mode: int) -> Kind:
    return "directory" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def open_named(path: str) -> int:
    """Open `path` to mount or check it; LaunchFailed if it is not as planned."""
    try:
        return open_without_symlinks(path, os.O_PATH)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise LaunchFailed(
                "paths cannot be opened without following links",
                why="the kernel is older than 5.6, or a filter around this process hides openat2",
                fix="run staddle outside that sandbox",
            ) from None
        why = "there is a link in it now" if error.errno == errno.ELOOP else (error.strerror or "").lower()
        raise LaunchFailed(
            f"{path!r} is not as it was when the policy was compiled", why=why, fix=_CHANGED
        ) from None


def open_device(operation: DeviceNode) -> int:
    """Open the device to mount or check it, without opening the driver; LaunchFailed if it is another."""
    descriptor = open_named(operation.path)
    found = os.fstat(descriptor)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != os.makedev(operation.major, operation.minor):
        os.close(descriptor)
        raise LaunchFailed(
            f"{operation.path!r} is not as it was when the policy was compiled",
            why=f"it is no longer the device {operation.major}:{operation.minor}",
            fix=_CHANGED,
        )
    return descriptor


def check_place(path: str, *, directory: bool) -> None:
    """Check that `path` of the host exists, is of that kind, and has no links: we create nothing there."""
    descriptor = open_named(path)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) != directory:
            kind = "directory" if directory else "file"
            raise LaunchFailed(
                f"{path!r} is not as it was when the policy was compiled",
                why=f"it is no longer a {kind}",
                fix=_CHANGED,
            )
    finally:
        os.close(descriptor)


# Owners, in a sandbox that root starts.

#: Root's sandbox sees these as any user does: files that only root may read stay root's.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/snap")


def needs_translation(path: str, writable: bool = False) -> bool:
    """Whether root's sandbox sees this path with its owner translated."""
    return writable or not any(path == place or path.startswith(place + "/") for place in SYSTEM)


def show_as_ours(tree: int, operation: Bind, translation: Callable[[], int | None]) -> None:
    """Show the detached `tree` of a grant with its owner translated by `translation`."""
    if not needs_translation(operation.outside, operation.writable):
        return
    try:
        namespace = translation()
        if namespace is not None:
            translate(tree, namespace)
    except OSError as error:
        # A read-only tree is shown as any user sees it: less, never more.
        if operation.writable:
            raise unwritable(operation.outside, error.strerror or str(error)) from None


def translate(tree: int, user_namespace: int) -> None:
    """Show the detached `tree` with owners from `user_namespace`. OSError: its filesystem cannot."""
    try:
        mounts.map_ids(tree, user_namespace)
    except OSError:
        # A mount below cannot be translated: that part is shown as any user sees it.
        mounts.map_ids(tree, user_namespace, recursive=False)


_PLAIN_ATTRIBUTES = mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def not_built(why: str) -> LaunchFailed:
    """Return the error for a view that cannot be built."""
    return LaunchFailed(
        "the sandbox's view of the filesystem could not be built",
        why=why,
        fix="`staddle doctor` tries every step",
    )


def take(operation: Bind, translation: Translation | None = None, *, private: bool = False) -> int | None:
    """Return a detached copy of the path of a grant; None if it is optional and gone.

    With `private`, later mounts of the host do not appear in it: for a tree outside of an own mount
    namespace.
    """
    try:
        source = open_named(operation.outside)
    except LaunchFailed:
        if operation.optional:
            return None
        raise
    try:
        status = os.fstat(source)
        tree = mounts.clone_tree(source)
    finally:
        os.close(source)
    try:
        attributes = _PLAIN_ATTRIBUTES | (0 if operation.writable else mounts.ATTR_RDONLY)
        mounts.set_attributes(tree, attributes, private=private)
        if translation is not None:
            show_as_ours(tree, operation, lambda: translation(status.st_uid, status.st_gid))
    except BaseException:
        os.close(tree)
        raise
    return tree


def unwritable_grants(
    operations: Iterable[Operation], unprivileged_uid: int
) -> Iterator[PolicyNotEnforceable]:
    """Yield errors for writable grants that cannot be shown as owned by `unprivileged_uid`.

    Changes nothing.
    """
    for operation in operations:
        if isinstance(operation, Bind) and operation.writable and not operation.again:
            why = untranslatable(operation.outside, unprivileged_uid)
            if why:
                yield unwritable(operation.outside, why)


def unwritable(path: str, why: str) -> PolicyNotEnforceable:
    """Return the error for a file system that cannot show its files with another owner to root's sandbox."""
    return PolicyNotEnforceable(
        f"{path!r} cannot be made writable for a sandbox that root starts",
        why=f"its filesystem cannot translate owners ({why}), and the sandbox never runs as root",
        fix="run staddle as the user who owns it, or use a directory on ext4, xfs, btrfs or tmpfs",
    )


def untranslatable(path: str, unprivileged_uid: int) -> str:
    """Return why `path` cannot be shown as owned by `unprivileged_uid`; empty if it can."""
    from ..linux.idmaps import translation  # not in the process that only carries out operations

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
