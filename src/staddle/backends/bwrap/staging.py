"""Building the view ourselves, in a mount namespace that only this launch ever sees.

bwrap then starts in that namespace and takes the finished tree as its root. Done in two
cases. Run by root, what is granted must be shown through mounts that translate its owner to
the id nobody has that the sandbox runs as, which only root can make. And with very many
mounts bwrap takes seconds: it reads the whole mount table again for each.

Everything here is named by descriptor and looked up without following a link. Nothing can
be left behind: the namespace lives in a descriptor, and goes with the last one.
"""

from __future__ import annotations

import errno
import os
import stat

from ..._value import Value
from ...errors import LaunchFailed, PolicyNotEnforceable
from ...linux import mounts
from ...linux.idmaps import translation
from ...linux.openat2 import open_beneath
from .descriptors import open_named
from .operations import Bind, Empty, File, Mask, Seal, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .operations import Operation

#: Where the tree is attached while it is built: any directory will do that nothing is shown from.
_PLACES = ("/mnt", "/media", "/srv", "/boot", "/opt", "/var/cache", "/home", "/tmp")
#: Shown to root's sandbox as anybody sees them: what only root may read there stays root's.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/snap")
_FLAGS = mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def split(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    """(what we do, what is left to bwrap).

    bwrap's are /dev and /proc, which must be made in the sandbox's own namespaces, sealing
    the root after that, and files, which it is quicker at, unless their directory is sealed.
    """
    sealed = tuple(op.path for op in operations if isinstance(op, Seal) and op.path not in ("/", "/dev"))
    ours: list[Operation] = []
    left: list[Operation] = []
    for op in operations:
        kernels = _within(op.path, ("/dev", "/proc")) or (isinstance(op, Seal) and op.path == "/")
        file = isinstance(op, File) and (op.below or not _within(op.path, sealed))
        (left if kernels or file else ours).append(op)
    return ours, left


def needs_translation(path: str, writable: bool = False) -> bool:
    """Whether this path is shown to root's sandbox with its owner translated."""
    return writable or not _within(path, SYSTEM)


def place_for(operations: Sequence[Operation]) -> str:
    """A directory of the host to build in, from which nothing is shown."""
    shown = [operation.path for operation in operations if isinstance(operation, Bind)]
    for place in _PLACES:
        if os.path.isdir(place) and not any(_within(path, (place,)) for path in shown):
            return place
    raise LaunchFailed(
        "there is no place to build the sandbox's view in", why=f"paths are granted below each of {_PLACES}"
    )


class Built(Value):
    """The tree at `place` in the namespace `mount_namespace`, owned by `user_namespace` if not the host's."""

    place: str
    mount_namespace: int
    user_namespace: int | None = None


def build_as_root(operations: Sequence[Operation], stranger: int) -> Built:
    """Carry out `operations` for a sandbox that will run as `stranger`. Needs CAP_SYS_ADMIN.

    In a thread of its own: it alone moves to the new namespace, and ends.
    """
    import _thread

    place = place_for(operations)
    outcome: list[int | BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def build() -> None:
        try:
            mounts.private_namespace()
            _Builder(place, stranger).build(operations)
            outcome.append(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        except BaseException as error:
            outcome.append(error)
        finally:
            done.release()

    try:
        _thread.start_new_thread(build, ())
    except RuntimeError as error:
        raise LaunchFailed(
            "the sandbox's view of the filesystem could not be built", why=str(error)
        ) from None
    done.acquire()
    result = outcome[0]
    if isinstance(result, int):
        return Built(place, result)
    raise _explained(result)


def build_as_user(operations: Sequence[Operation]) -> Built:
    """Carry out `operations` as an ordinary user, in a child with a user namespace of its own."""
    from ...linux.apart import with_own_mounts

    place = place_for(operations)
    try:
        return Built(place, *with_own_mounts(lambda: _Builder(place, None).build(operations)))
    except OSError as error:
        raise _explained(error) from None


def untranslatable(path: str, stranger: int) -> str:
    """Why the owner of `path` cannot be translated, empty when it can. Changes nothing."""
    source = open_named(path)
    try:
        tree = mounts.clone_tree(source)
        try:
            _translate(tree, os.fstat(source), stranger)
        finally:
            os.close(tree)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(source)
    return ""


def _translate(tree: int, status: os.stat_result, stranger: int) -> None:
    namespace = translation(status.st_uid, status.st_gid, stranger)
    try:
        mounts.map_ids(tree, namespace)
    except OSError:
        # Something mounted below cannot be translated: that part is shown as anybody sees it.
        mounts.map_ids(tree, namespace, recursive=False)


class _Builder:
    """Carries out operations on the tree that is attached at `place`. Runs with mount rights."""

    def __init__(self, place: str, stranger: int | None) -> None:
        self._place = place
        self._stranger = stranger
        self._root = -1
        self._made: dict[str, int] = {}  # directories of ours: nothing is created in any other

    def build(self, operations: Sequence[Operation]) -> None:
        """Carry out `operations`, the first of which is the root."""
        try:
            self._build(operations)
        finally:
            for descriptor in self._made.values():
                os.close(descriptor)

    def _build(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Empty):
                self._empty(operation)
            elif isinstance(operation, Bind):
                self._bind(operation)
            elif isinstance(operation, Mask):
                self._mask(operation)
            elif isinstance(operation, Symlink):
                os.symlink(operation.target, _name(operation.path), dir_fd=self._parent(operation.path))
            elif isinstance(operation, File):
                self._file(operation)
            elif isinstance(operation, Seal):
                with _Opened(self._existing(operation.path)) as target:
                    mounts.set_attributes(target, mounts.ATTR_RDONLY, recursive=False)

    def _empty(self, operation: Empty) -> None:
        options = f"mode={operation.mode:04o}"
        if operation.size > 0:
            options += f",size={operation.size}"
        if self._stranger is not None:
            options += f",uid={self._stranger},gid={self._stranger}"
        flags = mounts.MS_NOSUID | mounts.MS_NODEV
        if operation.path == "/":
            mounts.mount("tmpfs", self._place, "tmpfs", flags=flags, options=options)
            self._root = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._made[""] = self._root
            return
        with _Opened(self._target(operation.path, operation.below, directory=True)) as target:
            mounts.mount("tmpfs", mounts.path_of(target), "tmpfs", flags=flags, options=options)
        if operation.mode:
            self._remember(operation.path)

    def _bind(self, operation: Bind) -> None:
        if operation.again:
            # What is seen there already, with owners translated or not, gets a mount of its own.
            with (
                _Opened(self._existing(operation.path)) as target,
                _Opened(mounts.clone_tree(target)) as tree,
            ):
                if not operation.writable:
                    mounts.set_attributes(tree, mounts.ATTR_RDONLY)
                mounts.attach(tree, target)
            return
        try:
            opened = _Opened(open_named(operation.path))
        except LaunchFailed:
            if operation.optional:
                return
            raise
        with opened as source:
            status = os.fstat(source)
            directory = stat.S_ISDIR(status.st_mode)
            with _Opened(mounts.clone_tree(source)) as tree:
                mounts.set_attributes(tree, _FLAGS | (0 if operation.writable else mounts.ATTR_RDONLY))
                if self._stranger is not None and needs_translation(operation.path, operation.writable):
                    try:
                        _translate(tree, status, self._stranger)
                    except OSError as error:
                        if operation.writable:
                            raise unwritable(operation.path, error.strerror or str(error)) from None
                with _Opened(self._target(operation.path, operation.below, directory=directory)) as target:
                    mounts.attach(tree, target)

    def _mask(self, operation: Mask) -> None:
        with (
            _Opened(self._existing(operation.path)) as target,
            _Opened(open_named("/dev/null")) as null,
            _Opened(mounts.clone_tree(null)) as tree,
        ):
            mounts.set_attributes(tree, _FLAGS | mounts.ATTR_RDONLY)
            mounts.attach(tree, target)

    def _file(self, operation: File) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        parent = self._parent(operation.path)
        with os.fdopen(os.open(_name(operation.path), flags, 0o444, dir_fd=parent), "wb") as file:
            file.write(operation.content)
            os.fchmod(file.fileno(), 0o444)  # whatever the umask of our caller is
            self._own(file.fileno())

    def _existing(self, path: str) -> int:
        return open_beneath(self._root, path.lstrip("/"), os.O_PATH)

    def _target(self, path: str, below: bool, *, directory: bool) -> int:
        """The place to mount on; made if it is in a directory of ours, never in one of the host."""
        if not below:
            parent, name = self._parent(path), _name(path)
            try:
                if directory:
                    os.mkdir(name, 0o755, dir_fd=parent)
                else:
                    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=parent))
            except FileExistsError:
                pass
        found = self._existing(path)
        if stat.S_ISDIR(os.fstat(found).st_mode) != directory:
            os.close(found)
            error = errno.ENOTDIR if directory else errno.EISDIR
            raise OSError(error, os.strerror(error), path)
        return found

    def _parent(self, path: str) -> int:
        """The directory of ours that `path` is in, made with all above it that are missing."""
        above = path[: path.rindex("/")]
        if above not in self._made:
            try:
                os.mkdir(_name(above), 0o755, dir_fd=self._parent(above))
            except FileExistsError:
                raise LaunchFailed(
                    f"{path!r} would have to be created on the host",
                    why="nothing of ours is placed in the user's tree",
                ) from None
            made = self._remember(above)
            os.fchmod(made, 0o755)  # whatever the umask of our caller is
            self._own(made)
        return self._made[above]

    def _remember(self, path: str) -> int:
        """A directory that was just made, or mounted empty: more may be made in it."""
        made = open_beneath(self._root, path.lstrip("/"), os.O_RDONLY | os.O_DIRECTORY)
        if path in self._made:
            os.close(self._made[path])
        self._made[path] = made
        return made

    def _own(self, descriptor: int) -> None:
        if self._stranger is not None:
            os.fchown(descriptor, self._stranger, self._stranger)


class _Opened:
    """A descriptor for the length of a block, without the import of contextlib."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def unwritable(path: str, why: str) -> PolicyNotEnforceable:
    """Root's sandbox is not root, and this filesystem cannot show its files as anybody else's."""
    return PolicyNotEnforceable(
        f"{path!r} cannot be made writable for a sandbox that root starts",
        why=f"its filesystem cannot translate owners ({why}), and the sandbox never runs as root",
        fix="run staddle as the user who owns it, or use a directory on ext4, xfs, btrfs or tmpfs",
    )


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        where = f" at {error.filename!r}" if error.filename else ""
        return LaunchFailed(
            "the sandbox's view of the filesystem could not be built", why=f"{error.strerror or error}{where}"
        )
    return error


def _name(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def _within(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
