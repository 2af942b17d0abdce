"""Limits on one whole sandbox, which the host program sets, measures and removes.

If this host delegates cgroups to us, the sandbox has its own. Every process that its agent starts enters
them, by cgroup descriptors that the agent holds. The agent stays outside, else the kernel could kill it when
memory is full. Without cgroups the agent watches, and reports in a file that we give it.

A `DiskQuota` enforces `limits.disk` if the sandbox's changes are in our directories.
"""

from __future__ import annotations

import errno
import os
import struct

from ...errors import LaunchFailed, StaddleError
from ...limits import enforced, usage
from ...limits.cgroup_layout import CgroupSupport
from ...limits.supervisor import PEAK, SIZE, TALLY
from ...limits.usage import Events, GroupMeter, Usage
from .disk_quota import DiskQuota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.agent_client import AgentClient
    from ...limits.command_limits import CommandLimits
    from ...limits.enforced import SessionLimits
    from ...limits.memory_watch import MemoryWatch
    from ...limits.prewarm import PrewarmedCgroups
    from ...limits.sandbox_cgroups import SandboxCgroups
    from ...policy.limits import Limits
    from ..workspace.workspace import SandboxWorkspace

#: Additional memory for removing files when they have used up the limit.
_ROOM = 32 << 20
#: Processes of a sandbox that may be its shell's or ours when a start failed.
_OWN = 4


