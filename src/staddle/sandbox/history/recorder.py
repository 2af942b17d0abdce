"""`Recorder`: takes a point after each command that changed files, and steps back and forth between points.

A point is taken at the end of the command, before its result is returned. So its changes are exactly those of
the command, and they can be undone at once. The layers tell whether anything changed: a command that changed
nothing makes no point. Nothing waits for a command in another session: its changes and ours then become one
point, taken when the last of them ends. Files that the host program writes become a point before the next
command begins.

While other programs run, a point copies the changes since the last point without them. Such points are taken
in at most one part in twenty of the time; changes between them become one point.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from ..._value import Value
from ...errors import InvalidCall, LayerError, StaddleError
from ...interrupts import owned
from ...layers.changes import diff
from ...paths import WORKSPACE_PATH
from .. import changes
from ..workspace.kept_points import MOST_KEPT
from ..workspace.overlay import OverlayWorkspace
from ..workspace.persistent import PersistentWorkspace
from ..workspace.snapshot import take
from ..workspace.trees import path_of
from .layer_bytes import LayerBytes
from .point import MOST_LETTERS, HistoryPoint, HistoryStep, command_text, found_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ...layers.changes import Change
    from ..open_sandbox import OpenSandbox
    from ..result import Result
    from ..session import Session
    from ..workspace.snapshot import Snapshot
    from ..workspace.trees import LayeredTree
    from ..workspace.workspace import SandboxWorkspace
    from .point import Cause

    T = TypeVar("T")

#: The most points. Above it, every second of the older half is dropped, one with each new point.
MOST_POINTS = 1000
#: The most bytes of files in layers that the history keeps, and the part of `limits.disk` (one in).
MOST_BYTES, PART_OF_DISK = 1 << 30, 2
#: While other programs run, the time between two points is this many times that of taking one.
_SHARE = 20
#: Seconds until the next attempt after a point could not be taken.
_AFTER_FAILURE = 1.0


class _Pending(Value):
    """Changes that are in no point yet."""

    cause: Cause
    command: str
    exit_code: int | None
    changes: list[Change] | None
    merged: int = 0
    #: Number of the command in the audit log.
    id: int | None = None

    def and_then(self, later: _Pending) -> _Pending:
        """Return both as one; the newest command names the point."""
        named = later if later.cause == "command" or self.cause != "command" else self
        both = self.changes is not None and later.changes is not None
        found = [*(self.changes or ()), *(later.changes or ())] if both else None
        merged = self.merged + (self.cause == later.cause == "command")
        return named.replace(changes=found, merged=merged)


class Recorder:
    """History of one open sandbox."""

    def __init__(self, inside: OpenSandbox, *, interpreters: bool = False) -> None:
        """Take the first point. Raises LayerError if the sandbox has no layers.

        With `interpreters`, points keep idle interpreters.
        """
        if not isinstance(inside.workspace, OverlayWorkspace):
            raise LayerError(
                "this sandbox cannot have a history",
                why="it has no layers: each point would copy the whole workspace",
                fix="use mode='overlay' on the namespaces backend, or leave history=True out",
            )
        self._inside, self._workspace, self._interpreters = inside, inside.workspace, interpreters
        self._lock = threading.RLock()
        self._numbers = 0
        self._points: list[HistoryPoint] = []
        self._at = -1  # index of the point that the present came from
        self._thin = 1  # index of the next point to drop
        self._not_before = 0.0
        disk = inside.limits.disk
        self._most_bytes = MOST_BYTES if disk is None else min(MOST_BYTES, disk // PART_OF_DISK)
        self._bytes = LayerBytes()
        inside.workspace.layer_points = self._bytes.users
        #: Changes that are in no point yet. Any thread appends, and asks before each command.
        self.pending: deque[_Pending] = deque()
        #: Whether the last point mounted new layers, so that these have what changed since.
        self._is_exact = True
        #: Reason why the last point could not be taken; else empty.
        self.problem = ""
        self._kept = inside.workspace if isinstance(inside.workspace, PersistentWorkspace) else None
        self._most_points = MOST_POINTS if self._kept is None else MOST_KEPT
        if self._kept is not None:
            self._continue(self._kept)
        if not self._points:
            self._mark("start")

    def _continue(self, kept: PersistentWorkspace) -> None:
        """Continue the history of the last process."""
        for record in kept.kept_points.records:
            taken = kept.past_snapshot(record, self._inside._environment)
            try:
                self._points.append(HistoryPoint.of_record(record, taken))
            except (KeyError, TypeError, ValueError):  # another version wrote it
                kept.drop_point(record.number)
                taken.close()
                continue
            self._bytes.add(taken, None)
        if not self._points:
            return
        self._numbers = self._points[-1].number + 1
        # A kill may have come between a step and the note of it: the layers tell.
        same = [index for index, point in enumerate(self._points) if self._is_at(point)]
        noted = [index for index in same if self._points[index].number == kept.kept_points.at]
        self._at = (noted or same or [len(self._points) - 1])[-1]
        if not same:
            self.pending.append(_Pending("background", "", None, None))
            self._is_exact = False
        elif self._is_touched():
            self.wrote(self._in_top_layers(), "background")

    def _is_at(self, point: HistoryPoint) -> bool:
        trees, then = self._workspace.trees, point.snapshot._trees
        return all(root in then and tree.stack.frozen == then[root].layers for root, tree in trees.items())

    def _in_top_layers(self) -> tuple[Change, ...]:
        return tuple(change for tree in self._workspace.trees.values() for change in _own_changes(tree))

    # ------------------------------------------------------------ taking points

    def is_due(self, result: Result) -> bool:
        """Whether the end of a command is the time to take a point."""
        return result.changes != () or bool(self.pending)

    def ended(self, result: Result, number: int = 0) -> None:
        """Take a point if the command changed something. Never raises because of a missing point.

        `number` is that of the command in the audit log, if there is one.
        """
        if result.changes != ():
            found = None if result.changes is None else list(result.changes)
            command = command_text(result.command)
            self.pending.append(_Pending("command", command, result.exit_code, found, id=number or None))
        self.begin()

    def wrote(self, found: tuple[Change, ...] | None, cause: Cause = "files") -> None:
        """Note changes that no command made. They become a point before the next command begins."""
        if found != ():
            self.pending.append(_Pending(cause, "", None, None if found is None else list(found)))

    def program_ended(self, command: str, exit_code: int) -> None:
        """Take a point if a program or an interpreter's cell, which is no command, has changed something."""
        found = self._workspace.changes()
        if found != ():
            changed = None if found is None else list(found)
            if self._inside.secrets is not None:
                command = self._inside.secrets.text(command)
            self.pending.append(_Pending("command", command[:MOST_LETTERS], exit_code, changed))
        self.begin()

    def begin(self) -> None:
        """Take a point of what is pending, unless a step between points is in progress."""
        if self.pending:
            owned(self._begin)

    def _begin(self) -> None:
        # Without waiting: a step waits for every command, and one of these may wait for us.
        if self._lock.acquire(blocking=False):
            try:
                self._try()
            finally:
                self._lock.release()

    def _try(self) -> None:
        """Take the pending point, unless a command runs or a point would cost too much now."""
        inside = self._inside
        is_busy = inside.executions or any(session._shell.busy for session in inside.every_session())
        if is_busy or inside.agent.is_paused or time.monotonic() < self._not_before:
            return
        try:
            self._take()
        except (OSError, StaddleError) as error:
            # The command is done: a full disk must not turn its result into an error.
            self.problem = str(error)
            self._not_before = time.monotonic() + _AFTER_FAILURE

    def settle(self) -> None:
        """Take a point of everything that is in none, background programs' changes included.

        Raises LayerError if that cannot be done.
        """
        self.wrote(self._workspace.changes(), "background")
        if not self.pending and self._is_exact and self._is_touched():
            # A result that is being made has these changes, and its point is not taken yet.
            self.wrote(self._in_top_layers(), "background")
        self._take()

    def _is_touched(self) -> bool:
        return any(not tree.stack.is_untouched() for tree in self._workspace.trees.values())

    def _take(self) -> None:
        """Take a point of what is pending now."""
        several, begun = list(self.pending), time.monotonic()
        if not several:
            return
        if self._is_exact and not self._is_touched():
            self._forget(len(several))  # a step was faster, and has these changes in a point
            return
        found, *rest = several
        for later in rest:
            found = found.and_then(later)
        snapshot = self._snapshot()
        took = time.monotonic() - begun
        self._is_exact = snapshot.method == "swap"
        self._not_before = 0.0 if self._is_exact else begun + took * (_SHARE + 1)
        self._forget(len(several))
        self.problem = ""
        self._append(
            found.cause,
            found.command,
            found.exit_code,
            found.changes,
            snapshot=snapshot,
            merged=found.merged,
            id=found.id,
        )

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self.pending.popleft()

    def _snapshot(self) -> Snapshot:
        return changes.at_rest(self._inside, self._taken)

    def _taken(self, workspace: SandboxWorkspace, sessions: list[Session]) -> Snapshot:
        if self._interpreters and self._inside.interpreters:
            from ..interpreter_twins import snapshot_with

            return snapshot_with(self._inside, "", workspace, sessions, automatic=True)
        return take(workspace, sessions, "", automatic=True)

    def _mark(self, cause: Cause, command: str = "", before: Snapshot | None = None) -> None:
        """Take a point of the present state, for an event that is no command; `before` is that of before."""
        self.pending.clear()
        snapshot = self._snapshot()
        found: list[Change] | None = []
        try:
            found = [] if before is None else snapshot.diff(before)
        except (OSError, StaddleError):
            found = None  # there was no descriptor left: what was done stays done
        self._append(cause, command, None, found, snapshot=snapshot)

    def _append(
        self,
        cause: Cause,
        command: str,
        exit_code: int | None,
        found: list[Change] | None,
        *,
        snapshot: Snapshot,
        merged: int = 0,
        id: int | None = None,
    ) -> None:
        while len(self._points) > self._at + 1:  # the branch that was undone
            self._close(self._points.pop())
        self._points.append(
            HistoryPoint(self._numbers, cause, command, exit_code, found, snapshot=snapshot, merged=merged)
        )
        self._numbers += 1
        self._at = len(self._points) - 1
        if self._kept is not None:
            point = self._points[-1]
            self._kept.keep_point(point.number, point.facts, snapshot, self._inside._environment)
        is_new = found is not None and cause in ("command", "files", "background")
        self._bytes.add(snapshot, sum(change.size or 0 for change in found or ()) if is_new else None)
        self._bound()
        changed = self._points[-1].changed
        self._inside.record("point", point=self._numbers - 1, id=id, cause=cause, changed=changed)

    # ------------------------------------------------------------ bounds

    def _bound(self) -> None:
        """Drop points until there are no more, and no more bytes, than allowed."""
        if len(self._points) > self._most_points:
            if self._thin >= self._most_points // 2:
                self._thin = 1
            self._drop(self._thin)
            self._thin += 1
        if self._bytes.total <= self._most_bytes:
            self._workspace.is_heavy = False
            return
        present = [layer for tree in self._workspace.trees.values() for layer in tree.stack.frozen]
        while len(self._points) > 2 and self._bytes.beside(present) > self._most_bytes:
            self._drop(1)
        # Layers below the present one stay with it: the next point merges them.
        self._workspace.is_heavy = self._bytes.total > self._most_bytes

    def _drop(self, index: int) -> None:
        point = self._points.pop(index)
        self._close(point)
        self._at -= index <= self._at
        if index < len(self._points):
            following = self._points[index]
            following.merged += point.merged + 1
            if self._kept is not None:
                self._kept.kept_points.merge(following.number, following.merged)

    # ------------------------------------------------------------ steps

    def listed(self) -> list[HistoryPoint]:
        """Return the points up to the present, oldest first."""
        with self._lock:
            owned(self.settle)
            return self._points[: self._at + 1]

    def found(self, asked: HistoryPoint | int) -> HistoryPoint:
        """Return a point, given itself or its number; also one that was undone and can be redone."""
        with self._lock:
            owned(self.settle)
            return found_in(self._points, asked)

    def between(
        self, first: HistoryPoint | int | None, last: HistoryPoint | int | None
    ) -> list[HistoryPoint]:
        """Return the points from `first` (default: the oldest) to `last` (default: the present)."""
        points = self.listed()
        one = points[0] if first is None else found_in(points, first)
        other = points[-1] if last is None else found_in(points, last)
        begin, end = points.index(one), points.index(other)
        if begin >= end:
            raise InvalidCall(
                "there is nothing to bisect",
                why=f"point {other.number} does not come after point {one.number}",
                fix="give an older point as good=, a newer one as bad=",
            )
        return points[begin : end + 1]

    def undo(self, n: int) -> HistoryStep:
        """Go back `n` points; see `Sandbox.undo`."""
        with self._lock:
            self.settle()
            if n > self._at:
                raise InvalidCall(
                    f"{n} points cannot be undone",
                    why=f"there are {self._at}" if self._at else self._why_none(),
                    fix="list the points with sb.history(), or `staddle log`; the first is the beginning",
                )
            gone = tuple(reversed(self._points[self._at - n + 1 : self._at + 1]))
            return self._go(self._at - n, gone)

    def _why_none(self) -> str:
        first = self._points[0].cause
        return "a commit has written the changes to the host" if first == "commit" else "nothing was changed"

    def redo(self, n: int) -> HistoryStep:
        """Go forward `n` points; see `Sandbox.redo`."""
        with self._lock:
            self.settle()  # new changes drop the branch
            ahead = len(self._points) - 1 - self._at
            if n > ahead:
                raise InvalidCall(
                    f"{n} points cannot be redone",
                    why=f"there are {ahead}" if ahead else "nothing is undone, or something changed since",
                    fix="redo() follows undo(), before the next change",
                )
            return self._go(self._at + n, tuple(self._points[self._at + 1 : self._at + n + 1]))

    def _go(self, index: int, points: tuple[HistoryPoint, ...]) -> HistoryStep:
        target = self._points[index]

        def restored(workspace: SandboxWorkspace, sessions: list[Session]) -> changes.Restored:
            done = changes.restored(self._inside, target.snapshot, "end", workspace, sessions, looks=False)
            self._at = index
            return done

        done = changes.at_rest(self._inside, restored, exchanges=True)
        if self._kept is not None:
            self._kept.kept_points.go(target.number)
        self._inside.record("stepped", point=target.number, ended=[each.command for each in done.ended])
        return HistoryStep(target, points, done.ended, done.continued, done.lost)

    def around(self, cause: Cause, command: str, work: Callable[[], T]) -> T:
        """Do `work`, which replaces the files, between two points."""
        with self._lock:
            self.settle()
            before = self._points[self._at].snapshot
            done = work()
            self._mark(cause, command, before)
            return done

    def commit(self, work: Callable[[], T], changed: Callable[[T], bool]) -> T:
        """Do `work`, which writes to the host. If it has `changed` the directory below, begin anew.

        The older points show what the host has now where they have no files of their own, unless a copy of
        the directory is below them.
        """
        with self._lock:
            self.settle()
            done = work()
            if changed(done) and not self._workspace.is_frozen:
                while self._points:
                    self._close(self._points.pop())
                self._at = -1
                self._mark("commit")
            return done

    def close(self) -> None:
        """Release every point; those of a kept sandbox stay for the next process."""
        with self._lock:
            for point in self._points:
                point.snapshot.close()
            self._points, self._at = [], -1

    def _close(self, point: HistoryPoint) -> None:
        self._bytes.drop(point.snapshot)
        if self._kept is not None:
            self._kept.drop_point(point.number)
        point.snapshot.close()


def _own_changes(tree: LayeredTree) -> list[Change]:
    """Return the changes in the top layer of a tree."""
    view, is_elsewhere = tree.stack.view(), tree.root != WORKSPACE_PATH
    top = view.replace(layers=view.layers[:1], bases=(*view.layers[1:], *view.bases))
    return diff(top, at=path_of(tree.root), elsewhere=is_elsewhere)
