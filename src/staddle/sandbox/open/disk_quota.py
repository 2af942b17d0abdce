"""`limits.disk` for a sandbox whose changes are in our directories, on a file system without quotas.

It polls the used space of the file system, which is cheap, and counts the sandbox's own files only if that
space could exceed the limit. One thread serves all sandboxes with such a limit; the first one starts it.
"""

from __future__ import annotations

import os
import time

from ...background import Worker, do_later
from ...errors import StaddleError
from ...limits import disk, unnamed_files
from ...mounts.operations import inodes
from ...policy.limits import LARGEST
from ..workspace.snapshot import snapshot_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.agent_client import AgentClient
    from ..workspace.workspace import SandboxWorkspace

#: Seconds between two checks; the longer while nothing changes. Counting pauses for this multiple of the time
#: that it took, but at most this many seconds.
_OFTEN, _SELDOM, _SHARE, _LONGEST_BLIND = 0.03, 0.25, 10, 1.0
#: Seconds after which it counts even if the file system has not grown enough: others may have deleted files
#: while the sandbox wrote. For a limit that the user set, and for a default.
_RECOUNT, _RECOUNT_DEFAULT = 1.0, 30.0
#: The most bytes and files that can be written in a second.
_FASTEST, _MOST_FILES = 4 << 30, 400_000


class DiskQuota:
    """Disk quota of one sandbox: counts its writes, and ends its processes if they exceed the limit."""

    def __init__(
        self, workspace: SandboxWorkspace | None, most: int, *, default: bool = False, beside: str = ""
    ) -> None:
        """Set the quota. A `default` is first counted after as much was written on that file system.

        Files in `beside` count as well. For a copy, only its growth counts.
        """
        self._workspace, self._most, self.default = workspace, most, default
        self._beside = (beside,) if beside else ()
        copy = None if workspace is None else workspace.copy
        self._is_apart = workspace is None or copy is not None  # not layers, but file systems of the host
        self._at_first = disk.DiskUsage(0, 0) if copy is None else disk.occupied(copy)
        self._agent: AgentClient | None = None
        self._first: Callable[[], int] = int
        #: Used space of the file system at the last count; `_lowest` since then.
        self._used: tuple[int, int] | None = None
        self._lowest: tuple[int, int] | None = None
        self._taken = disk.DiskUsage(0, 0)
        self._not_before = self._recount_at = 0.0
        self._at_end: disk.DiskUsage | None = None  # usage when its processes were ended
        self._frozen: dict[str, disk.DiskUsage] = {}  # of layers that only snapshots use, which never change
        #: The number of times that its processes were ended.
        self.ended = 0

    def attach(self, agent: AgentClient, first: Callable[[], int] = int) -> None:
        """Start watching the sandbox; `first` returns its first process's pid on the host."""
        self._agent, self._first = agent, first
        self.begin_now()
        _WATCH.add(self)

    def begin_now(self) -> None:
        """Measure from now on: earlier deletions by others must not offset the sandbox's writes."""
        self._not_before = time.monotonic() + _OFTEN  # the first command need not wait for a first count
        self._used = self._lowest = _used(self.places) if self.default else None
        self._recount_at = self._not_before + _RECOUNT_DEFAULT

    def close(self) -> None:
        """Stop watching: the sandbox has ended."""
        _WATCH.remove(self)
        self._agent = None

    @property
    def places(self) -> tuple[str, ...]:
        """Directories on the file systems whose used space is polled."""
        return self._beside if self._workspace is None else (self._workspace.stack.store.path, *self._beside)

    @property
    def is_over(self) -> bool:
        """Whether the limit was exceeded at the last count."""
        return disk.is_over(self._taken, self._most)

    def look(self, used: tuple[int, int]) -> float:
        """Check once and act. Returns the seconds until the next check.

        `used` is the space in use on the file system now.
        """
        agent, now = self._agent, time.monotonic()
        if agent is None or used == self._used:
            return _SELDOM
        if self._lowest is not None:  # deletions elsewhere must not offset later writes here
            self._lowest = min(used[0], self._lowest[0]), min(used[1], self._lowest[1])
        if not self._may_be_over(used) and now < self._recount_at:
            return self._patience(used)
        if now < self._not_before:
            return _OFTEN
        self._taken = self._counted(self._most if self._at_end is None else None)
        self._used = self._lowest = used
        if not self.is_over:
            self._at_end = None
        elif self._at_end is None or _is_more(self._taken, self._at_end):
            try:
                self.ended += 1
                agent.end_everything()
            except StaddleError:
                pass  # it has ended by itself
            # The files stay, so that a command can remove some; only growth ends it again.
            self._at_end = self._taken = self._count(None)
        ended = time.monotonic()
        self._not_before = ended + min((ended - now) * _SHARE, _LONGEST_BLIND)
        least = _RECOUNT_DEFAULT if self.default else _RECOUNT
        self._recount_at = ended + max(least, (ended - now) * 5 * _SHARE)
        return _OFTEN

    def _may_be_over(self, used: tuple[int, int]) -> bool:
        """Whether all growth of the file system since the last count would exceed the limit."""
        if self._lowest is None or self.is_over:
            return True
        more = disk.DiskUsage(
            self._taken.bytes + max(0, used[0] - self._lowest[0]),
            self._taken.inodes + max(0, used[1] - self._lowest[1]),
        )
        return disk.is_over(more, self._most)

    def _patience(self, used: tuple[int, int]) -> float:
        """Return the seconds until a count can become necessary."""
        if self._lowest is None:
            return _OFTEN
        left = self._most - self._taken.bytes - (used[0] - self._lowest[0])
        files = inodes(self._most) - self._taken.inodes - (used[1] - self._lowest[1])
        return min(max(min(left / _FASTEST, files / _MOST_FILES), _OFTEN), _SELDOM)

    def _counted(self, most: int | None) -> disk.DiskUsage:
        """As `_count`, but repeats a count that exceeds: layers may have been merged meanwhile."""
        taken = self._count(most)
        return self._count(most) if disk.is_over(taken, self._most) else taken

    def _count(self, most: int | None) -> disk.DiskUsage:
        """Count the space used; stops when it exceeds `most`."""
        total, count = deleted = self._deleted()
        for path in (*(() if self._workspace is None else self._workspace.written()), *self._beside):
            found = disk.occupied(path, None if self._is_apart else most)
            total, count = total + found.bytes, count + found.inodes
            if not found.whole:
                break
        kept = self._of_snapshots()
        total, count = total + kept.bytes, count + kept.inodes
        taken = disk.DiskUsage(max(0, total - self._at_first.bytes), max(0, count - self._at_first.inodes))
        if self._workspace is None or self._is_apart:
            return taken
        self._workspace.is_crowded = disk.is_over(taken, self._most)
        # Removed files in frozen layers take space until the next snapshot merges them.
        if self._workspace.is_crowded and any(tree.stack.frozen for tree in self._workspace.trees.values()):
            shown = self._workspace.shown(self._most if most is not None else LARGEST)
            size, files = shown.bytes + deleted[0] + kept.bytes, shown.inodes + deleted[1] + kept.inodes
            return shown.replace(bytes=size, inodes=files)
        return taken

    def _of_snapshots(self) -> disk.DiskUsage:
        """Space of layers that only open snapshots of the sandbox use."""
        workspace = self._workspace
        if workspace is None:
            return disk.DiskUsage(0, 0)
        places = snapshot_layers(workspace).difference(workspace.written())
        self._frozen = {
            path: self._frozen.get(path) or disk.occupied(path) for path in places if os.path.isdir(path)
        }
        sizes = self._frozen.values()
        return disk.DiskUsage(sum(size.bytes for size in sizes), sum(size.inodes for size in sizes))

    def _deleted(self) -> tuple[int, int]:
        """Return the bytes and number of deleted files in layers that are still open or in flight."""
        first = self._first()
        if not first:
            return 0, 0
        from ...limits.memory_watch import below

        elsewhere = frozenset() if self._is_apart else unnamed_files.mounts_without_layers(first)
        return unnamed_files.OpenFiles(below(first)).deleted(
            elsewhere, unnamed_files.device_of_memory_files()
        )


