"""The view of a command that systemd started for us: a fresh root with what the plan names.

Runs as the first process of the new namespaces, in a copy of the host's mounts that nobody
else sees, with the right to mount there: as root, or as an ordinary user in a user namespace.
The manager could bind paths too, but by name and through links, not all names, and a thousand
of them in twenty seconds. Here every path is opened through no link and mounted by descriptor.
"""

from __future__ import annotations

import errno
import os
import stat

from ..linux import mounts
from ..linux.openat2 import open_beneath, open_without_symlinks
from ..linux.syscalls import call
from . import unit_orders as order
from .status import CONFINEMENT, NotStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Row: TypeAlias = tuple[bytes, bytes, int, int, int, bytes]
    #: By owner and group: a user namespace that shows them as the sandbox's user.
    Translations: TypeAlias = Mapping[tuple[int, int], int]

#: Where the new root is put together. It is there on every host that runs systemd, and goes
#: away with the old root; what is shown from below it was opened before it is covered.
_STAGE = "/run"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
}
_PLAIN = mounts.MS_NOSUID | mounts.MS_NODEV
_NOSUID, _NODEV, _RDONLY = mounts.ATTR_NOSUID, mounts.ATTR_NODEV, mounts.ATTR_RDONLY


def build(view: tuple[Row, ...], owner: int, translations: Translations) -> None:
    """Make the new root and move into it; nothing of the old one can be reached afterwards.

    `owner` has the empty directories (-1: whoever we are), and is whom `translations` show.
    """
    os.umask(0)
    trees = {row: _host_tree(row, translations) for row in view if _is_of_the_host(row)}
    devices = {name: _clone(_open(f"/dev/{name}"), _NOSUID) for name in _DEVICES}
    _Root(owner, devices).fill(view, trees)
    # "." twice: the old root ends up on top of the new one, and is taken off at once.
    os.chdir(f"{_STAGE}/root")
    call("pivot_root", b".", b".")
    mounts.umount(".")
    os.chdir("/")


def _is_of_the_host(row: Row) -> bool:
    return row[0] == order.BIND and not row[2] & order.AGAIN


def _host_tree(row: Row, translations: Translations) -> int | None:
    """A detached copy of what a BIND names on the host; None when it is optional and gone."""
    path, flags = os.fsdecode(row[1]), row[2]
    try:
        source = _open(path)
    except FileNotFoundError:
        if flags & order.OPTIONAL:
            return None
        raise NotStarted(CONFINEMENT, f"{path!r} is gone since the plan was made") from None
    except OSError as error:
        why = "there is a link in it now" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)
        raise NotStarted(CONFINEMENT, f"{path!r} cannot be shown: {why}") from None
    namespace = None
    if flags & order.TRANSLATED:
        status = os.fstat(source)
        namespace = translations.get((status.st_uid, status.st_gid))
    writable = bool(flags & order.WRITABLE)
    try:
        return _clone(source, _NOSUID | _NODEV | (0 if writable else _RDONLY), namespace, writable)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        if namespace is not None:
            why = f"its filesystem cannot translate owners ({why}), and the sandbox never runs as root"
        raise NotStarted(CONFINEMENT, f"{path!r} cannot be shown: {why}") from None


def _open(path: str) -> int:
    return open_without_symlinks(path, os.O_PATH)


def _clone(source: int, attributes: int, namespace: int | None = None, must_translate: bool = False) -> int:
    """A detached copy of the mounts at `source`, which is closed."""
    try:
        tree = mounts.clone_tree(source)
        if namespace is not None:
            _translate(tree, namespace, must_translate)
        mounts.set_attributes(tree, attributes)
        return tree
    finally:
        os.close(source)


def _translate(tree: int, namespace: int, must: bool) -> None:
    try:
        mounts.map_ids(tree, namespace)
    except OSError:
        # Something mounted below cannot be translated, or all of it: shown as anybody sees it.
        try:
            mounts.map_ids(tree, namespace, recursive=False)
        except OSError:
            if must:
                raise


