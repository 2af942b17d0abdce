"""`KeptPoints`: the points of a kept sandbox's history, one file for each, beside the record.

    <state>/staddle/sessions/NAME/history/<number>[+<merged>]  a point: its command, changes, layers, shells
                                         /at    the number of the present point, if it is not the newest
                                         /free  a file to write the next point into

A point's file appears whole, after the record names its layers, and goes before they do. So a kill at any
moment loses no point of a command that has returned. The layers and bases that these files name are never
deleted. The text of shells is the sandbox's: only a shell inside reads it again.

A command waits for its point, so no file that is on the disk is freed for one. That takes milliseconds on
ext4, as does a rename onto such a file. A dropped point's file becomes the next point's, and a rename
changes the number of merged points. Nothing waits for the disk: the record beside this directory does.
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
_AT, _FREE = "at", "free"


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
        self._names: dict[int, str] = {}
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            names = []
        for name in names:
            number, _, merged = name.partition("+")
            if number.isascii() and number.isdigit() and (found := self._read(name, int(number), merged)):
                self._hold(found, name)

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
        return [self._points[number] for number in sorted(self._points)]

    @property
    def at(self) -> int:
        """Number of the present point, as noted; -1 if there is none."""
        try:
            with open(f"{self._path}/{_AT}", encoding="ascii") as file:
                return int(file.read(20))
        except (OSError, ValueError):
            return max(self._points, default=-1)

    def write(self, point: PointRecord) -> None:
        """Write a new point, and make it the present one."""
        import json

        facts = {
            "format": FORMAT,
            "number": point.number,
            "facts": dict(point.facts),
            "snapshot": session_record.point_facts(point.snapshot),
            "shells": dict(point.shells),
        }
        os.makedirs(self._path, 0o700, exist_ok=True)
        name = str(point.number)
        self._put(name, json.dumps(facts))
        self._hold(point, name)
        try:
            os.unlink(f"{self._path}/{_AT}")  # it names the point that an undo has led to
        except FileNotFoundError:
            pass

    def go(self, number: int) -> None:
        """Make a point the present one."""
        self._put(_AT, str(number))

    def merge(self, number: int, merged: int) -> None:
        """Set the number of earlier points that a point replaces."""
        name = f"{number}+{merged}"
        os.rename(f"{self._path}/{self._names[number]}", f"{self._path}/{name}")
        self._names[number] = name

    def forget(self, number: int) -> None:
        """Delete a point; its layers may be deleted afterwards."""
        found = self._points.pop(number, None)
        if found is not None:
            try:
                os.rename(f"{self._path}/{self._names.pop(number)}", f"{self._path}/{_FREE}")
            except FileNotFoundError:
                pass
            for layer in found.snapshot.every_layer:
                self._layers[layer] -= 1
                if not self._layers[layer]:
                    del self._layers[layer]

    def clear(self) -> None:
        """Delete every point."""
        for number in list(self._points):
            self.forget(number)
        try:
            os.unlink(f"{self._path}/{_FREE}")
        except FileNotFoundError:
            pass

    def _hold(self, point: PointRecord, name: str) -> None:
        self._points[point.number], self._names[point.number] = point, name
        self._layers.update(point.snapshot.every_layer)

    def _put(self, name: str, text: str) -> None:
        free = f"{self._path}/{_FREE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(free, flags, 0o600), "w", encoding="ascii") as file:
            file.write(text)
            file.truncate()  # only now: it is slow to free what is written again
        os.replace(free, f"{self._path}/{name}")

    def _read(self, name: str, number: int, merged: str) -> PointRecord | None:
        import json

        try:
            with open(f"{self._path}/{name}", "rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            if found["format"] != FORMAT or found["number"] != number or not isinstance(found["facts"], dict):
                return None
            if merged:
                found["facts"]["merged"] = int(merged)
            record = session_record.point_of(found["snapshot"])
            return PointRecord(number, found["facts"], record, dict(found["shells"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            return None  # the layers of the present matter more
