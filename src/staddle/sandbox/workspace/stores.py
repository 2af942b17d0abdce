"""Stores of this process for the layers and copies of all its sandboxes.

One store holds the layers of many sandboxes, so that a fork can share those of its parent.
"""

from __future__ import annotations

import atexit
import os
import threading

from ...errors import LayerError
from ...forkserver.client import mounter
from ...layers import trash
from ...layers.commit_dir import recover
from ...layers.store import Store, home_for, home_for_copies, sweep, user_of_this_process
from ...places import make_directory

_stores: list[Store] = []
_copy_stores: dict[str, Store] = {}
#: Homes of stores whose copies are given to the sandbox's uid.
_giving: set[str] = set()
#: Owners of reserved directories for future copies.
_given_ahead: dict[str, tuple[int, int]] = {}
_making = threading.Lock()
#: For each store of copies, the shell that removes it if we are killed, and our end of its pipe.
_removers: list[tuple[int, int]] = []
_REMOVE = 'read -r _; [ -d "$1" ] || exit 0; chmod -R u+rwx -- "$1"; exec rm -rf -- "$1"'
#: Name of the empty directory in a store.
EMPTY = "empty"
_CAP_CHOWN, _CAP_SYS_ADMIN = 0, 21


def store_for(directory: str | None) -> Store:
    """Return the store that can hold layers over `directory`; create it if missing."""
    user_of_this_process()
    with _making:
        for store in _stores:
            if not store.takes_more:
                continue  # existing layers stay; a new one goes to a disk
            if directory is None or not (_within(store.home, directory) or _within(directory, store.home)):
                return store
        owner = mounter()
        home = home_for([directory] if directory else [], traversable=owner is not None)
        for store in _stores:
            if store.home == home:
                return store  # no disk can hold layers
        sweep(home)  # from killed processes of this user
        recover()  # and their commits
        store = Store(home, owner=owner)
        _stores.append(store)
        return store


def _within(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def empty_directory(store: Store) -> str:
    """Return an empty directory in `store`, the base of sandboxes without a directory."""
    path = f"{store.path}/{EMPTY}"
    if not os.path.isdir(path):
        try:
            make_directory(path, 0o755)
            if store.owner is not None:
                os.chown(path, *store.owner)
        except FileExistsError:
            pass  # another thread was faster
    return path


def copy_store_for(directory: str) -> Store:
    """Return the store for copies of `directory`, on its file system if possible."""
    gives = False
    try:
        home = home_for_copies(directory, _can_be_shown)
    except LayerError:
        if os.geteuid() != 0:
            raise
        home, gives = home_for_copies(directory), True
    with _making:
        if home not in _copy_stores:
            sweep(home)  # from killed processes of this user
            recover()
            owner = (os.geteuid(), os.getegid()) if os.geteuid() == 0 else None
            _copy_stores[home] = made = Store(home, owner=owner)
            _removers.append(_remover(made.path))
            if gives:
                os.chmod(made.path, 0o711)  # noqa: S103 - other users must reach their copies
                _giving.add(home)
        return _copy_stores[home]


def _remover(path: str) -> tuple[int, int]:
    """Start a shell that removes a store of copies if this process is killed.

    Returns its pid and our end of its pipe. No fork server knows of copies. The shell has its own session, so
    Ctrl-C does not reach it.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        streams = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((reader, null, null))]
        words = ["/bin/sh", "-c", _REMOVE, "staddle-copies", path]
        return os.posix_spawn(
            "/bin/sh", words, {"PATH": os.defpath}, file_actions=streams, setsid=True
        ), writer
    finally:
        os.close(reader)
        os.close(null)


def prewarmed_copy(store: Store) -> str:
    """Reserve the directory of the next copy in `store`, for an agent that starts before it."""

    def give(path: str) -> None:
        owner = _new_owner(store)
        if owner is not None:
            os.chmod(os.path.dirname(path), 0o711)  # noqa: S103 - the sandbox may use only `path`
            os.chown(path, *owner)
            _given_ahead[path] = owner

    return store.reserve(give)


def owner_of_copy(store: Store, path: str) -> tuple[int, int] | None:
    """Return the uid and gid for a new copy at `path` in `store`; None if it stays ours.

    Root's sandbox is not root. Where idmapped mounts are missing (in a container, on an overlay), the files
    must belong to another user.
    """
    return _given_ahead.pop(path, None) or _new_owner(store)


def _new_owner(store: Store) -> tuple[int, int] | None:
    if store.home not in _giving:
        return None
    from ...linux.idmaps import id_for_sandbox
    from ...linux.process import capabilities

    if not capabilities()[0] >> _CAP_CHOWN & 1:
        return None  # then root cannot change its user either: no backend accepts it

    uid = id_for_sandbox()
    return None if uid is None else (uid, uid)


def _can_be_shown(place: str) -> bool:
    """Whether files there can be shown with another owner: root's sandbox never runs as root."""
    if os.geteuid() != 0 or not os.path.isdir(place):
        return os.path.isdir(place)
    from ...linux.idmaps import unused_ids_here
    from ...linux.process import capabilities
    from ...mounts.host import untranslatable

    return bool(capabilities()[0] >> _CAP_SYS_ADMIN & 1) and not untranslatable(place, unused_ids_here()[0])


def close_stores() -> None:
    """Remove the layers and copies of all sandboxes of this process, and wait until that is done."""
    while _stores:
        _stores.pop().close()
    while _copy_stores:
        _copy_stores.popitem()[1].close()
    trash.wait()  # nothing else waits at interpreter exit
    while _removers:
        process, writer = _removers.pop()
        os.close(writer)
        try:
            os.waitpid(process, 0)
        except ChildProcessError:
            pass  # the program ignores SIGCHLD


def _after_fork() -> None:
    """Leave the stores to the parent process."""
    while _stores:
        _stores.pop().leave()
    while _copy_stores:
        _copy_stores.popitem()[1].leave()
    while _removers:
        os.close(_removers.pop()[1])


atexit.register(close_stores)
os.register_at_fork(after_in_child=_after_fork)
