"""The processes below a process, and signals that cannot reach a process with a reused pid."""

from __future__ import annotations

import os
import time

from . import procfs
from .fileio import read_if_there
from .process import SIGKILL, STARTED, parent_of, pidfd_open, pidfd_send_signal, start_time, stat_fields

_SIGSTOP, _SIGCONT = 19, 18
_STOPPED, _ZOMBIE = [b"T"], [b"Z"]
#: Seconds for a process to stop. A process stuck in the kernel is inspected while it runs.
_PATIENCE = 1.0
#: Inode of the machine's first pid namespace, the same on every kernel.
_FIRST_NAMESPACE = 0xEFFFFFFC


def descendants(root: int) -> list[int]:
    """Return every living process below `root`, parents before children, without `root` itself."""
    children: dict[int, list[int]] = {}
    for pid in procfs.pids():
        if parent := parent_of(pid):
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def threads_of_user(uid: int) -> int:
    """Return the number of visible processes and threads of a user."""
    mark, count = b"\nUid:\t%d\t" % uid, 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status", "rb") as file:
                if mark in file.read(512):
                    count += os.stat(f"/proc/{name}/task").st_nlink - 2
        except OSError:
            continue  # it has ended
    return count


def is_in_first_namespace() -> bool:
    """Whether our pid namespace is the machine's first, not that of a container."""
    return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE


def in_other_namespaces() -> set[tuple[int, int]] | None:
    """Return (pid there, start time) of every process in another pid namespace.

    None if not all processes of the machine are visible.
    """
    if not is_in_first_namespace() or not read_if_there("/proc/1/status"):
        return None
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        numbers = procfs.status_field(read_if_there(f"/proc/{name}/status"), b"NSpid")
        if len(numbers) > 1:
            found.add((int(numbers[-1]), start_time(int(name))))
    return found


class Children:
    """The children of `root`, our child, which is about to be killed and is stopped for inspection.

    The first process of a pid namespace is dead only when all others in it are.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._left: list[int] = []
        os.kill(root, _SIGSTOP)
        deadline = time.monotonic() + _PATIENCE
        while stat_fields(root)[:1] not in (_STOPPED, _ZOMBIE, []) and time.monotonic() < deadline:
            time.sleep(0.001)
        for name in os.listdir("/proc"):
            if name.isdecimal() and parent_of(int(name)) == root:
                try:
                    self._left.append(pidfd_open(int(name)))
                except OSError:
                    continue  # gone already

    def go_on(self) -> None:
        """Let `root` continue, so that it receives pending signals."""
        os.kill(self._root, _SIGCONT)

    def end(self, seconds: float) -> None:
        """Wait until they are dead, and kill the rest; not forever, because the kernel may hold one.

        Some have to end others first, when their parent ends. They get the time for that.
        """
        self._await(seconds)
        for fd in self._left:
            try:
                pidfd_send_signal(fd, SIGKILL)
            except OSError:
                continue  # another user's process has the pid by now
        self._await(seconds)
        while self._left:
            os.close(self._left.pop())

    def _await(self, seconds: float) -> None:
        import select

        deadline = time.monotonic() + seconds
        poll = select.poll()
        for fd in self._left:
            poll.register(fd, select.POLLIN)
        while self._left and (rest := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(rest * 1000):
                poll.unregister(fd)
                self._left.remove(fd)
                os.close(fd)


class ProcessIdentity:
    """A process by its pid and start time, so that a reused pid does not match."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = stat_fields(pid)[STARTED:][:1]

    def kill(self) -> None:
        """Kill it if it still exists, even if it is stopped or traced."""
        try:
            descriptor = pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self._started and stat_fields(self.pid)[STARTED:][:1] == self._started:
                pidfd_send_signal(descriptor, SIGKILL)
        except OSError:
            pass  # it has ended, or we may not signal it
        finally:
            os.close(descriptor)


def send(pid: int, number: int) -> None:
    """Signal `pid` by descriptor, if it is still the same process."""
    parent = parent_of(pid)
    try:
        descriptor = pidfd_open(pid)
    except OSError:
        return
    try:
        if parent and parent_of(pid) == parent:
            pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # it has ended, or we may not signal it
    finally:
        os.close(descriptor)
