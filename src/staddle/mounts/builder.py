"""Build the view with our own mounts.

Every process that may mount uses this one builder: root's thread, an ordinary user's child in a user
namespace, the first process of a sandbox. They differ in where the tree is attached, who owns its entries,
and which operations they leave to another process. They do not differ in how a path is opened, or in where
entries may be created.

Everything is named by descriptor and looked up without following a link. Nothing is ever created in a file
system that is not ours. Nothing is left behind: all of it is gone with the mount namespace.

Importing this module imports everything it needs: it may run where our files can no longer be read.
"""

from __future__ import annotations

import errno
import os
import stat

from ..linux import mounts
from ..linux.fileio import write_all
from ..linux.openat2 import open_beneath
from .host import not_built, open_device, open_named, take
from .operations import (
    Bind,
    DeviceNode,
    Devices,
    Directory,
    Empty,
    File,
    Mask,
    Overlay,
    ProcMount,
    Seal,
    Symlink,
    tmpfs_options,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from .host import Translation
    from .operations import Operation

    _Kind = TypeVar("_Kind", bound=Operation)

#: Where the tree is attached while it is built: any of these directories will do.
_PLACES = ("/mnt", "/media", "/srv", "/boot", "/opt", "/var/cache", "/home", "/run", "/tmp")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
}
_DEVICES_SIZE = 1 << 20
_COVER = ".staddle-cover"
NO_LAYER = "no layer can be put on it"

_PLAIN = mounts.MS_NOSUID | mounts.MS_NODEV
_NOSUID, _NODEV, _RDONLY = mounts.ATTR_NOSUID, mounts.ATTR_NODEV, mounts.ATTR_RDONLY


def place_for(operations: Sequence[Operation]) -> str:
    """Return a directory of the host to build in, if possible one from which nothing is shown."""
    shown = [operation.outside for operation in operations if isinstance(operation, Bind)]
    shown += [operation.upper for operation in operations if isinstance(operation, Overlay)]
    there = [place for place in _PLACES if os.path.isdir(place) and not os.path.islink(place)]
    for place in there:
        if not any(path == place or path.startswith(place + "/") for path in shown):
            return place
    if not there:
        raise not_built(f"this host has none of the directories {', '.join(_PLACES)}")
    return there[0]


def mount_processes(target: str, *, options: str = "hidepid=2") -> None:
    """Mount a /proc of our pid namespace, at a path without links.

    hidepid=2: processes that a reader may not trace, PID 1 included, are not listed.
    """
    mounts.mount("proc", target, "proc", flags=_PLAIN | mounts.MS_NOEXEC, options=options)


def outer_processes(place: str = "/proc") -> int:
    """Return a detached copy of the /proc at `place`, read-only because it lists other processes of the user.

    Covered parts stay covered. The memory, descriptors and directories of processes in another user namespace
    cannot be read. But their files that the user may write would be writable.
    """
    source = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tree = mounts.clone_tree(source)
    finally:
        os.close(source)
    try:
        mounts.set_attributes(tree, _NOSUID | _NODEV | mounts.ATTR_NOEXEC | _RDONLY)
    except BaseException:
        os.close(tree)
        raise
    return tree


def empty_options(operation: Empty, owner: int) -> str:
    """Return the mount options of a private directory, which belongs to `owner` (-1: to us)."""
    options = f"mode={operation.mode:04o}"
    if operation.size > 0:
        # Our own root contains only our files; elsewhere each file takes memory, even if it is empty.
        own = not operation.mode or operation.path == "/"
        options += f",size={operation.size}" if own else f",{tmpfs_options(operation.size)}"
    return f"{options},uid={owner},gid={owner}" if owner >= 0 and operation.mode else options


