"""`WatchedSandbox`: one sandbox in the UI, polled by its own thread. Does not import textual.

The thread polls changes, network events and processes, the more expensive the less often, and reports news. A
sandbox that does not answer cannot block the UI.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from staddle.errors import InvalidCall, SandboxClosed, StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from staddle import Change, Event, HistoryPoint, Review, Sandbox, Snapshot

#: Minimum seconds between two polls; and the pause after a poll, as a multiple of its duration.
_CHANGES, _NETWORK, _PROCESSES, _REST = 1.0, 0.5, 2.0, 10
#: The same for reviews, during which all processes of the sandbox are stopped; and the most changes of one.
_MARKS, _REST_OF_MARKS, MOST_MARKED = 1.0, 50, 2000
#: Pause after a point was taken, as a multiple of its duration: programs are stopped meanwhile.
_REST_OF_POINTS = 20
#: Events and samples to keep.
_EVENTS, SAMPLES = 1000, 60


class UsageSample:
    """Usage of all processes of a sandbox at one moment: cores, bytes, a count, bytes on disk."""

    def __init__(self, cores: float, memory: int, processes: int, disk: int) -> None:
        self.cores, self.memory, self.processes, self.disk = cores, memory, processes, disk


class WatchedSandbox:
    """A sandbox and its polled state. `sandbox` is None until it is open; `error` is the reason why not."""

    def __init__(self, label: str, tell: Callable[[WatchedSandbox, str], object]) -> None:
        self.label = label
        self.sandbox: Sandbox | None = None
        self.error = ""
        self.changes: list[Change] = []
        self.change_error = ""
        #: By path, why a commit would refuse this change: a protected name, a new executable.
        self.marks: dict[str, str] = {}
        self.noted: set[tuple[str, str]] = set()  # kind and path of the changes that are in the log
        self.is_busy: Callable[[], bool] = bool  # a command of the list runs: a review would wait for it
        self._reviewed: dict[Any, str] = {}
        self.events: deque[tuple[float, Event]] = deque(maxlen=_EVENTS)
        self.processes: list[object] = []
        self.samples: deque[UsageSample] = deque(maxlen=SAMPLES)
        #: References that keep the snapshots: an unreferenced snapshot is deleted.
        self.snapshots: list[Snapshot] = []
        self.before_discard: Snapshot | None = None
        #: The points up to the present, and those that were undone, both oldest first.
        self.points: list[HistoryPoint] = []
        self.undone: list[HistoryPoint] = []
        self.no_history = ""  # the reason why there are no points
        #: Whether to take a point of the present: a line at the prompt has ended, or the user looks at them.
        self.wants_point = True
        self._no_point_before = 0.0
        self.users = 0  # tabs that show it
        self.is_kept = False  # its changes outlive it
        self.is_attached = False  # it outlives the UI, with its snapshots
        #: A directory of the workspace whose changes are neither shown nor committed.
        self.hidden = ""
        #: Called before the sandbox is closed.
        self.before_close: Callable[[], object] = tuple
        self._tell = tell
        self._cpu: tuple[float, float] | None = None
        self._ending = threading.Event()
        self._look_now = threading.Event()
        self._looked = threading.Event()  # the changes were polled since it was cleared
        #: Whether to poll processes: while their pane is visible.
        self.wants_processes = False
        self._thread: threading.Thread | None = None

    def begin(self, sandbox: Sandbox) -> None:
        """Start to poll an opened sandbox."""
        self.sandbox = sandbox
        try:
            self.snapshots = sandbox.snapshots()
        except StaddleError:
            pass  # it has no layers
        self._thread = threading.Thread(target=self._watch, name=f"staddle-tui {self.label}", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Poll everything again soon, after an action."""
        self._look_now.set()

    def uncommitted(self, patience: float = 2.0) -> int:
        """The current number of changes; the last known one if a poll takes longer than `patience`."""
        self._looked.clear()
        self._look_now.set()
        if self._thread is not None and self._thread.is_alive():
            self._looked.wait(patience)
        return len(self.changes)

    def close(self) -> None:
        """Stop polling, and end the sandbox."""
        self._ending.set()
        self._look_now.set()
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            self.before_close()
            sandbox.close()
            for snapshot in (
                () if self.is_attached else self.snapshots
            ):  # a kept sandbox is in use as long as they are
                snapshot.close()

    def review(self) -> Review | None:
        """Review a commit; None if it would write nothing. Waits for running commands."""
        if self.sandbox is None:
            return None
        if not self.hidden:
            return self.sandbox.review()
        paths = [change.path for change in self._visible(self.sandbox.diff())]
        return self.sandbox.review(paths) if paths else None

    def _visible(self, changes: list[Change]) -> list[Change]:
        below = f"/workspace/{self.hidden}/"
        return [each for each in changes if not self.hidden or not f"{each.path}/".startswith(below)]

    # ------------------------------------------------------------ in the thread

    def _watch(self) -> None:
        looks = {"changes": self._changes, "marks": self._marks, "network": self._network}
        looks |= {"processes": self._usage, "timeline": self._timeline}
        pauses = {"changes": _CHANGES, "marks": _MARKS, "network": _NETWORK, "processes": _PROCESSES}
        pauses["timeline"] = _NETWORK
        due = dict.fromkeys(looks, 0.0)
        while not self._ending.is_set():
            is_asked = self._look_now.is_set()
            if is_asked:
                self._look_now.clear()
                due = dict.fromkeys(due, 0.0)
            for name, look in looks.items():
                began = time.monotonic()
                if began < due[name] or self.sandbox is None:
                    continue
                try:
                    if look():
                        self._tell(self, name)
                except SandboxClosed as error:
                    if not self._ending.is_set():
                        self.error = str(error)
                        self._tell(self, "lost")
                    return
                except (StaddleError, OSError) as error:
                    if name == "changes":
                        self.change_error = str(error)
                        self._tell(self, name)
                if name == "changes" and is_asked:
                    self._looked.set()
                took = time.monotonic() - began
                rest = _REST_OF_MARKS if name == "marks" else _REST
                due[name] = began + took + max(pauses[name], rest * took)
            self._look_now.wait(max(0.05, min(due.values()) - time.monotonic()))

    def _changes(self) -> bool:
        sandbox = self.sandbox
        if sandbox is None:
            return False
        found = self._visible(sandbox.diff(wait=False))
        is_new = found != self.changes or bool(self.change_error)
        self.changes, self.change_error = found, ""
        return is_new

    def _marks(self) -> bool:
        """Review the changes that were not reviewed before."""
        sandbox = self.sandbox
        changes = {_identity(change): change for change in self.changes[:MOST_MARKED]}
        fresh = [change for identity, change in changes.items() if identity not in self._reviewed]
        if sandbox is not None and fresh and not self.is_busy():
            review = sandbox.review([change.path for change in fresh])
            root = review.root
            why = {f"{root}/{item.path}": item.why for item in (*review.held, *review.refused)}
            self._reviewed |= {_identity(change): why.get(change.path, "") for change in fresh}
        self._reviewed = {identity: why for identity, why in self._reviewed.items() if identity in changes}
        before = self.marks
        self.marks = {changes[identity].path: why for identity, why in self._reviewed.items() if why}
        return self.marks != before

    def _timeline(self) -> bool:
        """Take a point of the present, and list all."""
        sandbox, began = self.sandbox, time.monotonic()
        if sandbox is None or not self.wants_point or self.is_busy() or began < self._no_point_before:
            return False
        self.wants_point = False
        try:
            found = sandbox.history()
        except InvalidCall:
            self.no_history = "no history without layers"
            return True
        self._no_point_before = time.monotonic() + _REST_OF_POINTS * (time.monotonic() - began)
        before, self.points = self.points, found
        if self.undone and found[-1].number > self.undone[-1].number:
            self.undone = []  # something else has changed since the undo
        return found != before

    def stepped(self, points: Sequence[HistoryPoint], count: int) -> None:
        """Note the points that a step took back (`count` below 0) or did again."""
        self.undone = [*reversed(points), *self.undone] if count < 0 else self.undone[len(points) :]
        self.wants_point = True
        self.look()

    def _network(self) -> bool:
        sandbox = self.sandbox
        found = sandbox.events() if sandbox is not None else ()
        self.events.extend((time.time(), event) for event in found)
        return bool(found)

    def _usage(self) -> bool:
        sandbox = self.sandbox
        if sandbox is None or not self.wants_processes:
            return False
        processes = sandbox.ps()
        now, usage = time.monotonic(), sandbox.usage
        spent = sum(process.cpu for process in processes)
        if usage.user is not None and usage.system is not None:
            spent = usage.user + usage.system
        cores = 0.0
        if self._cpu is not None and now > self._cpu[0]:
            cores = max(0.0, spent - self._cpu[1]) / (now - self._cpu[0])
        self._cpu = now, spent
        disk = sum(change.size or 0 for change in self.changes)
        memory = sum(process.memory for process in processes)
        self.samples.append(UsageSample(cores, memory, sum(p.threads for p in processes), disk))
        self.processes = list(processes)
        return True


def _identity(change: Change) -> tuple[object, ...]:
    """The facts of a change that decide whether a commit would refuse it, besides its surroundings."""
    return change.kind, change.path, change.type, change.mode, change.target