def _is_more(now: disk.DiskUsage, before: disk.DiskUsage) -> bool:
    return now.bytes > before.bytes or now.inodes > before.inodes


def _used(places: tuple[str, ...]) -> tuple[int, int]:
    """Return the bytes and inodes in use on the file systems of these directories."""
    size = count = 0
    seen = set()
    for path in places:
        try:
            device, status = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            size += (status.f_blocks - status.f_bfree) * status.f_frsize
            count += status.f_files - status.f_ffree
    return size, count


class _QuotaWatch:
    """All sandboxes of this process with such a limit."""

    def __init__(self) -> None:
        self._several: list[DiskQuota] = []  # no lock: only append and remove
        self._worker = Worker(self._look, self._several.clear)

    def add(self, quota: DiskQuota) -> None:
        self._several.append(quota)
        if not quota.default:
            self._worker.wake()
        elif len(self._several) == 1:  # else the next check is soon enough
            do_later(self._worker.wake)

    def remove(self, quota: DiskQuota) -> None:
        try:
            self._several.remove(quota)
        except ValueError:
            pass  # added in the parent of this forked process

    def _look(self) -> float | None:
        wait = _SELDOM
        used: dict[tuple[str, ...], tuple[int, int]] = {}
        for quota in tuple(self._several):
            try:
                places = quota.places
                if places not in used:
                    used[places] = _used(places)
                wait = min(wait, quota.look(used[places]))
            except Exception:  # noqa: S112 - its layers were deleted meanwhile
                continue
        return wait if self._several else None


_WATCH = _QuotaWatch()
