"""What the commands of a sandbox use, and which limit they run into."""

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

#: A command that was ended on purpose, or whose end nobody saw, has its reason.
_BY_ITSELF = ("exited", "signalled", "shell_exited")
#: Seconds for which what was seen last will do; and in which no process can be started and waited for.
_A_MOMENT, _TOO_SHORT = 0.005, 0.00015


class SandboxMeter:
    """Of one sandbox. Thread-safe."""

    def __init__(self, agent: AgentClient, limiting: MeteredLimits | None) -> None:
        self._agent, self._limiting = agent, limiting
        self._began = time.monotonic()
        #: How many processes there were when somebody last asked.
        self.counted = 0

    def meter(self) -> UsageMeter:
        """Of one shell, or one program."""
        return UsageMeter(self, self._agent, self._limiting)

    def started(self) -> int | None:
        """How many processes and threads were started since this was last asked; None when nobody knows."""
        try:
            now = self._agent.count()[5]
        except StaddleError:
            return None  # the sandbox has ended
        if now < 0:
            return None
        before, self.counted = self.counted, now
        return max(0, now - before)

    def total(self) -> Usage:
        """What was used since the sandbox was made."""
        wall = time.monotonic() - self._began
        used = of_process(self._agent.count(whole=True), wall)
        if self._limiting is None:
            return used
        counted = self._limiting.total(wall)
        if counted.user is None:
            return used.replace(memory=counted.memory)
        return counted.replace(read=used.read, written=used.written, processes=used.processes)


class UsageMeter:
    """Of the commands of one shell, or of one program. One thread at a time."""

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
        """By the shell and what it has waited for."""
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
        """Of a program that somebody else waited for: the limit that made it fail, in a sentence."""
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
