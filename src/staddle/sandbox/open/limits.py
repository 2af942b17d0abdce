"""The limits on everything in one sandbox: set, measured and removed by the host program.

Where this host has control groups for us, the sandbox has some of its own. Every process that
its agent starts enters them, by cgroup descriptors that the agent has; the agent itself stays outside, or
it would be the kernel's choice when they are full. Where there are none, the agent watches, and
tells what it did in a file that we give it.

`limits.disk` of a sandbox whose changes are in directories of ours is held by `DiskQuota`: they lie on a file
system that is not ours to size. How much of that is used is asked for often, which costs nothing;
what the sandbox takes is counted only when that could be too much. One thread for all sandboxes with such a
limit, started with the first of them.
"""

from __future__ import annotations

import os
import struct
import time

from ...background import Worker
from ...errors import LaunchFailed, StaddleError
from ...limits import disk, enforced, host_cgroups, usage
from ...limits.limit_tally import PEAK, SIZE, TALLY
from ...limits.usage import Events, GroupMeter, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.agent_client import AgentClient
    from ...limits.sandbox_cgroups import SandboxCgroups
    from ...policy.limits import Limits
    from ..workspace.workspace import SandboxWorkspace

#: What there is beside the limit on memory when files have used that up, to remove some.
_ROOM = 32 << 20


class SandboxLimits:
    """The groups of one sandbox, or the tally of its agent, or both. Thread-safe."""

    def __init__(self, limits: Limits, workspace: SandboxWorkspace | None) -> None:
        """Make what holds `limits`. LaunchFailed when the host refuses. `workspace` takes the changes."""
        self.limits = limits
        _, memory, processes = enforced.stand_ins(limits)
        self._disk_quota = _disk_quota(limits.disk, memory, workspace)
        self._tally = os.memfd_create("staddle", os.MFD_CLOEXEC) if memory or processes else -1
        #: Whether it is to have control groups.
        self.grouped = enforced.asked(limits) and bool(host_cgroups.support().places)
        self._group: SandboxCgroups | None = None
        self._whole: GroupMeter | None = None
        self._peak = 0
        #: Whether there is more memory for a while than there should be.
        self.roomy = False

    def extra_fds(self) -> tuple[int, ...]:
        """The descriptors that the agent needs: see ipc.forkserver_messages.SandboxRequest."""
        return (self._tally,) if self._tally >= 0 else ()

    def hold(self, group: SandboxCgroups) -> None:
        """These are its groups, and everything in it is there: put the limits on. LaunchFailed if not."""
        self._group, self._whole = group, GroupMeter(group)
        group.limit(self.limits)
        if too_little := self.too_little():  # for the shell that is there
            raise LaunchFailed("a shell could not be started", why=too_little, fix="give limits.memory more")

    def attach(self, agent: AgentClient) -> None:
        """The sandbox is there, at the other end of `agent`."""
        if self._disk_quota is not None:
            self._disk_quota.attach(agent)

    def meter(self) -> GroupMeter | None:
        """A meter of the cgroups for one shell's commands; None where there are no cgroups."""
        return None if self._group is None else GroupMeter(self._group)

    @property
    def watched(self) -> bool:
        """Whether the agent holds some of the limits."""
        return self._tally >= 0

    @property
    def filled(self) -> int:
        """The number of times that everything was ended because too much was written."""
        return 0 if self._disk_quota is None else self._disk_quota.ended

    def tally(self) -> tuple[int, int]:
        """By the agent: processes that it ended for their memory, times that it saw all there may be."""
        return _read_tally(self._tally)[:2]

    def seen(self) -> int | None:
        """The most memory that the agent saw since this was last asked, if it saw any."""
        memory = _read_tally(self._tally)[2]
        if memory:
            os.pwrite(self._tally, bytes(8), PEAK)
        self.note(memory)
        return memory or None

    def note(self, memory: int | None) -> None:
        """Note the peak of memory during a command: the kernel's own is reset with each."""
        if memory is not None and memory > self._peak:
            self._peak = memory

    def total(self, wall: float) -> Usage:
        """The usage since the sandbox was made, as far as the cgroups, or the agent, count it."""
        if self._whole is None:
            self.note(_read_tally(self._tally)[2])
            return Usage(wall, memory=self._peak or None)
        used = self._whole.total(wall)
        self.note(used.memory or _read_tally(self._tally)[2])
        return used.replace(memory=self._peak or None)

    def too_little(self) -> str:
        """Why nothing can be run, if that is for the memory; else empty."""
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
        if self._whole is not None:
            self._whole.park()
        if self._group is not None:
            self._group.close()
        self._close_files()

    def _close_files(self) -> None:
        if self._tally >= 0:
            tally, self._tally = self._tally, -1
            os.close(tally)


