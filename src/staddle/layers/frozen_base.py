"""`FrozenBase`: a private copy of a host directory at one moment, to use below layers.

The lowest layer of a workspace is the host's directory, which the host keeps changing. If sandboxes must not
see these changes (forks, pools), a copy is mounted instead. The copy is in the store of layers, one for each
state of the directory. As long as a walk finds every entry unchanged, all callers share one copy. It is
deleted with its last reference.

A copy costs time and space for each entry and byte, so there are bounds. `NotFrozen` gives the reason if
there is no copy, and the caller continues with the directory itself.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import contextmanager

from .._value import Value
from ..errors import LayerError
from ..files.tree import LastDirectory, Tree, walk
from .baseline import ANOTHER, signature
from .differences import Selection, differences
from .drift import now_ns
from .host_directory import HostDirectory, reach
from .merge import copy_of
from .merged_view import LayerView, OpenLayers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from .baseline import Copied, Signature
    from .store import Layer, Store

    #: The status of each entry by its path; the directory itself is "".
    State = dict[str, os.stat_result]

#: How often a directory is copied again because the host changed it meanwhile.
_MOST_TRIES = 3
#: The copy may take one part in this many of the free space at its place.
_PART_OF_ROOM = 4
#: Seconds for which a directory that was too large is not walked again.
_REMEMBERED = 30.0


class FreezeBounds(Value):
    """The most entries and bytes that are copied."""

    entries: int
    bytes: int


#: If the user has not asked for a copy: some tens of milliseconds at most.
UNASKED = FreezeBounds(1000, 16 << 20)
#: If the user has asked for a copy.
ASKED = FreezeBounds(20_000, 256 << 20)


class NotFrozen(Exception):
    """The reason why there is no copy, as part of a sentence."""


class _DirectoryTooLarge(NotFrozen):
    pass


class FrozenBase(str):
    """The path of the copy. `origin` is the host's directory, `taken` the time of the copy in nanoseconds.

    Later changes of the host have a later time.
    """

    origin: str
    taken: int
    _hidden: tuple[str, ...]
    _state: State
    _layer: Layer
    _key: tuple[object, ...]
    _users = 0

    def hold(self) -> FrozenBase:
        """Add a reference."""
        with _lock:
            self._users += 1
        return self

    def drop(self) -> None:
        """Drop a reference; delete the copy at zero."""
        with _lock:
            self._users -= 1
            is_last = self._users == 0
            if is_last and _bases.get(self._key) is self:
                del _bases[self._key]
        if is_last:
            self._layer.drop()

    @property
    def layer(self) -> Layer:
        """The layer that contains the copy."""
        return self._layer

    def signature(self, path: str) -> Signature | None:
        """Return the `baseline.signature` of the host's file when it was copied; None if it was missing."""
        found = self._state.get(path)
        return None if found is None else signature(found)

    @property
    def is_current(self) -> bool:
        """Whether the host's directory is still as copied. Walks it."""
        try:
            return _is_so(HostDirectory.of(self.origin), self._hidden, self._state)
        except OSError:
            return False


class LoadedBase(FrozenBase):
    """A copy that was read from a file, below the layers of a sandbox for the directory `origin`.

    That need not be the directory that was copied: each file there that differs now is a conflict.
    """

    _found: dict[str, Signature]

    @classmethod
    def of(cls, layer: Layer, origin: str, taken: int) -> LoadedBase:
        """Return the copy in `layer`, with one reference. Changes of `origin` since `taken` are drift."""
        made = cls(layer.upper)
        made.origin, made.taken, made._key = origin, taken, ()
        with OpenLayers(LayerView((layer.upper,), (origin,))) as opened:
            other = {item.path for item in differences(opened)}
        made._found = {}
        with Tree(reach(origin), ours=False) as host, Tree(layer.upper, ours=True) as copy:
            for path, _ in walk(copy):
                try:
                    status = None if path in other else host.status(path)
                except OSError:
                    status = None  # the host does not let us look
                made._found[path] = ANOTHER if status is None else signature(status)
        made._layer = layer.hold()
        made.hold()
        return made

    def signature(self, path: str) -> Signature | None:
        """Return the signature of the host's file if it equals the copy, else one that no file has."""
        return self._found.get(path)

    @property
    def is_current(self) -> bool:
        """Always False: a loaded copy is never current."""
        return False


