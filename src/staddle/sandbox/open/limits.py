"""The limits on everything in one sandbox: set, measured and removed by the host program.

Where this host has control groups for us, the sandbox has some of its own. Every process that
its agent starts enters them, by cgroup descriptors that the agent has; the agent itself stays outside, or
it would be the kernel's choice when they are full. Where there are none, the agent watches, and
tells what it did in a file that we give it.

`limits.disk` of a sandbox whose changes are in directories of ours is held by a `DiskQuota`.
"""

from __future__ import annotations

import errno
import os
import struct

from ...errors import LaunchFailed, StaddleError
from ...limits import enforced, usage
from ...limits.cgroup_layout import CgroupSupport
from ...limits.sandbox_cgroups import PEAK, SIZE, TALLY
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

#: What there is beside the limit on memory when files have used that up, to remove some.
_ROOM = 32 << 20
#: So many processes of a sandbox may be its shell's, or ours, when another one could not be started.
_OWN = 4


class SandboxLimits:
    """The groups of one sandbox, or the tally of its agent, or both. Thread-safe."""

    def __init__(self, limits: Limits, workspace: SandboxWorkspace | None) -> None:
        """Make what holds `limits`. LaunchFailed when the host refuses. `workspace` takes the changes."""
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
        #: The cgroups that it is to be in: also without limits, to be stopped there.
        self.cgroups = held_by.cgroups
        self._memory_watch: MemoryWatch | None = None
        self._first: Callable[[], int] = int
        self._full = 0
        self._group: SandboxCgroups | None = None
        self._whole: GroupMeter | None = None
        self._peak = 0
        #: Whether there is more memory for a while than there should be.
        self.roomy = False

    @property
    def extra_fds(self) -> tuple[int, ...]:
        """The descriptors that the agent needs: see ipc.forkserver_messages.SandboxRequest."""
        return (self._tally,) if self._tally >= 0 else ()

    def _hold(self, group: SandboxCgroups) -> None:
        """These are its groups, and everything in it is there: put the limits on. LaunchFailed if not."""
        self._group, self._whole = group, GroupMeter(group)
        group.limit(self.limits)
        if "memory" in self.limits.defaults:
            return  # no default is so little
        if too_little := self.too_little():  # for the shell that is there
            raise LaunchFailed("a shell could not be started", why=too_little, fix="give limits.memory more")

    def attach(
        self, agent: AgentClient, first: Callable[[], int], shell: int, cgroups: PrewarmedCgroups | None
    ) -> None:
        """The sandbox is there, at the other end of `agent`. LaunchFailed when a limit cannot be put on.

        `first` gives its first process, as the host counts; `shell` is the pid of its first shell there,
        which is in groups of `cgroups`.
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
        """The sandbox, which waited for a caller, is used from now on."""
        if self._disk_quota is not None:
            self._disk_quota.begin_now()

    def meter(self) -> GroupMeter | None:
        """A meter of the cgroups for one shell's commands; None where there are no cgroups."""
        if self._group is None:
            return None
        made, self._group.prewarmed_meter = self._group.prewarmed_meter, None
        return made or GroupMeter(self._group)

    @property
    def watched(self) -> bool:
        """Whether the agent holds some of the limits."""
        return self._tally >= 0

    @property
    def filled(self) -> int:
        """The number of times that everything was ended because too much was written."""
        return 0 if self._disk_quota is None else self._disk_quota.ended

    @property
    def is_disk_full(self) -> bool:
        """Whether the sandbox and its snapshots take more than limits.disk, as far as that was counted."""
        return self._disk_quota is not None and self._disk_quota.is_over

    def tally(self) -> tuple[int, int]:
        """Processes that were ended for their memory, times that as many were seen as there may be."""
        ended, full, _ = _read_tally(self._tally)
        return ended + (0 if self._memory_watch is None else self._memory_watch.ended), full + self._full

    def count_processes(self, started: int) -> bool:
        """A command has failed after `started` processes in all: whether there are as many as there may be.

        Where the kernel holds a default by a resource limit, and tells nobody.
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
        """The most memory that the agent saw since this was last asked, if it saw any."""
        memory = _read_tally(self._tally)[2]
        if memory:
            try:
                os.pwrite(self._tally, bytes(8), PEAK)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                # This process may write no files: it cannot hand a command over either, and is told so there.
        self._note(memory)
        return memory or None

    def _note(self, memory: int | None) -> None:
        """Note the peak of memory during a command: the kernel's own is reset with each."""
        if memory is not None and memory > self._peak:
            self._peak = memory

    def total(self, wall: float) -> Usage:
        """The usage since the sandbox was made, as far as the cgroups, or the agent, count it."""
        if self._whole is None:
            self._note(_read_tally(self._tally)[2])
            return Usage(wall, memory=self._peak or None)
        used = self._whole.total(wall)
        seen = 0 if self._group is None else self._group.highest
        self._note(max(used.memory or 0, seen) or _read_tally(self._tally)[2])
        return used.replace(memory=self._peak or None)

    def too_little(self) -> str:
        """Reason why nothing can be run for lack of memory; else empty."""
        ended = 0 if self._whole is None else self._whole.events().out_of_memory
        found = usage.ran_into(self.limits, 1, Events(), Events(ended, 0))
        return "" if found is None else found.sentence

    def make_room(self, agent: AgentClient) -> None:
        """Memory was used up. If it still is, that is by files, which no process takes along when it ends.

        So the processes that could write more are ended, and a command that removes files gets some memory.
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
        """Take the additional memory back, as soon as it is not needed any more."""
        if self._group is None or self._whole is None:
            return
        if self._whole.files() < (self.limits.memory or 0) // 2:
            self._group.limit(self.limits.replace(cpu=None, processes=None))
            self.roomy = False

    def freeze(self) -> bool:
        """Stop everything where it stands, if there is a way to do that from here; whether it did."""
        return self._group is not None and self._group.freezes and self._group.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        if self._group is not None:
            self._group.thaw()

    def close(self) -> None:
        """The sandbox has ended: what is left in its groups ends, and they are removed."""
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
    """The limits of a sandbox whose launcher holds them, and tells what it did in a file."""

    def __init__(self, limits: Limits, launched: CommandLimits | None, scratch: str = "") -> None:
        """`scratch` is the directory with its private directories, if it has no file system for them."""
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
        """Limit what is written to the copy of the workspace, if there is one, and to private directories."""
        scratch = self._scratch if os.path.isdir(self._scratch) else ""  # else file systems, with a size
        store = scratch if workspace is None else workspace.stack.store.path
        default = "disk" in self.limits.defaults
        most = enforced.default_disk(store) if default and store else self.limits.disk
        if not store or most is None:
            return
        self.limits = self.limits.replace(disk=most, defaults=self.limits.defaults)
        self._disk_quota = DiskQuota(workspace, most, default=default, beside=scratch)
        self._disk_quota.attach(agent, self._first)

    def launched_by(self, pid: int) -> None:
        """Its processes are those below this one."""
        self._first = lambda: pid

    def count_processes(self, started: int) -> bool:
        """A command has failed: whether there are as many processes as there may be.

        How many were started is not known here. The launcher looks now and then, which may be too late.
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
            # The kernel counts all processes of the user, of other sandboxes, too: they come and go.
            bound = max((_most_processes(pid) for pid in pids[-2:]), default=0)
            is_full = 0 < bound - 3 * _OWN <= threads_of_user(os.geteuid())
        self._full += is_full
        return is_full


def _most_processes(pid: int) -> int:
    """The resource limit on processes that a process has; 0 if it has none, or is gone."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            row = next((line for line in file if line.startswith(b"Max processes")), b"").split()
    except OSError:
        return 0
    return int(row[2]) if len(row) > 2 and row[2].isdigit() else 0


def _read_tally(tally: int) -> tuple[int, int, int]:
    """Read the agent's tally."""
    if tally < 0:
        return 0, 0, 0
    try:
        ended, full, peak = struct.unpack(TALLY, os.pread(tally, SIZE, 0))
    except (OSError, struct.error):
        return 0, 0, 0  # nothing yet, or the sandbox is closed
    return ended, full, peak
