"""What a part of the soak uses while it runs, and what is left of it afterwards."""

from __future__ import annotations

import ctypes
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGESIZE")
#: prctl: orphans below this process become its children, so that none of them is lost.
_PR_SET_CHILD_SUBREAPER = 36
#: Growth beyond these is not flat: bytes of memory, threads.
MEMORY, THREADS = 4 << 20, 2
#: Descriptors that an agent closes when it is idle, or when they are this many.
LATER = 32
#: In the first so many steps of a series caches and the heap fill: there twice as much memory may be needed.
WARM_UP = 1000
#: Names that are made outside of the part's own directories.
_OURS = re.compile("(staddle-)?[0-9a-f]{12,32}")
#: Letters of the name of a store. As root an empty one stays until the next program sweeps.
_STORE = 16
#: How long the end of a program may take to be complete.
PATIENCE = 20.0


@dataclass(frozen=True)
class Reading:
    """Memory, descriptors and threads of the host program, and of the largest process below it."""

    memory: int
    descriptors: int
    threads: int
    helper_memory: int
    helper_descriptors: int
    processes: int

    @classmethod
    def now(cls) -> Reading:
        helpers = [(resident(pid), _descriptors(pid)) for pid in _below(os.getpid())]
        return cls(
            resident("self"),
            _descriptors("self"),
            len(os.listdir("/proc/self/task")),
            max((memory for memory, _ in helpers), default=0),
            max((count for _, count in helpers), default=0),
            len(helpers),
        )


@dataclass(frozen=True)
class Figure:
    """One measure at the beginning and at the end: medians, because single readings jump."""

    name: str
    first: float
    last: float
    allowance: float

    @property
    def is_flat(self) -> bool:
        return self.last - self.first <= self.allowance


def figures(readings: list[list[Reading]], steps: int, descriptors: int) -> list[Figure]:
    """Compare the second quarter of each series with the last; caches fill in the first. The worst counts."""

    def figure(name: str, allowance: float) -> Figure:
        return max(
            (_figure(name, allowance, series) for series in readings), key=lambda one: one.last - one.first
        )

    memory = MEMORY if steps > WARM_UP * len(readings) else 2 * MEMORY
    return [
        figure("memory", memory),
        figure("descriptors", descriptors),
        figure("threads", THREADS),
        figure("helper_memory", memory),
        figure("helper_descriptors", descriptors + LATER),
    ]


def _figure(name: str, allowance: float, series: list[Reading]) -> Figure:
    quarter = max(1, len(series) // 4)
    early, late = series[quarter : 2 * quarter] or series[:1], series[-quarter:]
    first, last = (statistics.median(getattr(one, name) for one in some) for some in (early, late))
    return Figure(name, first, last, allowance)


def resident(pid: int | str) -> int:
    """The bytes of memory that a process has; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def _descriptors(pid: int | str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0  # gone, or not to be looked into by a user


def _below(top: int) -> list[int]:
    """The processes below `top`; one may be missed while others end, but it costs this process nothing."""
    found = [top]
    for pid in found:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue  # it has ended
    return found[1:]


def descendants(top: int) -> set[int]:
    """All processes below `top`, zombies too: of all that there are on the machine."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_bytes()
        except OSError:
            continue
        parents[int(name)] = int(stat.rpartition(b")")[2].split()[1])
    found: set[int] = set()
    more = {top}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


def adopt_orphans() -> None:
    """Be the parent of every process below this one whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def reap(besides: int = 0) -> None:
    """Reap the children that have ended, except one that has another waiter."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == besides:
                return
            os.waitpid(found.si_pid, 0)
        except ChildProcessError:
            return


def none_left(list_them: Callable[[], list[str]], seconds: float = PATIENCE) -> list[str]:
    """What `list_them` still lists when there was time enough for it to go."""
    end = time.monotonic() + seconds
    while True:
        left = list_them()
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


class Leftovers:
    """Compares a machine with how it was: processes, mounts, control groups, directories.

    Nothing else on the machine should use staddle meanwhile: mounts, groups and the names in
    /tmp are everybody's. `places` are directories that the part has for itself.
    """

    def __init__(self, places: list[Path]) -> None:
        self._places = places
        self._before = set(self._listed())

    def left(self) -> list[str]:
        """What is there and was not before, once it had time to go. Also reaps what has ended."""
        return none_left(self.now)

    def now(self) -> list[str]:
        """What is there and was not before, and every process below this one."""
        reap()
        running = [f"process {_shown(pid)}" for pid in descendants(os.getpid())]
        return running + sorted(set(self._listed()) - self._before)

    def _listed(self) -> Iterator[str]:
        for place in self._places:
            yield from files_below(place)
        for directory in ("/tmp", "/var/tmp", f"/var/tmp/staddle-commits-{os.geteuid()}"):
            yield from map(str, filter(_is_ours, Path(directory).glob("*")))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            yield f"mount {line.split(' ', 5)[4]}"
        yield from map(str, _control_groups())


def files_below(place: Path) -> list[str]:
    """Every file below a directory, and every directory that is not one of the usual, empty ones."""
    return [
        f"{directory}/{name}"
        for directory, inner, names in os.walk(place)
        for name in (*names, *(name for name in inner if name.isdigit() and len(name) < _STORE))
    ]


def _control_groups() -> Iterator[Path]:
    """The groups of programs that have ended; the name of one says which: staddle-NAMESPACE-PID-START."""
    space = str(os.stat("/proc/self/ns/pid").st_ino)
    for directory, inner, _ in os.walk("/sys/fs/cgroup"):
        for name in [name for name in inner if name.startswith("staddle-")]:
            inner.remove(name)
            words = name.split("-")
            if words[1:2] == [space] and not Path(f"/proc/{words[2]}").exists():
                yield Path(directory, name)


def _is_ours(path: Path) -> bool:
    """Whether it is a private directory of the landlock backend, or a commit, of this user."""
    try:
        return bool(_OURS.fullmatch(path.name)) and path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _shown(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        words = b""
    return f"{pid} {words[:80].decode(errors='replace')}".strip()
