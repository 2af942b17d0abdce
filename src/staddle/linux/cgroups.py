"""Cgroups as the kernel shows them: mounts, memberships, and reading and writing their files.

Thin bindings for both versions; other packages decide which to use, and for what.
https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/
"""

from __future__ import annotations

import os

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The file that lists the processes of a cgroup; a pid that is written to it is moved there.
MEMBERS = "cgroup.procs"
#: In version 1, the file that lists the threads. A thread that writes 0 to it moves only itself. For
#: `MEMBERS`, the kernel first waits some 10 ms until no process on the machine is being started.
THREADS = "tasks"
#: The longest file that we read in a cgroup: numbers and a few words.
_LONGEST = 1 << 16


class Mount(Value):
    """A hierarchy of cgroups, mounted at `place`; its top is the cgroup `root`."""

    version: int
    controllers: frozenset[str]  # empty for version 2, where each cgroup lists its own
    place: str
    root: str
    read_only: bool


def mounts(mountinfo: bytes) -> tuple[Mount, ...]:
    """Return the hierarchies in the text of /proc/PID/mountinfo, the last mounted at a place first."""
    found = []
    for line in mountinfo.splitlines():
        words = line.split(b" ")
        try:
            kind, _, more = words[words.index(b"-", 6) + 1 :][:3]
        except ValueError:
            continue
        if kind not in (b"cgroup", b"cgroup2"):
            continue
        options = set(more.decode("ascii", "replace").split(","))
        controllers = frozenset() if kind == b"cgroup2" else frozenset(options - _NOT_CONTROLLERS)
        read_only = "ro" in options or b"ro" in words[5].split(b",")
        version = 2 if kind == b"cgroup2" else 1
        found.append(Mount(version, controllers, _unescaped(words[4]), _unescaped(words[3]), read_only))
    return tuple(reversed(found))


_NOT_CONTROLLERS = {"rw", "ro", "none", "noprefix", "clone_children", "xattr", "cpuset_v2_mode"}


def _unescaped(text: bytes) -> str:
    """Decode a path of mountinfo: blanks, tabs, newlines and backslashes are octal there."""
    head, *rest = text.split(b"\\")
    parts = [bytes([int(part[:3], 8)]) + part[3:] if part[:3].isdigit() else part for part in rest]
    return os.fsdecode(head + b"".join(parts))


def memberships(text: bytes) -> dict[str, str]:
    """Parse /proc/PID/cgroup: the cgroup in each hierarchy, by controller; "" is version 2."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = os.fsdecode(line).split(":", 2)
        for name in controllers.split(","):
            found[name] = path
    return found


def directory(mount: Mount, path: str) -> str | None:
    """Return the directory of the cgroup `path` below `mount`; None if it is not visible there."""
    if path.startswith("/.."):
        return None  # outside of our cgroup namespace
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return None
    return (mount.place + path[len(root) :]).rstrip("/") or "/"


def members(group: str) -> list[int]:
    """Return the processes in a cgroup; 0 stands for a process that is not visible from here."""
    return [int(word) for word in read(group, MEMBERS, 1 << 22).split()]


def add(group: str, pid: int) -> None:
    """Move a process, with all its threads, into a cgroup."""
    write(group, MEMBERS, str(pid))


def read(group: str, name: str, longest: int = _LONGEST) -> str:
    """Return the contents of a file of the cgroup."""
    fd = os.open(f"{group}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < longest and (chunk := os.read(fd, longest - len(data))):
            data += chunk
    finally:
        os.close(fd)
    return data.decode("ascii", "replace")


def write(group: str, name: str, text: str) -> None:
    """Write to a file of the cgroup; it is never created."""
    fd = os.open(f"{group}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def enable(group: str, controllers: frozenset[str]) -> None:
    """Enable controllers for the children of a version 2 cgroup, which must have no processes itself."""
    if controllers:
        write(group, "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))


def table(text: str) -> dict[str, int]:
    """Parse lines of a name and a number, as in most files with several values; ignore other lines."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found


def enter(cgroup_fds: Sequence[int]) -> None:
    """Move this process into the cgroups whose member files are open for writing as `cgroup_fds`.

    The process must have one thread, like every new fork, because in version 1 these are files of threads.
    The kernel checks the rights of the process that opened the files. So even a process that cannot see the
    cgroups can enter them. The descriptors are closed.
    """
    try:
        for cgroup_fd in cgroup_fds:
            os.write(cgroup_fd, b"0")
    finally:
        for cgroup_fd in cgroup_fds:
            os.close(cgroup_fd)