class SandboxLimits:
    """Cgroups of one sandbox, the tally of its agent, or both. Thread-safe."""

    def __init__(self, limits: Limits, workspace: SandboxWorkspace | None) -> None:
        """Prepare to enforce `limits`; `workspace` stores the changes. LaunchFailed if the host refuses."""
        held_by = enforced.session_limits(limits, "" if workspace is None else workspace.stack.store.path)
        tally = -1
        if held_by.watched_memory or held_by.watched_processes:
            tally = os.memfd_create("staddle", os.MFD_CLOEXEC)
        self._begin(held_by, workspace, tally)

    def _begin(self, held_by: SessionLimits, workspace: SandboxWorkspace | None, tally: int) -> None:
        self._held_by, self._tally = held_by, tally
        self.limits = held_by.limits
        self._disk_quota = None
        if workspace is not None and held_by.quota:
            self._disk_quota = DiskQuota(workspace, held_by.quota, default="disk" in self.limits.defaults)
        #: Cgroups for it, even without limits, so that it can be frozen there.
        self.cgroups = held_by.cgroups
        self._memory_watch: MemoryWatch | None = None
        self._first: Callable[[], int] = int
        self._full = 0
        self._group: SandboxCgroups | None = None
        self._whole: GroupMeter | None = None
        self._peak = 0
        #: Whether it has additional memory for a while.
        self.roomy = False

    @property
    def extra_fds(self) -> tuple[int, ...]:
        """Descriptors that the agent needs: see ipc.forkserver_messages.SandboxRequest."""
        return (self._tally,) if self._tally >= 0 else ()

    def _hold(self, group: SandboxCgroups) -> None:
        """Put the limits on the groups that hold the sandbox. Raises LaunchFailed if that fails."""
        self._group, self._whole = group, GroupMeter(group)
        group.limit(self.limits)
        if "memory" in self.limits.defaults:
            return  # no default is that small
        if too_little := self.too_little():  # for the running shell
            raise LaunchFailed("a shell could not be started", why=too_little, fix="give limits.memory more")

    def attach(
        self, agent: AgentClient, first: Callable[[], int], shell: int, cgroups: PrewarmedCgroups | None
    ) -> None:
        """Limit the open sandbox behind `agent`. Raises LaunchFailed if a limit cannot be set.

        `first` returns its first process's pid on the host; `shell` is its first shell's, which is in groups
        of `cgroups`.
        """
        if cgroups is not None:
            self._hold(cgroups.taken(shell, self.limits))
        self._first = first
        if self._disk_quota is not None:
            self._disk_quota.attach(agent, first)
        if self._held_by.watches_memory and self.limits.memory is not None:
            from ...limits.memory_watch import MemoryWatch

            self._memory_watch = MemoryWatch(self.limits.memory, first, lambda: (shell,))
            self._memory_watch.start()

    def begin_now(self) -> None:
        """Start measuring: a caller now uses the prewarmed sandbox."""
        if self._disk_quota is not None:
            self._disk_quota.begin_now()

    def meter(self) -> GroupMeter | None:
        """Return a meter of the cgroups for one shell's commands; None without cgroups."""
        if self._group is None:
            return None
        made, self._group.prewarmed_meter = self._group.prewarmed_meter, None
        return made or GroupMeter(self._group)

    @property
    def watched(self) -> bool:
        """Whether the agent enforces some of the limits."""
        return self._tally >= 0

    @property
    def filled(self) -> int:
        """Number of times that all processes were ended for exceeding the disk limit."""
        return 0 if self._disk_quota is None else self._disk_quota.ended

    @property
    def is_disk_full(self) -> bool:
        """Whether the sandbox and its snapshots exceeded limits.disk at the last count."""
        return self._disk_quota is not None and self._disk_quota.is_over

    def tally(self) -> tuple[int, int]:
        """Return how many processes were ended for memory, and how often the process limit was reached."""
        ended, full, _ = _read_tally(self._tally)
        return ended + (0 if self._memory_watch is None else self._memory_watch.ended), full + self._full

    def count_processes(self, started: int) -> bool:
        """Whether the process limit is reached, after a failed command with `started` processes in all.

        For a default that the kernel enforces by a resource limit, which it does not report.
        """
        most = self.limits.processes
        if (
            not self._held_by.counts_processes
            or most is None
            or started < most - _OWN
            or not (first := self._first())
        ):
            return False
        from ...limits.memory_watch import threads_below

        if threads_below(first) < most - _OWN:
            return False
        self._full += 1
        return True

    def seen(self) -> int | None:
        """Return the peak memory that the agent saw since the last call, if any."""
        memory = _read_tally(self._tally)[2]
        if memory:
            try:
                os.pwrite(self._tally, bytes(8), PEAK)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                # This process may write no files. Starting a command fails as well, and reports it.
        self._note(memory)
        return memory or None

    def _note(self, memory: int | None) -> None:
        """Record the peak memory during a command, because the kernel's own is reset with each."""
        if memory is not None and memory > self._peak:
            self._peak = memory

    def total(self, wall: float) -> Usage:
        """Return the usage since the sandbox was opened, as far as the cgroups or the agent count it."""
        if self._whole is None:
            self._note(_read_tally(self._tally)[2])
            return Usage(wall, memory=self._peak or None)
        used = self._whole.total(wall)
        seen = 0 if self._group is None else self._group.highest
        self._note(max(used.memory or 0, seen) or _read_tally(self._tally)[2])
        return used.replace(memory=self._peak or None)

    def too_little(self) -> str:
        """Reason why nothing can run for lack of memory; else empty."""
        ended = 0 if self._whole is None else self._whole.events().out_of_memory
        found = usage.ran_into(self.limits, 1, Events(), Events(ended, 0))
        return "" if found is None else found.sentence

    def make_room(self, agent: AgentClient) -> None:
        """End processes if files still use up the memory: ending processes does not free files.

        Then no process writes more, and a command that removes files gets additional memory.
        """
        if self._group is None or self._whole is None or self.limits.memory is None or self.roomy:
            return
        if self._whole.files() > self.limits.memory * 3 // 4:
            try:
                agent.end_everything()
            except StaddleError:
                return  # the sandbox has ended
            self._group.widen(self.limits.replace(memory=self.limits.memory + _ROOM))
            self.roomy = True

    def take_room_back(self) -> None:
        """Take back the additional memory as soon as files need it no longer."""
        if self._group is None or self._whole is None:
            return
        if self._whole.files() < (self.limits.memory or 0) // 2:
            self._group.limit(self.limits.replace(cpu=None, processes=None))
            self.roomy = False

    def freeze(self) -> bool:
        """Freeze all processes if the cgroups allow it. Returns whether it did."""
        return self._group is not None and self._group.freezes and self._group.freeze()

    def thaw(self) -> None:
        """Thaw frozen processes."""
        if self._group is not None:
            self._group.thaw()

    def close(self) -> None:
        """Remove the groups with all processes left in them: the sandbox has ended."""
        if self._disk_quota is not None:
            self._disk_quota.close()
        if self._memory_watch is not None:
            self._memory_watch.close()
        if self._whole is not None:
            self._whole.park()
        if self._group is not None:
            if self._held_by.is_asked:
                self._group.close()
            else:
                self._group.close_later()  # its processes end with the agent anyway
        self._close_files()

    def _close_files(self) -> None:
        if self._tally >= 0:
            tally, self._tally = self._tally, -1
            os.close(tally)


