"""After a command in a sandbox, revert its changes that no glob of writable_paths matches.

This needs a sandbox whose changes are in a layer. A new change that no glob matches is dropped from the
layer, so the host never sees it.
"""

from __future__ import annotations

import os

from ..events import Event
from ..paths import covers
from .writable_paths import NOT_NAMED, parents, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Protocol

    from ..files.globs import GlobSet
    from ..layers.changes import Change
    from .writable_paths import Touched

    class LayeredSandbox(Protocol):
        """A sandbox whose changes are in a layer."""

        def diff(self) -> Sequence[Change]: ...
        def discard(self, paths: Collection[str]) -> object: ...


class WriteReverter:
    """Reverts changes of a command that no glob matches. For one command at a time."""

    def __init__(
        self, sandbox: LayeredSandbox, modified: Callable[[str], float], directory: str, globs: GlobSet
    ) -> None:
        self._sandbox, self._modified, self._directory, self._globs = sandbox, modified, directory, globs

    def fingerprints(self) -> dict[str, object]:
        """Return a fingerprint of each change that no glob matches, by path. Call it before the command."""
        changes = self._sandbox.diff()
        found, by_path = unnamed(changes, self._directory, self._globs), _by_path(changes)
        return {path: self._fingerprint(by_path[path]) for path in found}

    def revert(self, before: Mapping[str, object]) -> tuple[Event, ...]:
        """Undo the changes of the command that no glob matches. Returns an event for each."""
        changes = self._sandbox.diff()
        found, by_path = unnamed(changes, self._directory, self._globs), _by_path(changes)
        new = [path for path in found if path not in before]
        # Files that were already changed before the command: the layer has only their last state.
        again = [
            path
            for path, was in before.items()
            if path not in found or was != self._fingerprint(by_path[path])
        ]
        dropped = _least(new, by_path)
        if dropped:
            self._sandbox.discard(dropped)
        along = [path for path in by_path if path not in found and any(covers(top, path) for top in dropped)]
        told = {path: f"{found[path]}; it was put back" for path in new}
        told |= dict.fromkeys(again, f"{NOT_NAMED}; it had been changed before, and stays")
        told |= dict.fromkeys(along, "it was put back with the directory that it is in")
        return tuple(
            Event("violation", path, why, "" if path in along else path) for path, why in told.items()
        )

    def _fingerprint(self, change: Change) -> object:
        modified = self._modified(change.path)
        return change.kind, change.type, change.size, change.mode, change.target, modified


def unnamed(changes: Iterable[Change], directory: str, globs: GlobSet) -> dict[str, str]:
    """Return the changes that are not allowed, by path, with the reason. Pure."""

    def why_not(path: str) -> str:
        below = os.path.relpath(path, directory)
        outside = below == ".." or below.startswith("../")
        return NOT_NAMED if outside or not globs.matches(below) else ""

    return refused([row for change in changes for row in _rows(change)], why_not)


def _rows(change: Change) -> Iterator[Touched]:
    now = "" if change.type is None else _kind(change.type)
    if change.kind == "added":
        yield change.path, "", now
    elif change.kind == "renamed":
        yield change.path, "", now
        yield change.old_path or "", _kind(change.old_type), ""
    else:
        yield change.path, _kind(change.old_type or change.type), "" if change.kind == "deleted" else now


def _kind(name: str | None) -> str:
    return "directory" if name == "directory" else "file"


def _by_path(changes: Iterable[Change]) -> dict[str, Change]:
    return {path: change for change in changes for path, _, _ in _rows(change)}


def _least(paths: Collection[str], changes: Mapping[str, Change]) -> list[str]:
    """Return the smallest list of paths to drop that undoes all of `paths`.

    A deleted directory is restored with the first restored path in it.
    """
    back = {above for path in paths if changes[path].kind != "added" for above in parents(path)}
    return [path for path in paths if changes[path].kind != "deleted" or path not in back]
