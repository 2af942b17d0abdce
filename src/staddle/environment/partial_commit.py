"""Decide which changes of a command may be committed, when not everything may be written. Pure.

A change is (path, kind before, kind now): "directory", "file" for anything else, "" for nothing.
An allowed change can depend on one that is refused: a file cannot replace something that has to
stay, and a directory cannot be removed while something in it stays.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import TypeAlias

    Touched: TypeAlias = tuple[str, str, str]


def refused(changes: Collection[Touched], why_not: Callable[[str], str]) -> dict[str, str]:
    """The changes that may not stay, by path, with the reason.

    `why_not` says it of a single path, "" for one that may be written. A new directory may stay
    when something in it may.
    """
    found = {path: why for path, _, _ in changes if (why := why_not(path))}
    stays = set(_all_above(path for path, before, after in changes if path in found and before and not after))
    for path, before, after in changes:
        if before == "directory" != after and path in stays:
            found.setdefault(path, "something in it may not be removed")
    in_the_way = {
        path for path, before, after in changes if path in found and before == "file" and after == "directory"
    }
    for path, _, after in changes if in_the_way else ():
        if after and path not in found:
            place = next((above for above in parents(path) if above in in_the_way), None)
            if place is not None:
                found[path] = f"{place!r} may not be replaced"
    needed = set(_all_above(path for path, _, after in changes if after and path not in found))
    for path, before, after in changes:
        if after == "directory" and not before and path in needed:
            found.pop(path, None)
    return found


def parents(path: str) -> Iterator[str]:
    """Every directory above `path`, the nearest first."""
    while (path := path.rpartition("/")[0]) != "":
        yield path


def _all_above(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from parents(path)
