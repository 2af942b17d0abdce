"""Meters for what the commands of a sandbox use, and for the limit that a failed one ran into."""

from __future__ import annotations

import time

from ..errors import StaddleError
from ..limits import reasons
from ..limits.usage import Events, ProcessMeter, Usage, in_the_end, of_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ..ipc.agent_messages import UsageCounts
    from ..limits.reasons import RanInto
    from ..limits.usage import GroupMeter, ProcSample
    from ..policy.limits import Limits
    from .command import Outcome

    class MeteredLimits(Protocol):
        """The limits of a sandbox, as far as a meter asks them."""

        limits: Limits
        roomy: bool

        @property
        def watched(self) -> bool: ...
        @property
        def filled(self) -> int: ...
        def meter(self) -> GroupMeter | None: ...
        def told(self) -> tuple[int, int]: ...
        def seen(self) -> int | None: ...
        def note(self, memory: int | None) -> None: ...
        def total(self, wall: float) -> Usage: ...
        def make_room(self, agent: AgentClient) -> None: ...
        def take_room_back(self) -> None: ...

    from ..ipc.agent_client import AgentClient

#: Reasons of a command that ended by itself; another one has a reason of its own.
_BY_ITSELF = ("exited", "signalled", "shell_exited")
#: Reuse the last sample of /proc for 5 ms. A command shorter than 150 us cannot have forked.
_A_MOMENT, _TOO_SHORT = 0.005, 0.00015


class SandboxMeter:
    """The meter of one sandbox. Thread-safe."""

    def __init__(self, agent: AgentClient, limiting: MeteredLimits | None) -> None:
        self._agent, self._limiting = agent, limiting
        self._began = time.monotonic()
        #: The number of processes at the last call of `started`.
        self.counted = 0

    def meter(self) -> UsageMeter:
        """Return a meter for one shell, or one program."""
        return UsageMeter(self, self._agent, self._limiting)

    def started(self) -> int | None:
        """Return how many processes and threads were started since the last call, if that is known."""
        try:
            now = self._agent.count()[5]
        except StaddleError:
            return None  # the sandbox has ended
        if now < 0:
            return None
        before, self.counted = self.counted, now
        return max(0, now - before)

    def total(self) -> Usage:
        """Return what was used since the sandbox was opened."""
        wall = time.monotonic() - self._began
        used = of_process(self._agent.count(whole=True), wall)
        if self._limiting is None:
            return used
        counted = self._limiting.total(wall)
        if counted.user is None:
            return used.replace(memory=counted.memory)
        return counted.replace(read=used.read, written=used.written, processes=used.processes)


class UsageMeter:
    """The meter of the commands of one shell, or of one program. For one thread at a time."""

    def __init__(self, all_: SandboxMeter, agent: AgentClient, limiting: MeteredLimits | None) -> None:
        self._all, self._agent, self._limiting = all_, agent, limiting
        self._group = None if limiting is None else limiting.meter()
        self._shell = ProcessMeter(0)
        self._line: ProcSample | None = None
        self._looked = 0.0
        self._is_ahead = False  # whether it was looked for a command to come, and nothing ran since
        self._job: int | None = None
        self._memory: int | None = None
        self._before, self._filled = Events(), 0

    def begin(self, shell: int = 0) -> None:
        """A command begins: in the shell with this number on the host, or as a program of its own."""
        now = time.monotonic()
        if self._is_ahead:
            self._is_ahead, self._looked = False, now
            return
        if self._limiting is not None and self._limiting.roomy:
            self._limiting.take_room_back()
        if shell != self._shell.pid:
            self._shell.park()
            self._shell, self._job = ProcessMeter(shell), None
        elif now - self._looked < _A_MOMENT:
            return
        self._line, self._looked = self._shell.now(), now
        if self._group is not None:
            self._group.begin()
        if self._limiting is not None:
            self._limiting.seen()
            self._before = self._events()
            self._filled = self._limiting.filled

    def get_ready(self, shell: int) -> None:
        """Look now for the first command of a shell, in which nothing has run and nothing will before."""
        self.begin(shell)
        self._is_ahead = True

    def end(self, outcome: Outcome, spent: UsageCounts | None = None) -> None:
        """It is over: add to its outcome what it used and, if that made it fail, the limit it ran into.

        `spent` is by a shell that has ended with it, in its whole life.
        """
        if outcome.duration < _TOO_SHORT and not outcome.exit_code and outcome.newest_job == self._job:
            outcome.usage = Usage(outcome.duration, 0.0, 0.0, self._memory, 0, 0, 0)
            return
        used = outcome.usage or self._used(outcome, spent)
        if self._group is not None and self._limiting is not None:
            counted = self._group.end(outcome.duration)
            if counted.memory is None:
                counted = counted.replace(memory=self._limiting.seen())
            self._limiting.note(counted.memory)
            # A program alone knows its own time; of a shell, only what it has waited for.
            used = used.replace(memory=counted.memory) if outcome.usage else _together(counted, used)
            self._memory = counted.memory
        elif self._limiting is not None and self._limiting.watched:
            used = used.replace(memory=self._limiting.seen() or used.memory)
        outcome.usage = used
        if self._limiting is None or not outcome.exit_code or outcome.reason not in _BY_ITSELF:
            return
        found = self._ran_into(self._limiting, outcome.exit_code)
        if found is None and self._limiting.watched and self._looked_again():
            found = self._ran_into(self._limiting, outcome.exit_code)
        if found is None:
            return
        if found.limit == "memory":
            self._limiting.make_room(self._agent)
        outcome.reason, outcome.why = found.limit, found.sentence

    def park(self) -> None:
        """Give back descriptors that are not needed between commands."""
        self._shell.park()
        self._looked, self._is_ahead = 0.0, False
        if self._group is not None:
            self._group.park()

    def _used(self, outcome: Outcome, spent: UsageCounts | None) -> Usage:
        """Return what the shell used, and the processes that it has waited for."""
        before, now = self._line, self._shell.now() if spent is None else in_the_end(spent)
        self._line, self._looked = now, time.monotonic()
        job, self._job = self._job, outcome.newest_job
        wall = outcome.duration
        if before is None or now is None:
            return Usage(wall, processes=self._all.started())
        idle = now.faults == before.faults and outcome.newest_job == job and wall < _A_MOMENT
        return Usage(
            wall,
            max(0.0, now.user - before.user),
            max(0.0, now.system - before.system),
            None,
            now.read - before.read,
            now.written - before.written,
            0 if idle else self._all.started(),
        )

    def why(self, status: int) -> str:
        """Return the limit that made a program fail, in a sentence; for one that was not waited for here."""
        if self._limiting is None or not status:
            return ""
        if self._limiting.watched:
            self._looked_again()
        found = self._ran_into(self._limiting, status)
        return "" if found is None else found.sentence

    def _ran_into(self, limiting: MeteredLimits, code: int) -> RanInto | None:
        full = limiting.filled > self._filled
        return reasons.ran_into(limiting.limits, code, self._before, self._events(), full=full)

    def _looked_again(self) -> bool:
        """Whether the agent has looked once more: it may not have come round to it meanwhile."""
        try:
            self._agent.look()
        except StaddleError:
            return False  # the sandbox has ended
        return True

    def _events(self) -> Events:
        events = Events() if self._group is None else self._group.events()
        ended, full = (0, 0) if self._limiting is None else self._limiting.told()
        return Events(events.out_of_memory + ended, events.refused_processes + full)


def _together(group: Usage, shell: Usage) -> Usage:
    return group.replace(read=shell.read, written=shell.written, processes=shell.processes)
