"""The files of /proc, including in a sandbox whose /proc lists the processes of an outer container.

Container engines cover parts of /proc, and the kernel then refuses to mount another one. A sandbox in such a
container has the container's /proc, read-only. There a process has its pid in the container, which differs
from its pid in the sandbox. `directory` and `pids` translate. Everywhere else both are the same.

    use_outer(fd)       the pids in /proc are not ours; `fd` is that directory, and writable
    directory(7)        "/proc/7", or the directory of the process with our pid 7
    own("uid_map")      "/proc/self/uid_map", or the same file where it is writable
    pids()              the processes of our pid namespace, by our pids
"""

from __future__ import annotations

import os

PROC = "/proc"
_NOBODY = "-"
_PARENT = 1


class _OuterProc:
    """The /proc of an outer pid namespace, by descriptor, because the visible mount is read-only."""

    def __init__(self, fd: int) -> None:
        self.fd, self.root = fd, f"{PROC}/self/fd/{fd}"
        self._names: dict[int, str] = {}  # by our pids, as last read

    def directory(self, pid: int) -> str:
        name = self._names.get(pid)
        if name is None or self.number(name) != pid:
            self.pids()
            name = self._names.get(pid, _NOBODY)
        return f"{self.root}/{name}"

    def pids(self) -> list[int]:
        children: dict[str, list[str]] = {}
        for name in filter(str.isdecimal, os.listdir(self.root)):
            fields = _contents(f"{self.root}/{name}/stat").rpartition(b")")[2].split(None, 2)
            if len(fields) > _PARENT:
                children.setdefault(fields[_PARENT].decode(), []).append(name)
        found = [self._first()]
        for name in found:  # all processes of our namespace are below its first process
            found += children.get(name, ())
        self._names = {number: name for name in found if (number := self.number(name))}
        return list(self._names)

    def number(self, name: str) -> int:
        """Return our pid of a process; 0 if it is gone, or not in a namespace below that of /proc."""
        words = self._status(name, b"NSpid")
        return int(words[-1]) if len(words) > 1 else 0

    def _first(self) -> str:
        """Return the first process of our namespace: this process, or an ancestor."""
        name = os.readlink(f"{self.root}/self")
        while self.number(name) > 1:
            (name,) = (word.decode() for word in self._status(name, b"PPid")[:1])
        return name

    def _status(self, name: str, field: bytes) -> list[bytes]:
        return status_field(_contents(f"{self.root}/{name}/status"), field)


#: The outer /proc in use, if there is one.
_used: list[_OuterProc] = []


def use_outer(fd: int) -> None:
    """Use `fd`, the writable /proc of an outer pid namespace, in this process and its forks."""
    _used[:] = [_OuterProc(fd)]


def is_outer() -> bool:
    """Whether the pids in /proc are not ours."""
    return bool(_used)


def outer() -> int:
    """Return the descriptor of the outer /proc in use; -1 if there is none."""
    return _used[0].fd if _used else -1


def directory(pid: int) -> str:
    """Return the directory of a process of our pid namespace. It does not exist if the process does not."""
    return _used[0].directory(pid) if _used else f"{PROC}/{pid}"


def own(name: str) -> str:
    """Return the path of a file of this process, where it is writable."""
    return f"{_used[0].root if _used else PROC}/self/{name}"


def pids() -> list[int]:
    """Return the processes in /proc, by our pids."""
    if _used:
        return _used[0].pids()
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def number(listed: int) -> int:
    """Return our pid of the process with the pid `listed` in /proc; 0 if it is not ours."""
    return _used[0].number(str(listed)) if _used else listed


def status_field(status: bytes, field: bytes) -> list[bytes]:
    """Return the words of a field in the text of /proc/PID/status; none if it is missing."""
    return status.partition(b"\n%s:" % field)[2].partition(b"\n")[0].split()


def _contents(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""  # it has ended
    finally:
        os.close(fd)
