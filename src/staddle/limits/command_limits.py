"""Enforce the limits of a single command, whose sandbox ends with it, and report which limit it reached."""

from __future__ import annotations

import os
import struct

from . import enforced
from .cgroup_layout import CgroupSupport
from .enforced import RLIMIT_NPROC, asked, rlimits, usable
from .supervisor import SIZE, TALLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.limits import Limits
    from .cgroup_tree import CgroupTree
    from .sandbox_cgroups import SandboxCgroups
    from .usage import RanInto, Usage


class CommandLimits:
    """The cgroups of one command. Without any, its first process watches the limits and reports in a file."""

    def __init__(self, limits: Limits, *, watched: bool = False) -> None:
        """Create the cgroups and files that enforce `limits`; LaunchFailed or OSError if the host refuses.

        `watched`: a process of ours enforces everything, without cgroups.
        """
        # Creating a cgroup takes the kernel longer than everything else a command needs, so not for a default
        # alone.
        means = usable() if asked(limits) and not watched else CgroupSupport(())
        self.limits = limits = enforced.fill_in(limits)
        self._group: SandboxCgroups | None = None
        #: Limits for the first process to watch (0: it need not).
        self.memory = 0 if means.version("memory") else limits.memory or 0
        self.processes = 0 if means.version("pids") else limits.processes or 0
        #: Resource limits of the command's own process, as from `rlimits`. RLIMIT_NPROC is missing: it must
        #: be set inside the user namespace in which the kernel counts.
        self.rlimits = tuple(item for item in rlimits(limits, means) if item[1] != RLIMIT_NPROC)
        self.tally = os.memfd_create("staddle", os.MFD_CLOEXEC) if self.memory or self.processes else -1
        try:
            if means.places:
                from . import host_cgroups

                self._group = host_cgroups.group(limits, ours=1, together=True, in_scope=_tree_in_scope)
        except BaseException:
            self.close()
            raise

    def cgroup_fds(self) -> list[int]:
        """Descriptors with which the first process enters the cgroups, if there are any."""
        return [] if self._group is None else self._group.cgroup_fds()

    def ran_into(self, status: int) -> RanInto | None:
        """Return the limit that made a command fail, if there is one; the command ended with `status`."""
        if status == 0:
            return None
        from . import usage  # only for a command that failed
        from .usage import Events, GroupMeter

        events = Events() if self._group is None else GroupMeter(self._group).events()
        if self.tally >= 0:
            told = os.pread(self.tally, SIZE, 0)
            ended, full, _ = struct.unpack(TALLY, told) if len(told) == SIZE else (0, 0, 0)
            events = Events(events.out_of_memory + ended, events.refused_processes + full)
        return usage.ran_into(self.limits, status, Events(), events)

    def usage(self, wall: float) -> Usage | None:
        """Return the total usage, if cgroups measured it."""
        if self._group is None:
            return None
        from .usage import GroupMeter

        return GroupMeter(self._group).total(wall)

    def leave(self) -> None:
        """Remove the cgroups if they are empty. For a command that another process has waited for."""
        if self._group is not None:
            self._group.leave()
        self._close_tally()

    def close(self) -> None:
        """Kill the rest of a command that has ended, or will never begin."""
        if self._group is not None:
            self._group.close()
        self._close_tally()

    def _close_tally(self) -> None:
        if self.tally >= 0:
            tally, self.tally = self.tally, -1
            os.close(tally)


def _tree_in_scope(means: CgroupSupport) -> CgroupTree:
    from .scope import ScopeTree  # only where it is needed

    return ScopeTree(means)


def command_limits(limits: Limits, *, watched: bool = False) -> CommandLimits | None:
    """Return the CommandLimits of a command; None if plain resource limits of its process are enough."""
    left = "memory" in limits.defaults or "processes" in limits.defaults
    return CommandLimits(limits, watched=watched) if left or asked(limits) else None
