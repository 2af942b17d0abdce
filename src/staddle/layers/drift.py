"""Drift: what the host has changed in a workspace since a moment, where a sandbox would see it.

The lowest layer of an overlay is the host's own directory. A snapshot does not freeze it. So changes of the
host are visible even after a restore, unless a layer above has that path.
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

#: The most paths to report by default.
MOST_PATHS = 100
#: The most entries to check if the user has not asked: some milliseconds.
MOST_ENTRIES = 1000
#: Nanoseconds that a time may lose as a number of seconds.
_ROUNDING = 1000
#: CLOCK_REALTIME_COARSE, for which the module has no name.
_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME


class Drift(Value):
    """The changes of the host since then; true if there are some, or if that is not known.

    `paths` are changed or added files, and, with a trailing slash, directories in which names came or went.
    `more`: there are others. `complete`: every entry was checked.
    """

    paths: tuple[str, ...] = ()
    more: bool = False
    complete: bool = True

    def __bool__(self) -> bool:
        return bool(self.paths) or not self.complete


def now() -> float:
    """Return the time of the clock for file times, which stands still for some milliseconds."""
    return now_ns() / 1e9


def now_ns() -> int:
    """Return that time in nanoseconds, exactly as a file has it.

    From a new file: since Linux 6.13 a file time can be later than that clock.
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
    """Return the changes of the host in `directory` that are visible through `layers` (topmost first).

    Decided by the ctime, which no process can set; a change in the very first milliseconds is missed. `at`
    prefixes each path. At most `most` entries are checked.
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
                while len(upper) < len(layers):  # only once there is a change: usually there is none
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
    """Whether a layer has an entry there that is no directory, or hides the layers below."""
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
