"""The home layer: initial contents of a sandbox's home and /tmp.

It is in the store, as the lowest layer of the home tree. All sandboxes with the same plan share it.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache

from ...errors import LaunchFailed
from ...mounts.host import open_named
from ...mounts.operations import Bind, Directory, File, Symlink, encode_operations
from ...places import make_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ...layers.store import Store
    from ...mounts.operations import Operation

_NAME = "skeleton-"
#: Prefix of the initial contents of writable system directories: see `as_root`.
SYSTEM = "system-"
#: Mode of intermediate directories and mount points.
_WAY = 0o755


def home_layer(store: Store, operations: Sequence[Operation], root: int | None = None) -> str:
    """Return the skeleton with exactly these operations in `store`; build it if missing.

    `root` is the host uid of the sandbox's root, if that is not its user: it owns /tmp.
    """
    apart = 0 if store.owner is None or root is None else root - store.owner[0]
    path = f"{store.path}/{_NAME}{_name(tuple(operations), apart)}"
    return made_whole(path, lambda half: _make(half, operations, store.owner, apart))


def made_whole(path: str, make: Callable[[str], object]) -> str:
    """Return the directory `path`; if missing, `make` builds it elsewhere and a rename publishes it."""
    if not os.path.isdir(path):
        half = f"{path}.{os.urandom(4).hex()}"
        try:
            make_directory(half)
            make(half)
        except BaseException:
            _remove(half)
            raise
        try:
            os.rename(half, path)
        except OSError:  # another thread was faster
            _remove(half)
    return path


def sweep(store: Store, used: Collection[str]) -> None:
    """Remove the home layers of `store` that are not in `used`, a list of paths in it or elsewhere."""
    needed = {path.partition("/")[0] for path in used}
    for name in os.listdir(store.path):
        if name.startswith((_NAME, SYSTEM)) and name not in needed:
            _remove(f"{store.path}/{name}")


@lru_cache(maxsize=8)
def _name(operations: tuple[Operation, ...], apart: int) -> str:
    return digest((encode_operations(operations), apart))


def digest(what: object) -> str:
    """Digest of a value's repr, as a file name."""
    from _blake2 import blake2b  # hashlib's, without importing the rest

    return str(blake2b(repr(what).encode(), digest_size=12).hexdigest())


def _make(path: str, operations: Sequence[Operation], owner: tuple[int, int] | None, apart: int) -> None:
    modes: dict[str, int] = {path: _WAY}
    for operation in operations:
        above, _, name = operation.path.rpartition("/")
        _put(operation, f"{_directories(path, above, modes)}/{name}", modes)
    for place, mode in reversed(modes.items()):  # last: some become read-only, even for us
        if owner is not None:
            uid, gid = (number + (apart if mode & stat.S_ISVTX else 0) for number in owner)
            os.chown(place, uid, gid, follow_symlinks=False)
        if not os.path.islink(place):
            os.chmod(place, mode)


def _directories(root: str, path: str, modes: dict[str, int]) -> str:
    """Return the directory `path` in the skeleton; create it and its missing parents."""
    here = root
    for name in path.split("/")[1:]:
        here = f"{here}/{name}"
        _directory(here, modes.get(here, _WAY), modes)
    return here


def _put(operation: Operation, place: str, modes: dict[str, int]) -> None:
    if isinstance(operation, Symlink):
        os.symlink(operation.target, place)
        modes[place] = 0o777
    elif isinstance(operation, Directory) or (isinstance(operation, Bind) and _is_directory(operation)):
        _directory(place, operation.mode if isinstance(operation, Directory) else _WAY, modes)
    elif isinstance(operation, File):
        _file(place, operation.content, operation.mode, modes)
    elif isinstance(operation, Bind) and not _is_missing(operation):
        _file(place, b"", 0o444, modes)


def _directory(place: str, mode: int, modes: dict[str, int]) -> None:
    if place not in modes:
        make_directory(place)
    modes[place] = mode


def _file(place: str, content: bytes, mode: int, modes: dict[str, int]) -> None:
    with open(place, "xb") as file:
        file.write(content)
    modes[place] = mode


def _is_directory(operation: Bind) -> bool:
    return not _is_missing(operation) and os.path.isdir(operation.outside)


def _is_missing(operation: Bind) -> bool:
    """Whether an optional source is gone, tested in the same way as when it is mounted."""
    try:
        os.close(open_named(operation.outside))
    except LaunchFailed:
        if operation.optional:
            return True
        raise
    return False


def _remove(path: str) -> None:
    from ...files.remove_tree import remove

    remove((os.fsencode(path),))
