"""Commands in a sandbox held to writable_paths: what they changed besides is put back when they end.

It works where the changes of a sandbox are in a layer: what is there and was not before the
command, and is named by no glob, is dropped from the layer. The host has seen nothing of it.
"""

from __future__ import annotations

import os

from ..events import Event
from .globs import GlobSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from ..layers.changes import Change
    from ..session.sandbox import Sandbox

_RULE = "no glob of writable_paths names it"


class Keeping:
    """For one command after the other: `with` it, and put back what was not to be."""

    def __init__(self, sandbox: Sandbox, directory: str, globs: GlobSet) -> None:
        self._sandbox, self._directory, self._globs = sandbox, directory, globs
        self._before: dict[str, object] = {}

    def __enter__(self) -> Self:
        changes = unnamed(self._sandbox.diff(), self._directory, self._globs)
        self._before = {path: self._fingerprint(change) for path, change in changes.items()}
        return self

    def __exit__(self, *_: object) -> None:
        self._before = {}

    def put_back(self) -> tuple[Event, ...]:
        """What the command changed that no glob names, each as an event; after this it is undone."""
        found = unnamed(self._sandbox.diff(), self._directory, self._globs)
        new = [path for path in found if path not in self._before]
        # Of what was changed earlier, by somebody else, only the last state is there: nothing to go back to.
        again = [
            path
            for path, change in found.items()
            if path in self._before and self._before[path] != self._fingerprint(change)
        ]
        again += [path for path in self._before if path not in found]
        if new:
            self._sandbox.discard(new)
        return (
            *(Event("violation", path, f"{_RULE}; it was put back", path) for path in new),
            *(
                Event("violation", path, f"{_RULE}; it had been changed before, and stays", path)
                for path in again
            ),
        )

    def _fingerprint(self, change: Change) -> object:
        try:
            modified = self._sandbox.files.stat(change.path, follow_symlinks=False).modified
        except OSError:
            modified = 0.0
        return change.kind, change.type, change.size, change.mode, change.target, modified


def unnamed(changes: list[Change], directory: str, globs: GlobSet) -> dict[str, Change]:
    """The changes that no glob names, by path. A directory that holds something named is needed. Pure."""
    named: set[str] = set()
    rest: dict[str, Change] = {}
    for change in changes:
        paths = [change.path] if change.old_path is None else [change.path, change.old_path]
        for path in paths:
            below = os.path.relpath(path, directory)
            if not below.startswith("../") and below != ".." and globs.matches(below):
                named.add(path)
            else:
                rest[path] = change
    above = {parent for path in named for parent in _parents(path)}
    return {
        path: change
        for path, change in rest.items()
        if not (path in above and change.kind == "added" and change.type == "directory")
    }


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
