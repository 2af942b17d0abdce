"""`limits.disk` of a sandbox whose changes are in directories of ours: they are counted by a thread.

The directories lie on a file system that is not ours to size. How much of that is used is asked for
often, which costs nothing; what the sandbox takes is counted only when that could be too much.
One thread for all sandboxes with such a limit, started with the first of them.
"""

from __future__ import annotations

import os
import time

from ...background import Worker
from ...errors import StaddleError
from ...limits import disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.agent_client import AgentClient
    from ..workspace.workspace import SandboxWorkspace

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