class LaunchedLimits(SandboxLimits):
    """Limits of a sandbox that its launcher enforces and reports in a file."""

    def __init__(self, limits: Limits, launched: CommandLimits | None, scratch: str = "") -> None:
        """Prepare. `scratch` holds the private directories if they are not file systems of their own."""
        self._scratch = scratch
        held_by = enforced.SessionLimits(
            limits=limits if launched is None else launched.limits,
            cgroups=CgroupSupport(()),
            watched_memory=0 if launched is None else launched.memory,
            watched_processes=0 if launched is None else launched.processes,
            quota=0,
            watches_memory=False,
            counts_processes=False,
            is_asked=False,
        )
        told = launched is not None and launched.tally >= 0
        self._begin(held_by, None, os.dup(launched.tally) if launched is not None and told else -1)

    def hold_disk(self, agent: AgentClient, workspace: SandboxWorkspace | None) -> None:
        """Limit writes to the workspace's copy, if there is one, and to private directories."""
        scratch = self._scratch if os.path.isdir(self._scratch) else ""  # else file systems with a size
        store = scratch if workspace is None else workspace.stack.store.path
        default = "disk" in self.limits.defaults
        most = enforced.default_disk(store) if default and store else self.limits.disk
        if not store or most is None:
            return
        self.limits = self.limits.replace(disk=most, defaults=self.limits.defaults)
        self._disk_quota = DiskQuota(workspace, most, default=default, beside=scratch)
        self._disk_quota.attach(agent, self._first)

    def launched_by(self, pid: int) -> None:
        """Set the process below which all its processes run."""
        self._first = lambda: pid

    def count_processes(self, started: int) -> bool:
        """Whether the process limit is reached, after a command failed.

        The number of started processes is unknown here. The launcher checks only now and then.
        """
        most, first = self.limits.processes, self._first()
        if most is None or not first:
            return False
        from ...limits.memory_watch import below
        from ...limits.supervisor import threads
        from ...linux.process_tree import threads_of_user

        pids = below(first)
        is_full = threads(pids) >= most - _OWN
        if not is_full and os.geteuid() != 0:
            # The kernel counts all processes of the user, including other sandboxes': they come and go.
            bound = max((_most_processes(pid) for pid in pids[-2:]), default=0)
            is_full = 0 < bound - 3 * _OWN <= threads_of_user(os.geteuid())
        self._full += is_full
        return is_full


def _most_processes(pid: int) -> int:
    """Return the resource limit on processes of `pid`; 0 if it has none, or is gone."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            row = next((line for line in file if line.startswith(b"Max processes")), b"").split()
    except OSError:
        return 0
    return int(row[2]) if len(row) > 2 and row[2].isdigit() else 0


def _read_tally(tally: int) -> tuple[int, int, int]:
    """Read the agent's tally: processes ended for memory, times full, peak memory."""
    if tally < 0:
        return 0, 0, 0
    try:
        ended, full, peak = struct.unpack(TALLY, os.pread(tally, SIZE, 0))
    except (OSError, struct.error):
        return 0, 0, 0  # nothing yet, or the sandbox is closed
    return ended, full, peak
