"""For Landlock as root: a mount namespace in which an unprivileged user finds the granted paths.

Everything here runs with root's rights, before the identity is changed, in a namespace without other
processes. The kernel removes it when its last process ends. Every path of the host is opened by descriptor
and through no link.

This does not use `mounts.builder.Builder`, which builds a fresh root of its own directories. Here the host's
root stays, and clones of trees cover the trees in place. Files may be created only in the empty directories
that we mounted over the host's.
"""

from __future__ import annotations

import errno
import os
import stat

from ..ipc.wire import CONFINEMENT, NotStarted
from ..linux import mounts
from ..linux.fileio import write_all
from ..linux.openat2 import open_without_symlinks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ipc.exec_spec import ExecSpec

_QUIET = mounts.MS_NOSUID | mounts.MS_NODEV
#: Files of a new /proc that still describe the whole machine. No confined program needs them.
_MACHINE_WIDE = ("keys", "key-users", "timer_list", "kallsyms", "cmdline", "sched_debug", "kcore", "kmsg")


def build(spec: ExecSpec) -> None:
    """Carry out `trees`, `empty`, `texts`, `links` and `processes_hidden`; do nothing if all are empty."""
    if not (spec.trees or spec.empty or spec.processes_hidden):
        return
    import resource

    # Every tree stays open until it is mounted, so raise the limit; the command gets the original limit back.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        _build(spec)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _build(spec: ExecSpec) -> None:
    step = "a mount namespace cannot be had"
    try:
        mounts.private_namespace()
        trees: dict[bytes, int] = {}
        for path, owner, group, read_only in spec.trees:
            step = f"{os.fsdecode(path)!r} cannot be given to the sandbox's user"
            trees[path] = _clone(path, owner, group, spec.uid, bool(read_only))
        empty = {path: (mode, size) for path, mode, size in spec.empty}
        # Deeper places cover those above them, and a granted tree covers an empty directory at the same
        # place.
        places = {*trees, *empty}
        for path in sorted(places, key=lambda path: (path.count(b"/"), path)):
            step = f"{os.fsdecode(path)!r} cannot be put in its place"
            if _innermost(path, places) in empty:
                _make_way(path, None if path in empty or _is_directory(trees[path]) else b"")
            if path in empty:
                _mount_empty(path, *empty[path], spec.uid)
            if path in trees:
                _attach(path, trees[path])
        for path, content in spec.texts:
            step = f"{os.fsdecode(path)!r} cannot be made"
            if _innermost(path, places) in empty:  # never in a tree: it is the host's
                _make_way(path, content)
        for path, target in spec.links:
            step = f"{os.fsdecode(path)!r} cannot be made"
            if _innermost(path, places) in empty:
                _make_directories(path)
                os.symlink(target, path)
        if spec.processes_hidden:
            step = "other processes cannot be hidden"
            mounts.mount("proc", "/proc", "proc", flags=_QUIET | mounts.MS_NOEXEC, options="hidepid=2")
        step = "the machine's keys cannot be hidden"
        for name in _MACHINE_WIDE:
            if os.path.exists(f"/proc/{name}"):
                mounts.mount("/dev/null", f"/proc/{name}", flags=mounts.MS_BIND)
    except OSError as error:
        raise NotStarted(CONFINEMENT, f"{step}: {error.strerror}") from None


def _innermost(path: bytes, places: set[bytes]) -> bytes | None:
    """Return the innermost of `places` that contains `path`."""
    while path := path.rpartition(b"/")[0]:
        if path in places:
            return path
    return None


def _is_directory(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def _clone(path: bytes, owner: int, group: int, unprivileged_uid: int, read_only: bool) -> int:
    """Clone the tree at `path`, detached, with `owner` shown as the sandbox's user."""
    fd = open_without_symlinks(os.fsdecode(path), os.O_PATH)
    try:
        tree = mounts.clone_tree(fd)
    finally:
        os.close(fd)
    mounts.set_attributes(
        tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV | (mounts.ATTR_RDONLY if read_only else 0)
    )
    if owner >= 0 and owner != unprivileged_uid:
        from ..linux.idmaps import translation

        try:
            mounts.map_ids(tree, translation(owner, group, unprivileged_uid))
        except OSError as error:
            # Some file systems cannot. Then the user has the access of every other user: less, never more.
            if error.errno != errno.EINVAL or not read_only:
                raise
    return tree


def _mount_empty(path: bytes, mode: int, size: int, unprivileged_uid: int) -> None:
    fd = open_without_symlinks(os.fsdecode(path), os.O_PATH | os.O_DIRECTORY)
    try:
        options = f"mode={mode:o}" + (f",size={size}" if size > 0 else "")
        if not mode & 0o005:  # only its owner may enter, as in a home: the sandbox's user
            options += f",uid={unprivileged_uid},gid={unprivileged_uid}"
        mounts.mount("tmpfs", mounts.path_of(fd), "tmpfs", flags=_QUIET, options=options)
    finally:
        os.close(fd)


def _attach(path: bytes, tree: int) -> None:
    fd = open_without_symlinks(os.fsdecode(path), os.O_PATH)
    try:
        mounts.attach(tree, fd)
    finally:
        os.close(fd)
        os.close(tree)


def _make_way(path: bytes, content: bytes | None) -> None:
    """Create `path` (a file with `content`, or a directory) and its parents, in an empty place of ours."""
    _make_directories(path)
    if os.path.lexists(path):
        return
    if content is None:
        os.mkdir(path, 0o755)
        return
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)


def _make_directories(path: bytes) -> None:
    """Create the missing parents of `path`."""
    parent = path.rpartition(b"/")[0]
    if parent and not os.path.lexists(parent):
        _make_directories(parent)
        os.mkdir(parent, 0o755)