def _disk_quota(most: int | None, memory: int, workspace: SandboxWorkspace | None) -> DiskQuota | None:
    """The disk quota for the limit on disk, or for one on memory that no cgroup enforces."""
    if workspace is None or (most is None and not memory):
        return None
    if most is None and not disk.in_memory(workspace.stack.store.path):
        return None
    return DiskQuota(workspace, most or memory)


def _read_tally(tally: int) -> tuple[int, int, int]:
    """Read the agent's tally."""
    try:
        ended, full, peak = struct.unpack(TALLY, os.pread(tally, SIZE, 0))
    except (OSError, struct.error):
        return 0, 0, 0  # nothing yet, or the sandbox is closed
    return ended, full, peak


#: Between two looks, in seconds; longer while nothing changes. Counting may take this part of the time.
_OFTEN, _SELDOM, _SHARE = 0.03, 0.25, 10


class DiskQuota:
    """The disk quota of one sandbox: counts what it writes, and ends its processes when that is too much."""

    def __init__(self, workspace: SandboxWorkspace, most: int) -> None:
        self._workspace, self._most = workspace, most
        self._agent: AgentClient | None = None
        self._used: tuple[int, int] | None = None  # of the file system, when it was last counted
        self._taken = disk.DiskUsage(0, 0)
        self._not_before = 0.0
        self._at_end: disk.DiskUsage | None = None  # what was there when everything was ended for it
        #: How often everything was ended for it.
        self.ended = 0

    def attach(self, agent: AgentClient) -> None:
        """The sandbox is there."""
        self._agent = agent
        self._not_before = time.monotonic() + _OFTEN  # its first command is not to wait for a first count
        _WATCH.add(self)

    def close(self) -> None:
        """The sandbox has ended."""
        _WATCH.remove(self)
        self._agent = None

    @property
    def is_over(self) -> bool:
        """Whether there is too much, as far as it was counted."""
        return disk.is_over(self._taken, self._most)

    def look(self) -> float:
        """Look once, and do what must be done; how many seconds until the next look."""
        agent, now = self._agent, time.monotonic()
        if agent is None:
            return _SELDOM
        used = _used(self._workspace.stack.store.path)
        if used == self._used:
            return _SELDOM
        if now < self._not_before or not self._may_be_over(used):
            return _OFTEN
        self._taken = self._count(self._most if self._at_end is None else None)
        self._used = used
        if not self.is_over:
            self._at_end = None
        elif self._at_end is None or _is_more(self._taken, self._at_end):
            try:
                self.ended += 1
                agent.end_everything()
            except StaddleError:
                pass  # it has ended by itself
            # What is there stays, so that a command can remove some of it: only more ends it again.
            self._at_end = self._taken = self._count(None)
        self._not_before = now + (time.monotonic() - now) * _SHARE
        return _OFTEN

    def _may_be_over(self, used: tuple[int, int]) -> bool:
        """Whether what came to the file system since the last count, by whomever, would be too much."""
        if self._used is None or self.is_over:
            return True
        more = disk.DiskUsage(
            self._taken.bytes + max(0, used[0] - self._used[0]),
            self._taken.inodes + max(0, used[1] - self._used[1]),
        )
        return disk.is_over(more, self._most)

    def _count(self, most: int | None) -> disk.DiskUsage:
        """Count what is taken; stops as soon as it is over `most`."""
        total = count = 0
        for path in self._workspace.written():
            found = disk.occupied(path, most)
            total, count = total + found.bytes, count + found.inodes
            if not found.whole:
                return disk.DiskUsage(total, count, whole=False)
        return disk.DiskUsage(total, count)


def _is_more(now: disk.DiskUsage, before: disk.DiskUsage) -> bool:
    return now.bytes > before.bytes or now.inodes > before.inodes


def _used(path: str) -> tuple[int, int]:
    """Bytes and inodes that are in use on a file system."""
    try:
        status = os.statvfs(path)
    except OSError:
        return 0, 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree


class _QuotaWatch:
    """All sandboxes of this process with such a limit."""

    def __init__(self) -> None:
        self._several: list[DiskQuota] = []  # without a lock: it is only appended to and removed from
        self._worker = Worker(self._look, self._several.clear)

    def add(self, quota: DiskQuota) -> None:
        self._several.append(quota)
        self._worker.wake()

    def remove(self, quota: DiskQuota) -> None:
        try:
            self._several.remove(quota)
        except ValueError:
            pass  # it was added in the process that this one is a fork of

    def _look(self) -> float | None:
        wait = _SELDOM
        for quota in tuple(self._several):
            try:
                wait = min(wait, quota.look())
            except Exception:  # noqa: S112 - its layers have gone under it
                continue
        return wait if self._several else None


_WATCH = _QuotaWatch()
