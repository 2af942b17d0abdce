"""Drift: what the host has changed in a workspace since a moment, where a sandbox would see it.

The lowest layer of an overlay is the host's own directory. It is not frozen with a snapshot: what the host
changes there is seen after a restore, too, unless a layer above has that path.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from .._value import Value
from ..files.tree import Tree, is_whiteout, opacity, walk
from .host_directory import reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: So many paths are told, unless more are asked for.
MOST_PATHS = 100
#: So many entries are looked at where nobody has asked: some milliseconds.
MOST_ENTRIES = 1000
#: Nanoseconds that a time may lose as a number of seconds.
_ROUNDING = 1000
#: CLOCK_REALTIME_COARSE, which the module has no name for.
_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME


class Drift(Value):
    """The changes of the host since; true when there are some, or when that is not known.

    `paths` are files that were changed or added, and with a slash at the end directories in which names
    came or went. `more` says that there are others, `complete` that every entry was looked at.
    """

    paths: tuple[str, ...] = ()
    more: bool = False
    complete: bool = True

    def __bool__(self) -> bool:
        return bool(self.paths) or not self.complete


def now() -> float:
    """The time by the clock that files are stamped with, which stands still for some milliseconds."""
    return now_ns() / 1e9


def now_ns() -> int:
    """The same in nanoseconds, exactly as a file has it.

    From a new file: since Linux 6.13 a stamp can be later than the clock that it was once taken from.
    """
    try:
        file = os.memfd_create("now")
    except OSError:
        return time.clock_gettime_ns(_COARSE)
    try:
        return os.fstat(file).st_ctime_ns
    finally:
        os.close(file)


def drift(
    directory: str,
    since: float,
    layers: Sequence[str] = (),
    *,
    at: str = "",
    limit: int = MOST_PATHS,
    most: int | None = None,
) -> Drift:
    """The changes of the host in `directory` that are seen through `layers` (topmost first).

    By the time of the last change of any kind, which no process can set: a change in the very first
    milliseconds is missed. `at` goes before each path. Not more than `most` entries are looked at.
    """
    moment = int(since * 1e9) + _ROUNDING
    found: list[str] = []
    count = 0
    upper: list[Tree] = []
    try:
        with Tree(reach(directory), ours=False) as base:
            for path, status in walk(base):
                count += 1
                if most is not None and count > most:
                    return Drift(_named(found, at), False, False)
                if status.st_ctime_ns <= moment:
                    continue
                while len(upper) < len(layers):  # not before there is a change: mostly there is none
                    upper.append(Tree(layers[len(upper)], ours=True))
                if _is_covered(upper, path):
                    continue
                if len(found) == limit:
                    return Drift(_named(found, at), True)
                found.append(f"{path}/" if stat.S_ISDIR(status.st_mode) else path)
    finally:
        for tree in upper:
            tree.close()
    return Drift(_named(found, at))


def _named(found: list[str], at: str) -> tuple[str, ...]:
    return tuple(f"{at.rstrip('/')}/{path}" if at else path for path in sorted(found))


def _is_covered(layers: list[Tree], path: str) -> bool:
    """Whether one of the layers has something else than a directory there, or keeps what lies below away."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        above = "/".join(parts[:count])
        for tree in layers:
            status = tree.status(above)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode) or is_whiteout(status, -1, above):
                return True
            if _is_opaque(tree, above):
                return True
        for tree in layers:
            tree.give_back()
    return False


def _is_opaque(tree: Tree, path: str) -> bool:
    try:
        fd = tree.directory(path)
    except OSError:
        return False
    try:
        return opacity(fd) == b"y"
    finally:
        os.close(fd)
