"""The limits on everything in one sandbox, as the host program holds and measures them.

Where this host has control groups for us, the sandbox has some of its own. Every process that
its agent starts enters them, by doors that the agent is given; the agent itself stays outside, or
it would be the kernel's choice when they are full. Where there are none, the agent watches, and
tells what it did in a file that we give it.
"""

from __future__ import annotations

import os
import struct
import time

from ..errors import StaddleError
from ..limits import here, reasons, standing_in
from ..limits.usage import Events, GroupMeter, Usage
from ..zygote.requests import TALLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits.group import Group
    from ..limits.reasons import RanInto
    from ..policy.limits import Limits
    from .filling import Filling
    from .layering import Layering
    from .link import AgentLink
    from .shell import Outcome

_TALLY_SIZE = struct.calcsize(TALLY)
#: A command that was ended on purpose, or whose end nobody saw, has its reason.
_BY_ITSELF = ("exited", "signalled", "shell_exited")


class Limiting:
    """The groups of one sandbox, or the tally of its agent, or both. Thread-safe."""

    def __init__(self, limits: Limits, layering: Layering | None) -> None:
        """Make what holds `limits`. LaunchFailed when the host refuses. `layering` is where changes go."""
        self._limits = limits
        self._filling = _filling(limits, layering)
        self._began = time.monotonic()
        _, memory, processes = standing_in.stand_ins(limits)
        self._tally = os.memfd_create("staddle", os.MFD_CLOEXEC) if memory or processes else -1
        try:
            self._group: Group | None = here.group(limits) if standing_in.asked(limits) else None
            self._doors = self._group.doors() if self._group else []
        except BaseException:
            self._close_files()
            raise
        self._whole = GroupMeter(self._group) if self._group else None
        self._peaks = [0]

    @property
    def grouped(self) -> bool:
        """Whether there are control groups."""
        return self._group is not None

    def along(self) -> list[int]:
        """What the agent is to have: see zygote.blueprint.Request."""
        return [*((self._tally,) if self._tally >= 0 else ()), *self._doors]

    def attach(self, link: AgentLink) -> None:
        """The sandbox is there, at the other end of `link`."""
        if self._filling is not None:
            self._filling.attach(link)

    def handed_over(self) -> None:
        """The agent has its doors."""
        while self._doors:
            os.close(self._doors.pop())

    def account(self, link: AgentLink) -> Account:
        """Of one shell, or one program."""
        return Account(self._limits, self._group, self._tally, self._peaks, self._filling, link)

    def total(self) -> Usage:
        """What was used since the sandbox was made."""
        wall = time.monotonic() - self._began
        if self._whole is not None:
            used = self._whole.total(wall)
            # The kernel forgets the most there was with every command; whoever was told remembers.
            self._peaks[:] = [max(*self._peaks, used.memory or 0)]
            return used.replace(memory=self._peaks[0] or None)
        return Usage(wall, memory=_told(self._tally)[2] or None)

    def too_little(self) -> str:
        """Why nothing can be run, if that is for the memory; else empty."""
        ended = 0 if self._whole is None else self._whole.events().out_of_memory
        found = reasons.ran_into(self._limits, 1, Events(), Events(ended, 0))
        return "" if found is None else found.sentence

    def freeze(self) -> bool:
        """Stop everything where it stands, if there is a way to do that from here; whether it did."""
        return self._group is not None and self._group.freezes and self._group.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        if self._group is not None:
            self._group.thaw()

    def close(self) -> None:
        """The sandbox has ended: what is left in its groups ends, and they are removed."""
        if self._filling is not None:
            self._filling.close()
        if self._whole is not None:
            self._whole.park()
        if self._group is not None:
            self._group.close()
        self._close_files()

    def _close_files(self) -> None:
        if hasattr(self, "_doors"):
            self.handed_over()
        if self._tally >= 0:
            tally, self._tally = self._tally, -1
            os.close(tally)


class Account:
    """What the commands of one shell use, and which limit they run into. One thread at a time."""

    def __init__(  # noqa: PLR0917 - one caller
        self,
        limits: Limits,
        group: Group | None,
        tally: int,
        peaks: list[int],
        filling: Filling | None,
        link: AgentLink,
    ) -> None:
        """In `peaks` the most memory of any command is kept, for the whole."""
        self._limits, self._tally, self._peaks, self._link = limits, tally, peaks, link
        self._filling, self._filled = filling, 0
        self._meter = None if group is None else GroupMeter(group)
        self._before = Events()

    def begin(self) -> None:
        """A command begins."""
        if self._meter is not None:
            self._meter.begin()
        self._before = self._events()
        self._filled = self._filling.ended if self._filling else 0

    def end(self, outcome: Outcome) -> Outcome:
        """It is over: its outcome with what it used and, if that made it fail, the limit it ran into."""
        if self._meter is not None:
            used = self._meter.end(outcome.duration)
            if used.memory is not None and used.memory > self._peaks[0]:
                self._peaks[0] = used.memory
            outcome = outcome.replace(usage=used)
        if not outcome.exit_code or outcome.reason not in _BY_ITSELF:
            return outcome
        found = self._ran_into(outcome.exit_code)
        if found is None and self._tally >= 0 and self._looked_again():
            found = self._ran_into(outcome.exit_code)
        return outcome if found is None else outcome.replace(reason=found.limit, why=found.sentence)

    def _ran_into(self, code: int) -> RanInto | None:
        full = self._filling is not None and self._filling.ended > self._filled
        return reasons.ran_into(self._limits, code, self._before, self._events(), full=full)

    def _looked_again(self) -> bool:
        """Whether the agent has looked once more: it may not have come round to it meanwhile."""
        try:
            self._link.look()
        except StaddleError:
            return False  # the sandbox has ended
        return True

    def park(self) -> None:
        """Give back descriptors that are not needed between commands."""
        if self._meter is not None:
            self._meter.park()

    def _events(self) -> Events:
        events = Events() if self._meter is None else self._meter.events()
        if self._tally < 0:
            return events
        ended, full, _ = _told(self._tally)
        return Events(events.out_of_memory + ended, events.refused_processes + full)


def _filling(limits: Limits, layering: Layering | None) -> Filling | None:
    if limits.disk is None or layering is None:
        return None
    from .filling import Filling

    return Filling(layering, limits.disk)


def _told(tally: int) -> tuple[int, int, int]:
    """What the agent has told until now."""
    try:
        ended, full, peak = struct.unpack(TALLY, os.pread(tally, _TALLY_SIZE, 0))
    except (OSError, struct.error):
        return 0, 0, 0  # nothing yet, or the sandbox is closed
    return ended, full, peak