class _Root:
    """The new root while it is being filled."""

    def __init__(self, owner: int, devices: Mapping[str, int]) -> None:
        self._owner, self._devices = owner, devices
        mounts.mount("tmpfs", _STAGE, "tmpfs", flags=_PLAIN, options="mode=0700,size=16m")
        os.mkdir(f"{_STAGE}/root")
        self._covers = 0
        self._root = -1
        self._own: set[int] = set()  # the file systems that we made: only there may anything be created
        self._opened: list[int] = []  # during one operation

    def fill(self, view: tuple[Row, ...], trees: Mapping[Row, int | None]) -> None:
        """Carry out the operations, in order."""
        for row in view:
            try:
                self._carry_out(row, trees)
            except OSError as error:
                why = os.strerror(error.errno or 0)
                raise NotStarted(CONFINEMENT, f"{os.fsdecode(row[1])!r} cannot be made: {why}") from None
            while self._opened:
                os.close(self._opened.pop())

    def _carry_out(self, row: Row, trees: Mapping[Row, int | None]) -> None:
        kind, path, flags, mode, size, data = row
        name = os.fsdecode(path)
        if kind == order.BIND and flags & order.AGAIN:
            self._bind_again(name, flags)
        elif kind == order.BIND:
            tree = trees[row]
            if tree is not None:
                self._attach(tree, name, flags)
        elif kind == order.EMPTY:
            self._empty(name, flags, mode, size)
        elif kind == order.MASK:
            # Read-only, so that not even its owner changes its mode.
            self._attach(self._cover(b"", 0), name, flags | order.BELOW)
        elif kind == order.FILE:
            self._file(name, flags, data)
        elif kind == order.LINK:
            os.symlink(data, os.path.basename(path), dir_fd=self._own_directory(name))
        elif kind == order.DEVICES:
            self._fill_devices(name)
        elif kind == order.PROCESSES:
            # Processes that may not be looked into, ourselves first of all, do not exist here.
            target, flags = mounts.path_of(self._place(name, True, flags)), _PLAIN | mounts.MS_NOEXEC
            mounts.mount("proc", target, "proc", flags=flags, options="hidepid=2")
        elif kind == order.SEAL:
            mounts.set_attributes(self._open(name), _RDONLY, recursive=False)

    def _empty(self, path: str, flags: int, mode: int, size: int) -> None:
        options = f"mode={mode:o},size={size}"
        if path == "/":
            target = f"{_STAGE}/root"
        else:
            target = mounts.path_of(self._place(path, True, flags))
            if self._owner >= 0 and mode:
                options += f",uid={self._owner},gid={self._owner}"
        mounts.mount("tmpfs", target, "tmpfs", flags=_PLAIN, options=options)
        if path == "/":
            self._root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = self._open(path)
        if mode:
            self._own.add(os.fstat(fd).st_dev)
        else:  # hidden: not even its owner changes the mode of a read-only file system
            mounts.set_attributes(fd, _RDONLY, recursive=False)

    def _bind_again(self, path: str, flags: int) -> None:
        """A mount of its own over itself: it cannot be renamed, removed or replaced."""
        fd = self._place(path, False, flags | order.BELOW)
        tree = mounts.clone_tree(fd)
        if not flags & order.WRITABLE:
            mounts.set_attributes(tree, _RDONLY)
        mounts.attach(tree, fd)
        os.close(tree)

    def _file(self, path: str, flags: int, content: bytes) -> None:
        if flags & order.BELOW:
            self._attach(self._cover(content, 0o444), path, flags)
            return
        directory = self._own_directory(path)
        options = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        _write(os.open(os.path.basename(path), options, 0o600, dir_fd=directory), content, 0o444)

    def _fill_devices(self, path: str) -> None:
        self._empty(path, 0, 0o755, 1 << 20)
        for name, tree in self._devices.items():
            self._attach(tree, f"{path}/{name}", 0)
        terminals = mounts.path_of(self._place(f"{path}/pts", True, 0))
        options = "newinstance,ptmxmode=0666,mode=620"
        mounts.mount(
            "devpts", terminals, "devpts", flags=mounts.MS_NOSUID | mounts.MS_NOEXEC, options=options
        )
        directory = self._open(path)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, name, dir_fd=directory)

    def _cover(self, content: bytes, mode: int) -> int:
        """A detached read-only file with this content, to lie over another."""
        self._covers += 1
        path = f"{_STAGE}/cover{self._covers}"
        _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), content, mode)
        return _clone(_open(path), _NOSUID | _NODEV | _RDONLY)

    def _attach(self, tree: int, path: str, flags: int) -> None:
        mounts.attach(tree, self._place(path, stat.S_ISDIR(os.fstat(tree).st_mode), flags))
        os.close(tree)

    def _open(self, path: str) -> int:
        """What is at `path` in the new root, through no link."""
        fd = open_beneath(self._root, path.lstrip("/") or ".", os.O_PATH | os.O_NOFOLLOW)
        self._opened.append(fd)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise NotStarted(CONFINEMENT, f"a link has been put in the way of {path!r}")
        return fd

    def _place(self, path: str, directory: bool, flags: int) -> int:
        """The place to mount something at `path`, made if need be, where it is ours to make."""
        try:
            return self._open(path)
        except FileNotFoundError:
            if flags & order.BELOW:
                raise NotStarted(CONFINEMENT, f"{path!r} is gone since the plan was made") from None
        parent, name = self._own_directory(path), os.path.basename(path)
        if directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=parent))
        return self._open(path)

    def _own_directory(self, path: str) -> int:
        """The parent of `path`, in a file system of ours: nothing is ever created in the user's tree."""
        parent = self._place(os.path.dirname(path), True, 0)
        if os.fstat(parent).st_dev not in self._own:
            raise NotStarted(
                CONFINEMENT, f"{path!r} is not there, and is not made in a directory of the host"
            )
        return parent


def _write(fd: int, content: bytes, mode: int) -> None:
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
