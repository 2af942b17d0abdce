"""Meters for the usage of a sandbox's commands, and for the limit that a failed one reached."""

from __future__ import annotations

import time

from ..errors import StaddleError
from ..limits import usage
from ..limits.usage import Events, ProcessMeter, Usage, in_the_end, of_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ..ipc.agent_client import AgentClient
    from ..ipc.agent_messages import UsageCounts
    from ..limits.usage import GroupMeter, ProcSample, RanInto
    from ..policy.limits import Limits
    from .command import Outcome

    class MeteredLimits(Protocol):
        """Part of a sandbox's limits that a meter uses."""

        limits: Limits
        roomy: bool

        @property
        def watched(self) -> bool: ...
        @property
        def filled(self) -> int: ...
        def meter(self) -> GroupMeter | None: ...
        def tally(self) -> tuple[int, int]: ...
        def count_processes(self, started: int) -> bool: ...
        def seen(self) -> int | None: ...
        def total(self, wall: float) -> Usage: ...
        def make_room(self, agent: AgentClient) -> None: ...
        def take_room_back(self) -> None: ...


#: Reasons of commands that ended by themselves; other reasons explain themselves.
_BY_ITSELF = ("exited", "signalled", "shell_exited")
#: Seconds for which a sample of /proc is reused.
_SAMPLE_AGE = 0.005
#: A command that took fewer seconds has not forked, on any machine.
_SHORT = 0.00015


class SandboxMeter:
    """Meter of one sandbox. Thread-safe."""

    def __init__(self, agent: AgentClient, limits: MeteredLimits | None) -> None:
        self._agent, self._limits = agent, limits
        self._began = time.monotonic()
        #: The number of processes at the last call of `started`.
        self.counted = 0

    def started(self) -> int | None:
        """Return how many processes and threads were started since the last call, if known."""
        try:
            now = self._agent.count()[5]
        except StaddleError:
            return None  # the sandbox has ended
        if now < 0:
            return None
        before, self.counted = self.counted, now
        return max(0, now - before)

    def total(self) -> Usage:
        """Return the usage since the sandbox was opened."""
        wall = time.monotonic() - self._began
        used = of_process(self._agent.count(whole=True), wall)
        counted = None if self._limits is None else self._limits.total(wall)
        if counted is None or counted.user is None:
            memory = max(used.memory or 0, (counted and counted.memory) or 0)
            return used.replace(memory=memory or None, memory_is_estimate=True)
        return counted.replace(read=used.read, written=used.written, processes=used.processes)