class Builder:
    """Carries out operations on a tree that is attached at `place`.

    Runs with the right to mount, in a mount namespace without other processes.

    `owner` owns the private directories (-1: our own id). With `handed_on`, a launcher that runs as `owner`
    continues in the tree, and so owns everything that is created in it. `translation` returns user namespaces
    that translate the owners of shown files to the sandbox's user. `taken` are trees that another process has
    opened for us (None: it is optional and gone). With `outer_processes`, /proc is the visible one, because
    the kernel allows no other. `terminal` is the command's. It has no name in the devpts inside, so it is
    shown as /dev/console (as in bwrap), where ttyname(3) looks.
    """

    def __init__(
        self,
        place: str,
        *,
        owner: int = -1,
        handed_on: bool = False,
        translation: Translation | None = None,
        taken: Mapping[Bind, int | None] | None = None,
        outer_processes: bool = False,
        terminal: str = "",
    ) -> None:
        self._outer_processes, self._terminal = outer_processes, terminal
        self._place, self._owner, self._handed_on = place, owner, handed_on
        self._translation = translation
        self._root = -1
        self._own: set[int] = set()  # the file systems that we made: entries may be created only there
        self._opened: list[int] = []  # during one operation
        self._latest: tuple[str, int] | None = None  # the last directory in which an entry was created
        self._taken = dict(taken or {})  # of the host, before the tree is attached

    @classmethod
    def extending(
        cls, place: str, *, owner: int = -1, taken: Mapping[Bind, int | None] | None = None
    ) -> Builder:
        """Return a builder that continues in the tree at `place`, whose file system has the mount points."""
        builder = cls(place, owner=owner, taken=taken)
        builder._root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        builder._own.add(os.fstat(builder._root).st_dev)
        return builder

    def build(self, operations: Sequence[Operation]) -> None:
        """Carry out `operations`, beginning with the root; LaunchFailed if one fails."""
        umask = os.umask(0)  # ours alone: with a mount namespace, a thread has its own umask
        try:
            for operation in operations:
                if not isinstance(operation, Bind) or operation.again or operation in self._taken:
                    continue
                if self._meets(operation.outside):
                    self._attempt(operation, self._take)
            for operation in operations:
                self._attempt(operation, self._carry_out)
        finally:
            os.umask(umask)
            self._covered("/")
            self._opened += [fd for fd in (self._root, *self._taken.values()) if fd is not None and fd >= 0]
            self._close()

    def _attempt(self, operation: _Kind, step: Callable[[_Kind], None]) -> None:
        try:
            step(operation)
        except OSError as error:
            link = error.errno == errno.ELOOP
            why = "there is a link in it now" if link else error.strerror or str(error)
            raise not_built(f"{operation.path!r}: {why}") from None
        finally:
            self._close()

    def _meets(self, path: str) -> bool:
        """Whether the attached tree would cover `path` or appear below it: then open it before."""
        place = self._place
        return path == place or path.startswith(place + "/") or place.startswith(path + "/")

    def _take(self, operation: Bind) -> None:
        self._taken[operation] = self._of_the_host(operation)
        self._opened.clear()  # it stays open

    def _carry_out(self, operation: Operation) -> None:
        if isinstance(operation, Bind):
            self._bind(operation)
        elif isinstance(operation, Overlay):
            self._overlay(operation)
        elif isinstance(operation, Empty):
            self._empty(operation)
        elif isinstance(operation, Directory):
            self._make(*self._parent(operation.path), operation.mode)
        elif isinstance(operation, Mask):
            self._mask(operation)
        elif isinstance(operation, File):
            self._file(operation)
        elif isinstance(operation, Symlink):
            parent, name = self._parent(operation.path)
            os.symlink(operation.target, name, dir_fd=parent)
        elif isinstance(operation, Devices):
            self._devices(operation.path)
        elif isinstance(operation, DeviceNode):
            # Read-only concerns only its mode and times: a device is written as its driver allows.
            node = self._clone(open_device(operation), _NOSUID | _RDONLY)
            self._attach(node, operation.path, below=False)
        elif isinstance(operation, ProcMount):
            self._processes(operation.path)
        elif isinstance(operation, Seal):
            mounts.set_attributes(self._existing(operation.path), _RDONLY, recursive=False)

    # Paths of the host.

    def _bind(self, operation: Bind) -> None:
        if operation.again:
            # A visible tree, with owners translated or not, gets its own mount.
            target = self._existing(operation.path)
            mounts.attach(self._clone(os.dup(target), 0 if operation.writable else _RDONLY), target)
            return
        if operation in self._taken:
            tree = self._taken.pop(operation)
            self._opened += [] if tree is None else [tree]
        else:
            tree = self._of_the_host(operation)
        if tree is not None:
            self._attach(tree, operation.path, below=operation.below)

    def _of_the_host(self, operation: Bind) -> int | None:
        tree = take(operation, self._translation)
        self._opened += [] if tree is None else [tree]
        return tree

    def _overlay(self, operation: Overlay) -> None:
        # Only in a command's own view, while the host's files can be read. Sessions keep this module in
        # memory, but a fork server makes their overlays.
        from ..linux import overlay

        shown = self._existing(operation.path)
        mounts.set_attributes(shown, _RDONLY)  # only the layer is ever written
        for path in (operation.upper, operation.work):
            self._opened.append(open_named(path))
        try:
            self._opened.append(overlay.overlay([shown], *self._opened[-2:]))
        except OSError as error:
            raise OSError(error.errno, f"{NO_LAYER}: {error.strerror}") from None
        tree = self._opened[-1]
        mounts.attach(tree, shown)
        self._covered(operation.path)

    def _clone(self, source: int, attributes: int) -> int:
        """Return a detached copy of the mounts at `source`, which is closed."""
        try:
            tree = mounts.clone_tree(source)
        finally:
            os.close(source)
        self._opened.append(tree)
        if attributes:
            mounts.set_attributes(tree, attributes)
        return tree

    def _attach(self, tree: int, path: str, *, below: bool = True) -> None:
        directory = stat.S_ISDIR(os.fstat(tree).st_mode)
        mounts.attach(tree, self._target(path, directory=directory, below=below))
        self._covered(path)

    def _mask(self, operation: Mask) -> None:
        # A device that cannot be opened, because this mount allows no devices.
        null = self._clone(open_named("/dev/null"), _NOSUID | _NODEV | _RDONLY)
        try:
            self._attach(null, operation.path)
        except FileNotFoundError:
            if not operation.optional:
                raise

    # Our own entries.

    def _empty(self, operation: Empty) -> None:
        path, mode = operation.path, operation.mode
        options = empty_options(operation, self._owner if self._handed_on or path != "/" else -1)
        if path == "/":
            mounts.mount("tmpfs", self._place, "tmpfs", flags=_PLAIN, options=options)
            self._root = os.open(self._place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self._mount("tmpfs", path, _PLAIN, options, below=operation.below)
        mounted = self._existing(path)
        if mode:
            self._own.add(os.fstat(mounted).st_dev)
        else:  # hidden: even its owner cannot change the mode on a read-only file system
            mounts.set_attributes(mounted, _RDONLY, recursive=False)

    def _file(self, operation: File) -> None:
        if not operation.below:
            self._write(*self._parent(operation.path), operation.content, operation.mode)
            return
        # Over the host's file: created in our root, and without a name once it is a mount.
        self._write(self._root, _COVER, operation.content, 0o444)
        tree = self._clone(open_beneath(self._root, _COVER, os.O_PATH), _NOSUID | _NODEV | _RDONLY)
        self._attach(tree, operation.path)
        os.unlink(_COVER, dir_fd=self._root)

    def _write(self, parent: int, name: str, content: bytes, mode: int) -> None:
        options = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, options, mode, dir_fd=parent)
        try:
            write_all(fd, content)
            if (self._handed_on or mode & 0o200) and self._owner >= 0:
                os.fchown(fd, self._owner, self._owner)
        finally:
            os.close(fd)

    def _devices(self, path: str) -> None:
        self._empty(Empty(path, 0o755, _DEVICES_SIZE, ""))
        for name in _DEVICES:
            self._attach(self._clone(open_named(f"/dev/{name}"), _NOSUID), f"{path}/{name}", below=False)
        if self._terminal:
            terminal = open_named(self._terminal)
            self._attach(self._clone(terminal, _NOSUID), f"{path}/console", below=False)
        quiet = mounts.MS_NOSUID | mounts.MS_NOEXEC
        self._mount("devpts", f"{path}/pts", quiet, "newinstance,ptmxmode=0666,mode=620")
        directory = self._existing(path)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, name, dir_fd=directory)

    def _processes(self, path: str) -> None:
        target = self._target(path, directory=True, below=False)
        if self._outer_processes:
            self._opened.append(outer_processes())
            mounts.attach(self._opened[-1], target)
        else:
            mount_processes(mounts.path_of(target))
        self._covered(path)

    def _mount(self, kind: str, path: str, flags: int, options: str, *, below: bool = False) -> None:
        target = self._target(path, directory=True, below=below)
        mounts.mount(kind, mounts.path_of(target), kind, flags=flags, options=options)
        self._covered(path)

    # Places.

    def _existing(self, path: str) -> int:
        """Open `path` in the tree, through no link."""
        found = open_beneath(self._root, path.lstrip("/") or ".", os.O_PATH)
        self._opened.append(found)
        return found

    def _target(self, path: str, *, directory: bool, below: bool) -> int:
        """Open the mount point; create it if it is in a directory of ours, never in one of the host."""
        if not below:
            parent, name = self._parent(path)
            try:
                if directory:
                    self._make(parent, name, 0o755)
                else:
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=parent))
            except FileExistsError:
                pass
        found = self._existing(path)
        if stat.S_ISDIR(os.fstat(found).st_mode) != directory:
            wrong = errno.ENOTDIR if directory else errno.EISDIR
            raise OSError(wrong, os.strerror(wrong))
        return found

    def _parent(self, path: str) -> tuple[int, str]:
        """Return our directory of `path`, created with its missing parents, and the last name."""
        above, _, name = path.rpartition("/")
        if self._latest is None or self._latest[0] != above:
            found = self._directory(above)
            self._covered("/")
            self._latest = (above, os.dup(found))
        return self._latest[1], name

    def _directory(self, path: str) -> int:
        missing: list[str] = []
        while True:
            try:
                found = self._existing(path)
                break
            except FileNotFoundError:
                path, _, last = path.rpartition("/")
                missing.append(last)
        if os.fstat(found).st_dev not in self._own:
            raise not_built(f"{path!r} is the host's: nothing is made in the user's tree")
        for name in reversed(missing):
            self._make(found, name, 0o755)
            found = open_beneath(found, name, os.O_PATH)
            self._opened.append(found)
        return found

    def _make(self, parent: int, name: str, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=parent)
        # In a directory of the user, such as the home, a writable directory is the user's too.
        own = mode & 0o200 and os.fstat(parent).st_uid == self._owner
        if (self._handed_on or own) and self._owner >= 0:
            os.chown(name, self._owner, self._owner, dir_fd=parent, follow_symlinks=False)

    def _covered(self, path: str) -> None:
        """Forget a cached directory at or below `path`, which a mount covers now."""
        if self._latest is not None and f"{self._latest[0]}/".startswith(f"{path.rstrip('/')}/"):
            os.close(self._latest[1])
            self._latest = None

    def _close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())
