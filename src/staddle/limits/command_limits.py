"""Enforce the limits of a single command, whose sandbox ends with it, and report which one it ran into."""

from __future__ import annotations

import os
import struct

from . import default_limits, host_cgroups, usage
from .cgroup_layout import CgroupSupport
from .enforced import RLIMIT_NPROC, asked, rlimits, usable
from .limit_tally import SIZE, TALLY
from .usage import Events, GroupMeter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.limits import Limits
    from .sandbox_cgroups import SandboxCgroups
    from .usage import RanInto, Usage


class CommandLimits:
    """Its control groups; or what its first process has to watch, and the file in which it tells."""

    def __init__(self, limits: Limits, *, watched: bool = False) -> None:
        """Make what holds `limits`. LaunchFailed or OSError when the host refuses.

        `watched`: all is held by a process of ours, and no cgroup is looked for.
        """
        # A group takes the kernel longer than all else that a command needs: not for a default alone.
        means = usable() if asked(limits) and not watched else CgroupSupport(())
        self.limits = limits = default_limits.fill_in(limits)
        self._group: SandboxCgroups | None = None
        #: For the first process to watch; 0 is nothing.
        self.memory = 0 if means.version("memory") else limits.memory or 0
        self.processes = 0 if means.version("pids") else limits.processes or 0
        #: Resource limits of the command's own process: as `rlimits` has them, but for one that has to
        #: be set where it is known who counts.
        self.rlimits = tuple(item for item in rlimits(limits, means) if item[1] != RLIMIT_NPROC)
        self.tally = os.memfd_create("staddle", os.MFD_CLOEXEC) if self.memory or self.processes else -1
        try:
            if means.places:
                self._group = host_cgroups.group(limits, ours=1, together=True)
        except BaseException:
            self.close()
            raise

    def cgroup_fds(self) -> list[int]:
        """By which the first process enters the groups, if there are any."""
        return [] if self._group is None else self._group.cgroup_fds()

    def ran_into(self, status: int) -> RanInto | None:
        """The limit that made a command fail that has ended with `status`, if one did."""
        events = Events() if self._group is None else GroupMeter(self._group).events()
        if self.tally >= 0:
            told = os.pread(self.tally, SIZE, 0)
            ended, full, _ = struct.unpack(TALLY, told) if len(told) == SIZE else (0, 0, 0)
            events = Events(events.out_of_memory + ended, events.refused_processes + full)
        return usage.ran_into(self.limits, status, Events(), events)

    def usage(self, wall: float) -> Usage | None:
        """The total usage, as far as the cgroups tell."""
        return None if self._group is None else GroupMeter(self._group).total(wall)

    def leave(self) -> None:
        """Remove the cgroups that are empty. For a command that another process has waited for."""
        if self._group is not None:
            self._group.leave()
        self._close_tally()

    def close(self) -> None:
        """It has ended, or will never begin: what is left of it ends."""
        if self._group is not None:
            self._group.close()
        self._close_tally()

    def _close_tally(self) -> None:
        if self.tally >= 0:
            tally, self.tally = self.tally, -1
            os.close(tally)


def command_limits(limits: Limits, *, watched: bool = False) -> CommandLimits | None:
    """For a command with `limits`; None where none of them takes more than its own process."""
    left = "memory" in limits.defaults or "processes" in limits.defaults
    return CommandLimits(limits, watched=watched) if left or asked(limits) else None