class UsageMeter:
    """Meter for the commands of one shell, or for one program. For one thread at a time."""

    def __init__(self, sandbox: SandboxMeter, agent: AgentClient, limits: MeteredLimits | None) -> None:
        self._sandbox, self._agent, self._limits = sandbox, agent, limits
        self._group = None if limits is None else limits.meter()
        self._is_watched = limits is not None and limits.watched
        self._shell = ProcessMeter(0)
        self._sample: ProcSample | None = None
        self._sampled_at = 0.0
        self.is_prewarmed = False  # whether a sample was taken before `begin`, and the shell was idle since
        self._job: int | None = None
        self._memory: int | None = None  # of a command that starts nothing
        self._is_estimate = self._group is None
        self._before, self._filled = Events(), 0
        self._was_shell_alone = False  # whether the last command was short and started nothing

    def begin(self, shell: int = 0) -> None:
        """Start measuring a command of the shell with this host pid, or (0) a separate program."""
        if self._limits is not None and self._limits.roomy:
            self._limits.take_room_back()
        was_prewarmed, self.is_prewarmed = self.is_prewarmed, False
        if shell == self._shell.pid:
            now = time.monotonic()
            if now - self._sampled_at < _SAMPLE_AGE:
                return
            if was_prewarmed and self._is_as_before():
                self._sampled_at = now
                return
        self._look(shell)

    def _look(self, shell: int) -> None:
        """Take the samples by which a command is measured."""
        if shell != self._shell.pid:
            self._shell.park()
            self._shell, self._job = ProcessMeter(shell), None
        self._sample, self._sampled_at = self._shell.now(), time.monotonic()
        if self._group is not None:
            self._group.begin()
        elif self._sample is not None:
            self._memory = self._sample.resident
        if self._limits is not None:
            if self._is_watched:
                self._limits.seen()
            self._note_events(self._limits)

    def _is_as_before(self) -> bool:
        """Whether nothing has run since the last sample. An idle shell runs when one of its jobs ends."""
        if self._group is not None:
            return self._group.is_quiet()
        return not self._job and not self._is_watched

    def prewarm(self, shell: int) -> None:
        """Take the sample for the next command now, while the shell is idle."""
        self._look(shell)
        self.is_prewarmed = True

    def end(self, outcome: Outcome, spent: UsageCounts | None = None) -> None:
        """Add a command's usage to its outcome and, if it failed for a limit, that limit.

        `spent` is the lifetime usage of a shell that ended with it.
        """
        wall = outcome.duration
        if wall < _SHORT and not outcome.exit_code and outcome.newest_job == self._job:
            outcome.usage = Usage(wall, 0.0, 0.0, self._memory, 0, 0, 0, self._is_estimate)
            return
        used = outcome.usage or self._used(outcome, spent)
        if outcome.usage:  # a program's processes do not count for the next command
            self._sandbox.counted += used.processes or 0
        if self._group is not None and self._limits is not None:
            if self._was_shell_alone and not outcome.exit_code and self._memory is not None:
                # Reuse it for a moment: the groups are read before the next longer command.
                outcome.usage = used
                return
            counted = self._group.end(wall)
            self._memory, self._is_estimate = counted.memory, counted.memory is None
            if self._is_estimate:
                self._memory = self._limits.seen()
            # A program reports its own time; a shell only that of children it has waited for.
            user, system = (used.user, used.system) if outcome.usage else (counted.user, counted.system)
            memory, is_estimate = self._memory, self._is_estimate
            used = used.replace(user=user, system=system, memory=memory, memory_is_estimate=is_estimate)
        else:
            seen = self._limits.seen() if self._limits is not None and self._is_watched else None
            used = used.replace(memory=max(seen or 0, used.memory or 0) or None, memory_is_estimate=True)
        outcome.usage = used
        if self._limits is None:
            return
        found = None
        if outcome.exit_code and outcome.reason in _BY_ITSELF:
            found = self._ran_into(self._limits, outcome.exit_code)
            if found is None and self._look_again(self._limits):
                found = self._ran_into(self._limits, outcome.exit_code)
        # The next command may begin before the next sample: kills of this one must not count for it.
        self._note_events(self._limits)
        if found is None:
            return
        if found.limit == "memory":
            self._limits.make_room(self._agent)
        outcome.reason, outcome.why = found.limit, found.sentence

    def park(self) -> None:
        """Release descriptors that are not needed between commands."""
        self._shell.park()
        self._sampled_at, self.is_prewarmed = 0.0, False
        if self._group is not None:
            self._group.park()

    def _used(self, outcome: Outcome, spent: UsageCounts | None) -> Usage:
        """Return the usage of the shell and of the processes that it has waited for."""
        before, now = self._sample, self._shell.now() if spent is None else in_the_end(spent)
        self._sample = now
        if self._group is None and now is not None and now.resident:
            self._memory = now.resident
        job, self._job = self._job, outcome.newest_job
        wall, self._was_shell_alone = outcome.duration, False
        if before is None or now is None:
            self._sampled_at = time.monotonic()
            return Usage(wall, processes=self._sandbox.started())
        has_forked = now.faults != before.faults or outcome.newest_job != job
        self._was_shell_alone = alone = not has_forked and wall < _SAMPLE_AGE
        if not alone or self._group is None:  # else the groups are sampled again after a while
            self._sampled_at = time.monotonic()
        return Usage(
            wall,
            max(0.0, now.user - before.user),
            max(0.0, now.system - before.system),
            None if has_forked else self._memory,  # the kernel reports the children's memory only to bash
            None if now.read is None or before.read is None else now.read - before.read,
            None if now.written is None or before.written is None else now.written - before.written,
            0 if alone else self._sandbox.started(),
            self._is_estimate,
        )

    def why(self, status: int) -> str:
        """Return the limit that made a program fail, in a sentence. For a program that `end` did not see."""
        if self._limits is None or not status:
            return ""
        if self._is_watched:
            self._refresh()
        found = self._ran_into(self._limits, status)
        return "" if found is None else found.sentence

    def _ran_into(self, limits: MeteredLimits, code: int) -> RanInto | None:
        full = limits.filled > self._filled
        return usage.ran_into(limits.limits, code, self._before, self._events(), full=full)

    def _look_again(self, limits: MeteredLimits) -> bool:
        """Check for limits that were reached but not counted yet. Returns whether there may be one."""
        has_looked = self._is_watched and self._refresh()
        return limits.count_processes(self._sandbox.counted) or has_looked

    def _refresh(self) -> bool:
        """Make the agent check its limits now. Returns False if it has ended."""
        try:
            self._agent.look()
        except StaddleError:
            return False  # the sandbox has ended
        return True

    def _note_events(self, limits: MeteredLimits) -> None:
        """Record the events so far, unless none can have occurred."""
        self._filled = limits.filled
        most = limits.limits
        if (
            self._group is None
            or self._is_watched
            or (most.memory is not None and self._group.highest > most.memory // 2)
            or (most.processes is not None and self._sandbox.counted > most.processes // 2)
        ):
            self._before = self._events()

    def _events(self) -> Events:
        events = Events() if self._group is None else self._group.events()
        ended, full = (0, 0) if self._limits is None else self._limits.tally()
        return Events(events.out_of_memory + ended, events.refused_processes + full)
