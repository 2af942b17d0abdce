"""`HistoryPoint`: the state of a sandbox after one command, and its differences from another point."""

from __future__ import annotations

import shlex

from ..._value import Value
from ...errors import InvalidCall, LayerError
from ...layers.changes import Change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from ..processes import EndedProcess
    from ..workspace.kept_points import PointRecord
    from ..workspace.snapshot import Snapshot

    Cause = Literal["start", "command", "files", "background", "restore", "discard", "merge", "commit"]

#: Characters of a command, and changes, that a point keeps.
MOST_LETTERS, MOST_CHANGES = 10_000, 100


class HistoryPoint:
    """The files and shells of a sandbox after one command.

    `cause` tells what made it: "command", "files" (sb.files or an upload), "background" (a program that runs
    on), "start", "restore", "discard", "merge" or "commit". `command` is the command, or the label of a
    restored snapshot, at most 10,000 characters. `changes` are at most 100 changes; `changed` is their
    number. Both are None if there were too many to compare. `merged` counts earlier points that this one
    replaces.
    """

    def __init__(
        self,
        number: int,
        cause: Cause,
        command: str,
        exit_code: int | None,
        changes: Sequence[Change] | None,
        *,
        snapshot: Snapshot,
        merged: int = 0,
    ) -> None:
        self.number, self.cause, self.exit_code, self.snapshot = number, cause, exit_code, snapshot
        self.command = command
        self.changed = None if changes is None else len(changes)
        self.changes = None if changes is None else tuple(changes[:MOST_CHANGES])
        self.merged = merged

    @classmethod
    def of_record(cls, record: PointRecord, snapshot: Snapshot) -> HistoryPoint:
        """Return a point of an earlier process."""
        facts = record.facts
        made = cls(record.number, "command", "", None, None, snapshot=snapshot)
        made.cause, made.command = facts["cause"], str(facts["command"])
        made.exit_code, made.merged, made.changed = facts["exit_code"], facts["merged"], facts["changed"]
        found = facts["changes"]
        made.changes = None if found is None else tuple(Change(**change) for change in found)
        return made

    @property
    def facts(self) -> dict[str, object]:
        """The point as plain data, without its files."""
        return {
            "number": self.number,
            "time": self.time,
            "cause": self.cause,
            "command": self.command,
            "exit_code": self.exit_code,
            "changed": self.changed,
            "changes": None if self.changes is None else [change.as_dict() for change in self.changes],
            "merged": self.merged,
        }

    @property
    def time(self) -> float:
        """Time at which it was taken, in seconds since 1970."""
        return self.snapshot.created

    def diff(self, other: HistoryPoint) -> list[Change]:
        """Return the changes that lead from the files of `other` to the files of this point.

        Changes in the home and in /tmp come after those in the workspace.
        """
        for point in (self, other):
            if not isinstance(point, HistoryPoint):
                raise InvalidCall(
                    f"{point!r} is no point", why="only sb.history() has points", fix="give one of these"
                )
            if point.snapshot.closed:
                raise LayerError(
                    f"the point {point.number} is gone",
                    why="the sandbox is closed, or the history has dropped it",
                    fix="use a point that sb.history() lists",
                )
        return self.snapshot.diff(other.snapshot)

    def __repr__(self) -> str:
        told = f" {self.command[:60]!r}" if self.command else ""
        return f"<HistoryPoint {self.number} {self.cause}{told}>"


class HistoryStep(Value):
    """Result of an undo or a redo: the point whose files are there now, and the points between.

    `points` are the points taken back or done again, in that order. `ended` are the processes that were
    ended for it. With `history="interpreter"`, `continued` are the sessions whose interpreters went on from
    the point, and `lost` has the reason for each other one.
    """

    point: HistoryPoint
    points: tuple[HistoryPoint, ...]
    ended: tuple[EndedProcess, ...] = ()
    continued: tuple[str, ...] = ()
    lost: Mapping[str, str] = {}


def command_text(command: str | tuple[str, ...]) -> str:
    """Return a command as text of a bounded length."""
    return (command if isinstance(command, str) else shlex.join(command))[:MOST_LETTERS]


def found_in(points: Sequence[HistoryPoint], asked: HistoryPoint | int) -> HistoryPoint:
    """Return the point, given itself or its number. Raises InvalidCall if the history does not have it."""
    number = asked.number if isinstance(asked, HistoryPoint) else asked
    for point in points:
        if point.number == number and (point is asked or not isinstance(asked, HistoryPoint)):
            return point
    raise InvalidCall(
        f"the history has no point {number!r}",
        why="it was dropped, or it is of another sandbox",
        fix="use a point that sb.history() lists",
    )
