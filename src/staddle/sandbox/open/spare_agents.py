"""A spare agent on landlock: it waits, with a shell, for the next sandbox with the same plan.

Two interpreters must start, one after the other, before an agent answers. A program that has opened two
sandboxes of one kind will probably open a third. That agent is started while no caller waits; nothing runs in
it. If nobody takes it within a minute, the next lookup or the end of the program ends it.
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

#: Seconds after which a spare is too old: a granted directory may have been replaced.
_OLDEST = 60.0
#: Seconds to wait for a spare that is starting: longer than a start takes on a busy machine.
_PATIENCE = 30.0


class SpareAgent(Value):
    """Agent that `launch_agent` returned for `plan`, with the functions to call after its end."""

    plan: Plan
    bash: str
    parent: str
    since: float
    opened: tuple[Any, ...]
    endings: list[Callable[[], None]]

    def end(self) -> None:
        """End the agent, which was not used."""
        self.opened[0].close()
        self.opened[1].close()


class SpareAgents:
    """Holds at most one spare, of the kind opened last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: SpareAgent | None = None
        #: Plan of the spare that is starting, and an event for its readiness.
        self._making: Plan | None = None
        self._made = threading.Event()
        self._opened = 0
        self._is_over = False

    def take(self, plan: Plan, bash: str) -> SpareAgent | None:
        """Take the spare for this plan, if there is one; a spare that no longer fits is ended."""
        if self._making == plan:
            self._made.wait(_PATIENCE)  # it is ahead of one that would start now
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
        """Start a spare after a sandbox with `plan` was opened, except after the first one.

        `copy` creates the directory for the next copy of the workspace.
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
            except Exception:  # the next caller gets the error
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
        """Stop for good: the program ends."""
        self._is_over = True
        self.close()

    def forsake(self) -> None:
        """Drop the spare in a forked child: it belongs to the parent."""
        found, self._spare, self._opened = self._spare, None, 0
        self._lock, self._making = threading.Lock(), None
        if found is not None:
            found.opened[0].forsake()
            found.opened[1].close()


def _parent() -> str:
    """Return the setting that decides where private directories are created."""
    return os.environ.get("TMPDIR", "")


def _with_other_copy(plan: Plan, copy: str) -> Plan:
    grants = [grant.replace(path=copy) if grant.origin == COPY else grant for grant in plan.grants]
    return plan.replace(grants=tuple(sorted(grants, key=lambda grant: grant.path)), cwd=copy)


SPARES = SpareAgents()
atexit.register(SPARES.end)
os.register_at_fork(after_in_child=SPARES.forsake)
