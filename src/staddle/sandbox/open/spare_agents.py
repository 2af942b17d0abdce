"""A spare agent on landlock: the next sandbox of the same plan finds one that waits, with a shell.

Two interpreters have to start before an agent answers, one after the other. A program that has opened two
sandboxes of one kind will open a third, so one is started in advance while no caller waits. It is a
sandbox like any other, in which nothing has run. One that fits nobody within a minute is ended by the next
that looks, or by the end of the program.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

from ..._value import Value
from ...background import do_later
from ...errors import StaddleError
from ...policy.plan import COPY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...policy.plan import Plan

#: A directory that was granted may be another one after a while.
_OLDEST = 60.0
#: How long one that is being started is waited for, in seconds: longer than it takes on a busy machine.
_PATIENCE = 30.0


class SpareAgent(Value):
    """Agent that `launch_agent` returned for `plan`, with the functions to call when it has ended."""

    plan: Plan
    bash: str
    parent: str
    since: float
    opened: tuple[Any, ...]
    endings: list[Callable[[], None]]

    def end(self) -> None:
        """End an agent that is not wanted."""
        self.opened[0].close()
        self.opened[1].close()


class SpareAgents:
    """At most one spare, of the kind that was opened last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: SpareAgent | None = None
        #: The plan of the one that is being started, and whether it is there.
        self._making: Plan | None = None
        self._made = threading.Event()
        self._opened = 0
        self._is_over = False

    def take(self, plan: Plan, bash: str) -> SpareAgent | None:
        """Take the spare for this plan, if there is one; one that does not fit any more is ended."""
        if self._making == plan:
            self._made.wait(_PATIENCE)  # it is further than one that would be begun now
        with self._lock:
            found, self._spare = self._spare, None
        if found is None:
            return None
        fits = (found.plan, found.bash, found.parent) == (plan, bash, _parent())
        if fits and time.monotonic() - found.since < _OLDEST:
            try:
                found.opened[0].confirm()
                return found
            except StaddleError:
                pass  # it was killed
        do_later(found.end)
        return None

    def make(
        self,
        plan: Plan,
        bash: str,
        copy: Callable[[], str] | None,
        launch: Callable[[Plan, list[Callable[[], None]]], tuple[Any, ...]],
    ) -> None:
        """A sandbox of `plan` was opened: have a spare started, if it is not the first one.

        `copy` makes the directory that the next copy of the workspace will be in.
        """
        self._opened += 1
        has_copy = any(grant.origin == COPY for grant in plan.grants)
        if self._opened < 2 or (has_copy and copy is None):
            return

        def job() -> None:
            if self._spare is not None or self._is_over:
                return
            endings: list[Callable[[], None]] = []
            try:
                next_plan = plan if copy is None else _with_other_copy(plan, copy())
                self._made.clear()
                self._making = next_plan
                opened = launch(next_plan, endings)
                made = SpareAgent(next_plan, bash, _parent(), time.monotonic(), opened, endings)
                with self._lock:
                    left_over, self._spare = self._spare, made
            except Exception:  # the caller that needs one gets the error
                return
            finally:
                self._making = None
                self._made.set()
            if left_over is not None:
                left_over.end()

        do_later(job)

    def close(self) -> None:
        """End the spare."""
        with self._lock:
            found, self._spare = self._spare, None
        if found is not None:
            found.end()

    def end(self) -> None:
        """The program ends: there is no next sandbox."""
        self._is_over = True
        self.close()

    def forsake(self) -> None:
        """In a fork of the program: the spare is the parent's."""
        found, self._spare, self._opened = self._spare, None, 0
        self._lock, self._making = threading.Lock(), None
        if found is not None:
            found.opened[0].forsake()
            found.opened[1].close()


def _parent() -> str:
    """The setting that decides where private directories are made."""
    return os.environ.get("TMPDIR", "")


def _with_other_copy(plan: Plan, copy: str) -> Plan:
    grants = [grant.replace(path=copy) if grant.origin == COPY else grant for grant in plan.grants]
    return plan.replace(grants=tuple(sorted(grants, key=lambda grant: grant.path)), cwd=copy)


SPARES = SpareAgents()
atexit.register(SPARES.end)
os.register_at_fork(after_in_child=SPARES.forsake)
