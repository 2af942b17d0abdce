"""`KeptPoints`: the points of a kept sandbox's history, one file for each, beside the record.

    <state>/staddle/sessions/NAME/history/<number>    one point: its command, changes, layers, shells
                                         /at          the number of the present point

A point's file appears whole, after the record names its layers, and goes before they do. So a kill at any
moment loses no point of a command that has returned. The layers and bases that these files name are never
deleted. The text of shells is the sandbox's: only a shell inside reads it again.
"""

from __future__ import annotations

import os
from collections import Counter

from ..._value import Value
from ...layers import session_record
from .snapshot_file import read_shells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...shell.state import SavedShell

DIRECTORY, FORMAT = "history", 1
#: The most points of a kept sandbox: each is read when it is opened.
MOST_KEPT = 100
_MOST_BYTES = 64 << 20
_AT = "at"


class PointRecord(Value):
    """The record of one point. `facts` are its command, exit code and changes, for people.

    `shells` are those of its sessions, as in the file.
    """

    number: int
    facts: Mapping[str, Any]
    snapshot: session_record.SnapshotRecord
    shells: Mapping[str, Any] = {}

    def read_shells(self) -> Mapping[str, SavedShell]:
        """Parse the shells, by session; none if they are not valid. It takes milliseconds."""
        try:
            return read_shells(self.shells)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return {}


class KeptPoints:
    """Files of the points of one kept sandbox."""

    def __init__(self, home: str) -> None:
        """Read the points in the directory `home` of a kept sandbox, except unreadable ones."""
        self._path = f"{home}/{DIRECTORY}"
        self._layers: Counter[str] = Counter()
        self._points: dict[int, PointRecord] = {}
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            names = []
        for number in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
            if (found := self._read(number)) is not None:
                self._hold(found)

    def __contains__(self, layer: object) -> bool:
        """Whether a point needs the layer of that name."""
        return layer in self._layers

    @property
    def layers(self) -> frozenset[str]:
        """Names of all layers of points."""
        return frozenset(self._layers)

    @property
    def bases(self) -> frozenset[str]:
        """Lower directories of the trees besides the workspace."""
        trees = (tree for point in self._points.values() for tree in point.snapshot.beside)
        return frozenset(base for tree in trees for base in tree.bases)

    @property
    def records(self) -> list[PointRecord]:
        """Points, oldest first."""
        return list(self._points.values())

    @property
    def at(self) -> int:
        """Number of the present point; -1 if it is not known."""
        try:
            with open(f"{self._path}/{_AT}", encoding="ascii") as file:
                return int(file.read(20))
        except (OSError, ValueError):
            return -1

    def write(self, point: PointRecord) -> None:
        """Write a point, or replace it, and make it the present one."""
        import json

        record = point.snapshot
        facts = {
            "format": FORMAT,
            "number": point.number,
            "facts": dict(point.facts),
            "snapshot": session_record.point_facts(record),
            "shells": dict(point.shells),
        }
        os.makedirs(self._path, 0o700, exist_ok=True)
        self._put(str(point.number), json.dumps(facts))
        before = self._points.pop(point.number, None)
        self._hold(point)
        if before is not None:
            self._let_go(before)

    def go(self, number: int) -> None:
        """Make a point the present one."""
        self._put(_AT, str(number))

    def forget(self, number: int) -> None:
        """Delete a point; its layers may be deleted afterwards."""
        found = self._points.pop(number, None)
        if found is not None:
            try:
                os.unlink(f"{self._path}/{number}")
            except FileNotFoundError:
                pass
            self._let_go(found)

    def clear(self) -> None:
        """Delete every point."""
        for number in list(self._points):
            self.forget(number)

    def _hold(self, point: PointRecord) -> None:
        self._points[point.number] = point
        self._points = dict(sorted(self._points.items()))
        self._layers.update(point.snapshot.every_layer)

    def _let_go(self, point: PointRecord) -> None:
        for layer in point.snapshot.every_layer:
            self._layers[layer] -= 1
            if not self._layers[layer]:
                del self._layers[layer]

    def _put(self, name: str, text: str) -> None:
        temporary = f"{self._path}/{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "w", encoding="ascii") as file:
            file.write(text)
        os.replace(temporary, f"{self._path}/{name}")

    def _read(self, number: int) -> PointRecord | None:
        import json

        try:
            with open(f"{self._path}/{number}", "rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            if found["format"] != FORMAT or found["number"] != number or not isinstance(found["facts"], dict):
                return None
            record = session_record.point_of(found["snapshot"])
            return PointRecord(number, found["facts"], record, dict(found["shells"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            return None  # the layers of the present matter more
