"""Memory that this process can still use: of the machine, and of the cgroups that it is in."""

from __future__ import annotations

import os
import time

from . import cgroups
from .fileio import read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Files of a cgroup, by version: its limit, and its usage.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
#: Fields of `memory.stat` that the kernel can reclaim: cached contents of files on a disk.
_RECLAIMABLE = {1: ("total_inactive_file", "total_active_file"), 2: ("inactive_file", "active_file")}
#: Version 1 shows a number of at least this size if there is no limit.
_UNLIMITED = 1 << 60
#: Seconds after which the limited cgroups are looked up again.
_GROUPS_AGE = 10.0


class _Memory:
    """The last measurement of one process, and the limited cgroups that it is in."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.measured_at = self.found_at = float("-inf")
        self.available = 0
        self.groups: list[tuple[int, str]] = []


_known = [_Memory(0)]


def available(age: float = 1.0) -> int:
    """Return the bytes that can still be used, on the machine and in each cgroup above this process.

    A measurement that is at most `age` seconds old is reused.
    """
    now = time.monotonic()
    if _known[0].pid != os.getpid():
        _known[0] = _Memory(os.getpid())
    last = _known[0]
    if now - last.measured_at > age:
        if now - last.found_at > _GROUPS_AGE:
            last.groups, last.found_at = limited_groups(), now
        last.available, last.measured_at = measure(groups=last.groups), now
    return last.available


def measure(root: str = "", groups: Sequence[tuple[int, str]] | None = None) -> int:
    """Measure now.

    `root` is a prefix for every path, for tests; `groups` are the limited cgroups, if known.
    """
    groups = limited_groups(root) if groups is None else groups
    return max(0, min([_of_machine(root), *(_left(version, group) for version, group in groups)]))


def limited_groups(root: str = "") -> list[tuple[int, str]]:
    """Return version and directory of each cgroup that limits the memory of this process."""
    return [item for item in ancestors("memory", root) if _limit(*item)]


def _of_machine(root: str) -> int:
    try:
        text = read_whole(f"{root}/proc/meminfo")
    except OSError:
        return _UNLIMITED
    for name in (b"MemAvailable:", b"MemFree:"):
        _, found, rest = text.partition(name)
        if found:
            return int(rest.split(None, 1)[0]) << 10
    return _UNLIMITED


def _limit(version: int, group: str) -> int:
    """Return the limit of a cgroup; 0 if it has none."""
    try:
        text = cgroups.read(group, _FILES[version][0]).strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else 0


def _left(version: int, group: str) -> int:
    """Return the bytes that can still be used in a cgroup. Its page cache counts as free."""
    try:
        used = int(cgroups.read(group, _FILES[version][1]))
        stat = cgroups.table(cgroups.read(group, "memory.stat"))
    except (OSError, ValueError):
        return _UNLIMITED
    limit = _limit(version, group) or _UNLIMITED
    return limit - used + sum(stat.get(name, 0) for name in _RECLAIMABLE[version])


def ancestors(controller: str, root: str = "") -> Iterator[tuple[int, str]]:
    """Yield version and directory of each cgroup that could limit `controller` for us, our own first."""
    try:
        own = cgroups.memberships(read_whole(f"{root}/proc/self/cgroup"))
        mounted = cgroups.mounts(read_whole(f"{root}/proc/self/mountinfo"))
    except (OSError, ValueError):
        return
    for mount in mounted:
        if mount.version == 1 and controller not in mount.controllers:
            continue
        group = cgroups.directory(mount, own.get("" if mount.version == 2 else controller, "/.."))
        top = mount.place.rstrip("/")
        while group is not None and group.startswith(f"{top}/"):
            yield mount.version, root + group
            group = os.path.dirname(group)
        # The topmost cgroup that a container sees has its own limits.
        if group is not None and mount.root != "/":
            yield mount.version, root + group