_bases: dict[tuple[object, ...], FrozenBase] = {}
_refused: dict[tuple[object, ...], tuple[float, str]] = {}
_lock = threading.Lock()
#: Locked while a copy is made: another caller waits for it, and shares it.
_making = threading.Lock()


def _after_fork() -> None:
    """Forget all copies after a fork of the process: they belong to its parent."""
    global _lock, _making
    _lock, _making = threading.Lock(), threading.Lock()
    _bases.clear()


os.register_at_fork(after_in_child=_after_fork)


def origin(base: str) -> str:
    """Return the host directory that `base` is a copy of; `base` itself if it is none."""
    return base.origin if isinstance(base, FrozenBase) else base


def signatures(bases: Sequence[str]) -> Copied | None:
    """Return the function for signatures of copied files, if the lowest of `bases` is a copy."""
    lowest = bases[-1] if bases else ""
    return lowest.signature if isinstance(lowest, FrozenBase) else None


@contextmanager
def host_files(bases: Sequence[str]) -> Iterator[LastDirectory | None]:
    """Open the host directory that the lowest of `bases` is a copy of; None if it is none."""
    if not bases or not isinstance(bases[-1], FrozenBase):
        yield None
        return
    root = os.open(reach(bases[-1].origin), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    look = LastDirectory(root)
    try:
        yield look
    finally:
        look.close()
        os.close(root)


def freeze_base(
    store: Store, directory: str, hidden: Collection[str] = (), bounds: FreezeBounds = UNASKED
) -> FrozenBase:
    """Return a copy of the present `directory` in `store`, with one reference; NotFrozen if that fails.

    The `hidden` paths are not copied. An empty file or directory is there, for a mount to cover.
    """
    host, away = HostDirectory.of(directory), tuple(sorted(hidden))
    key = (store.path, host.identity, away)
    with _making:
        with _lock:
            known = _bases.get(key)
            if known is not None:
                known._users += 1
        if known is not None:
            if known.is_current:
                return known
            known.drop()
        refused = (key, bounds)
        since, why = _refused.get(refused, (0.0, ""))
        if why and time.monotonic() - since < _REMEMBERED:
            raise NotFrozen(why)
        try:
            made = _made(store, host, away, bounds)
        except _DirectoryTooLarge as error:
            _refused.clear()  # only one is remembered: a parent's, or a pool's
            _refused[refused] = (time.monotonic(), str(error))
            raise
        made._key = key
        with _lock:
            _bases[key] = made
        return made.hold()


def _made(store: Store, host: HostDirectory, hidden: tuple[str, ...], bounds: FreezeBounds) -> FrozenBase:
    for _ in range(_MOST_TRIES):
        try:
            began = now_ns()
            state, size = _scan(host, hidden, bounds)
            _check_place(store, host, size)
            # Some kernels stamp files with a finer clock than the clock we can read.
            newest = max(status.st_ctime_ns for status in state.values())
            taken = max(began, min(newest, time.time_ns()))
            while now_ns() <= taken:
                time.sleep(0.001)  # the clock of files stands still: a later change must have another time
            layer = _new_layer(store)
            try:
                copy_of(
                    host.reachable,
                    layer.upper,
                    without=Selection(hidden) if hidden else None,
                    owner=store.owner,
                )
                _put_places(host, layer.upper, hidden)
                if not _is_so(host, hidden, state):
                    continue
                made = FrozenBase(layer.upper)
                made.origin, made.taken, made._hidden = host, taken, hidden
                made._state, made._layer = state, layer.hold()
                return made
            finally:
                layer.drop()
        except PermissionError as error:
            raise NotFrozen(f"{error.filename or 'something'!r} in it cannot be read") from None
        except (FileNotFoundError, NotADirectoryError, LayerError):
            continue  # the host changed it
        except OSError as error:
            raise NotFrozen(f"its copy cannot be written: {error.strerror}") from None
    raise NotFrozen("the host keeps changing it")


def _new_layer(store: Store) -> Layer:
    try:
        return store.layer().hold()
    except LayerError as error:
        raise NotFrozen(error.why) from None


def _entries(host: HostDirectory, hidden: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the directory itself, as "", and all entries except `hidden` ones.

    OSError if one is unreadable.
    """
    with Tree(host.reachable, ours=False) as tree:
        yield "", os.fstat(tree.root)
        yield from walk(tree, without=hidden, strict=True)


def _scan(host: HostDirectory, hidden: tuple[str, ...], bounds: FreezeBounds) -> tuple[State, int]:
    """Return the state of every entry, except `hidden` ones, and the total bytes.

    NotFrozen if a copy would show something else than the directory itself below layers.
    """
    state: State = {}
    size, top = 0, None
    for path, status in _entries(host, hidden):
        top = top or status
        state[path] = status
        if stat.S_ISREG(status.st_mode):
            size += status.st_size
        if len(state) > bounds.entries or size > bounds.bytes:
            raise _DirectoryTooLarge(
                f"it has more than {bounds.entries:,} entries or {bounds.bytes >> 20:,} MB: "
                "a copy would take too long"
            )
        _check_owner(path, status, top)
    return state, size


def _is_so(host: HostDirectory, hidden: tuple[str, ...], state: State) -> bool:
    """Whether every entry is as in `state`.

    A change moves the ctime of an entry, which no process can set.
    """
    count = 0
    for path, status in _entries(host, hidden):
        before = state.get(path)
        if before is None or before.st_ctime_ns != status.st_ctime_ns or before.st_ino != status.st_ino:
            return False
        count += 1
    return count == len(state)


def _check_owner(path: str, status: os.stat_result, top: os.stat_result) -> None:
    """Raise NotFrozen for an entry whose owner our copy could not show, or that could not be removed."""
    if status.st_dev != top.st_dev:
        raise NotFrozen(f"{path!r} in it is on another file system")
    ours = os.geteuid()
    if ours and status.st_uid != ours:
        raise NotFrozen(f"{path!r} in it belongs to another user" if path else "it belongs to another user")
    if not ours and status.st_uid != top.st_uid and stat.S_ISDIR(status.st_mode):
        # If we are killed, the sandbox's own id removes the copy.
        raise NotFrozen(f"the directory {path!r} in it belongs to another user")


def _check_place(store: Store, host: HostDirectory, size: int) -> None:
    """Raise NotFrozen if there is little room for a copy, or something is mounted in the directory.

    Layers do not show that mount; a copy would.
    """
    room = os.statvfs(store.path)
    if size > room.f_bavail * room.f_frsize // _PART_OF_ROOM or not store.takes_more:
        raise NotFrozen("there is too little room for a copy")
    with open("/proc/self/mountinfo", "rb") as file:
        points = [row.split(b" ")[4] for row in file]
    within = os.fsencode(host).rstrip(b"/") + b"/"
    if any(_plain(point).startswith(within) for point in points):
        raise NotFrozen("something is mounted in it")


def _plain(point: bytes) -> bytes:
    """Return a mount point without the kernel's escapes."""
    return point.decode("unicode_escape").encode("latin-1") if b"\\" in point else point


def _put_places(host: HostDirectory, copy: str, hidden: tuple[str, ...]) -> None:
    """Create entries for mounts to cover at the `hidden` paths that exist in the directory."""
    with Tree(host.reachable, ours=False) as tree:
        root = os.open(copy, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        last = LastDirectory(root)
        try:
            for path in hidden:
                status = tree.status(path)
                parent, _, name = path.rpartition("/")
                if status is None or any(path.startswith(f"{other}/") for other in hidden):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    os.mkdir(name, 0o700, dir_fd=last.at(parent))
                else:
                    os.mknod(name, stat.S_IFREG, dir_fd=last.at(parent))
        finally:
            last.close()
            os.close(root)
