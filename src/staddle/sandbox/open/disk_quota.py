"""`limits.disk` of a sandbox whose changes are in directories of ours, on a file system that we cannot size.

How much of that is used is asked for often, which costs nothing; what the sandbox takes is counted only when
that could be too much. One thread for all sandboxes with such a limit, started with the first of them.
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

#: Between two looks, in seconds; longer while nothing changes. Counting may take this part of the time, and
#: between two counts that are needed are no more than so many seconds, however long one takes.
_OFTEN, _SELDOM, _SHARE, _LONGEST_BLIND = 0.03, 0.25, 10, 1.0
#: Bytes and files that can be written in a second.
_FASTEST, _MOST_FILES = 4 << 30, 400_000


class DiskQuota:
    """The disk quota of one sandbox: counts what it writes, and ends its processes when that is too much."""

    def __init__(
        self, workspace: SandboxWorkspace | None, most: int, *, default: bool = False, beside: str = ""
    ) -> None:
        """A `default` is first measured when as much was written on that file system.

        What is `beside` the workspace counts as well. Of a copy counts what it is larger than at first.
        """
        self._workspace, self._most, self.default = workspace, most, default
        self._beside = (beside,) if beside else ()
        copy = None if workspace is None else workspace.copy
        self._is_apart = workspace is None or copy is not None  # from layers, on file systems of the host
        self._at_first = disk.DiskUsage(0, 0) if copy is None else disk.occupied(copy)
        self._agent: AgentClient | None = None
        self._first: Callable[[], int] = int
        self._used: tuple[int, int] | None = None  # of the file system, when it was last counted
        self._taken = disk.DiskUsage(0, 0)
        self._not_before = 0.0
        self._at_end: disk.DiskUsage | None = None  # what was there when everything was ended for it
        self._frozen: dict[str, disk.DiskUsage] = {}  # of layers that only snapshots have: they never change
        #: How often everything was ended for it.
        self.ended = 0

    def attach(self, agent: AgentClient, first: Callable[[], int] = int) -> None:
        """The sandbox is there; `first` gives its first process, as the host counts."""
        self._agent, self._first = agent, first
        self.begin_now()
        _WATCH.add(self)

    def begin_now(self) -> None:
        """Measure from now on: what others delete before the sandbox writes does not make up for that."""
        self._not_before = time.monotonic() + _OFTEN  # its first command is not to wait for a first count
        self._used = _used(self.places) if self.default else None

    def close(self) -> None:
        """The sandbox has ended."""
        _WATCH.remove(self)
        self._agent = None

    @property
    def places(self) -> tuple[str, ...]:
        """The directories that tell how much of the file systems is used."""
        return self._beside if self._workspace is None else (self._workspace.stack.store.path, *self._beside)

    @property
    def is_over(self) -> bool:
        """Whether there is too much, as far as it was counted."""
        return disk.is_over(self._taken, self._most)

    def look(self, used: tuple[int, int]) -> float:
        """Look once, and do what must be done; how many seconds until the next look.

        `used` is what is in use on the file system now.
        """
        agent, now = self._agent, time.monotonic()
        if agent is None or used == self._used:
            return _SELDOM
        if self._used is not None:  # what is deleted elsewhere must not make up for what is written here
            self._used = min(used[0], self._used[0]), min(used[1], self._used[1])
        if not self._may_be_over(used):
            return self._patience(used)
        if now < self._not_before:
            return _OFTEN
        self._taken = self._counted(self._most if self._at_end is None else None)
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
        ended = time.monotonic()
        self._not_before = ended + min((ended - now) * _SHARE, _LONGEST_BLIND)
        return _OFTEN

    def _may_be_over(self, used: tuple[int, int]) -> bool:
        """Whether what came to the file system since the last count, from any process, would be too much."""
        if self._used is None or self.is_over:
            return True
        more = disk.DiskUsage(
            self._taken.bytes + max(0, used[0] - self._used[0]),
            self._taken.inodes + max(0, used[1] - self._used[1]),
        )
        return disk.is_over(more, self._most)

    def _patience(self, used: tuple[int, int]) -> float:
        """Seconds until so much could have been written that it has to be counted, at least."""
        if self._used is None:
            return _OFTEN
        left = self._most - self._taken.bytes - (used[0] - self._used[0])
        files = inodes(self._most) - self._taken.inodes - (used[1] - self._used[1])
        return min(max(min(left / _FASTEST, files / _MOST_FILES), _OFTEN), _SELDOM)

    def _counted(self, most: int | None) -> disk.DiskUsage:
        """As `_count`; too much is counted once more: layers may have been merged during the first count."""
        taken = self._count(most)
        return self._count(most) if disk.is_over(taken, self._most) else taken

    def _count(self, most: int | None) -> disk.DiskUsage:
        """Count what is taken; stops as soon as it is over `most`."""
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
        # Files in frozen layers that were removed since take room until the next snapshot merges them.
        if self._workspace.is_crowded and any(tree.stack.frozen for tree in self._workspace.trees.values()):
            shown = self._workspace.shown(self._most if most is not None else LARGEST)
            size, files = shown.bytes + deleted[0] + kept.bytes, shown.inodes + deleted[1] + kept.inodes
            return shown.replace(bytes=size, inodes=files)
        return taken

    def _of_snapshots(self) -> disk.DiskUsage:
        """The space of layers that only open snapshots of the sandbox have."""
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
        """Bytes and number of files in layers that were deleted, and are still open or in flight."""
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
    """Bytes and inodes that are in use on the file systems of these directories."""
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
        self._several: list[DiskQuota] = []  # without a lock: it is only appended to and removed from
        self._worker = Worker(self._look, self._several.clear)

    def add(self, quota: DiskQuota) -> None:
        self._several.append(quota)
        if not quota.default:
            self._worker.wake()
        elif len(self._several) == 1:  # else the next look is soon enough
            do_later(self._worker.wake)

    def remove(self, quota: DiskQuota) -> None:
        try:
            self._several.remove(quota)
        except ValueError:
            pass  # it was added in the process that this one is a fork of

    def _look(self) -> float | None:
        wait = _SELDOM
        used: dict[tuple[str, ...], tuple[int, int]] = {}
        for quota in tuple(self._several):
            try:
                places = quota.places
                if places not in used:
                    used[places] = _used(places)
                wait = min(wait, quota.look(used[places]))
            except Exception:  # noqa: S112 - its layers have gone under it
                continue
        return wait if self._several else None


_WATCH = _QuotaWatch()
