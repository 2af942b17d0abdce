"""Open files of processes, including files without a name: memory files, pipes, deleted files.

A descriptor that was sent over a UNIX socket and closed by its sender is in no process until it is received.
We find it in the queue of the socket, which we read without removing anything (MSG_PEEK). This needs the
right to trace the processes. Processes that we may not trace, or that end meanwhile, are left out.
"""

from __future__ import annotations

import _socket
import os
import stat
import struct

from ..linux import process, procfs
from ..linux.fileio import read_whole
from ..linux.syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The most descriptors to inspect, of one process and of all queues.
_MOST = 4096
#: The most descriptors in one message (SCM_MAX_FD), and the bytes to read from a queue at once.
_IN_A_MESSAGE, _CHUNK = 253, 1 << 16
_KCMP_FILES = 2
_SO_PEEK_OFF, _CLOSE_ON_EXEC = 42, 0x40000000


class OpenFiles:
    """The open files of some processes, and the files in flight between them, inspected once."""

    def __init__(self, pids: Iterable[int]) -> None:
        #: By device and inode: status, and the id of the mount that it was opened in (0: unknown).
        self.found: dict[tuple[int, int], tuple[os.stat_result, int]] = {}
        #: Descriptors in flight that cannot be inspected: on connections that no process has accepted.
        self.unknown = 0
        self._left = _MOST
        self._seen: set[int] = set()
        for pid in pids:
            for task in _tables(pid):
                self._look_at(pid, task)

    def memory(self, device: int, largest: int = 0) -> tuple[int, int]:
        """Return the bytes of unnamed files in memory, and the size of the largest memory file so far.

        Files on `device` count once each. A pipe counts as two pages, the least that each gets when a user
        has many. A descriptor that cannot be inspected counts as the largest memory file; `largest` is the
        earlier value.
        """
        total = 0
        for status, _ in self.found.values():
            if status.st_dev == device:
                total += status.st_blocks * 512
                largest = max(largest, status.st_blocks * 512)
            elif stat.S_ISFIFO(status.st_mode):
                total += 2 * _PAGE
        return total + self.unknown * largest, largest

    def deleted(self, elsewhere: frozenset[int], device: int) -> tuple[int, int]:
        """Return bytes and number of deleted files, except memory files and files in mounts `elsewhere`."""
        found = [
            status.st_blocks * 512
            for status, mount in self.found.values()
            if stat.S_ISREG(status.st_mode)
            and status.st_nlink == 0
            and status.st_dev != device
            and mount not in elsewhere
        ]
        return sum(found), len(found)

    def _look_at(self, pid: int, task: str) -> None:
        try:
            names = os.listdir(f"{task}/fd")[:_MOST]
        except PermissionError:
            self._look_by_number(pid, task)
            return
        except OSError:
            return  # it has ended
        handle = -1
        try:
            for name in names:
                try:
                    status = os.stat(f"{task}/fd/{name}")
                except OSError:
                    continue
                info = b""
                if stat.S_ISSOCK(status.st_mode) or status.st_nlink == 0:
                    info = _info(f"{task}/fdinfo/{name}")
                self._note(status, info)
                if _field(info, b"scm_fds:") and status.st_ino not in self._seen:
                    handle = process.pidfd_open(pid) if handle < 0 else handle
                    self._peek(process.pidfd_getfd(handle, int(name)), status.st_ino)
        except OSError:
            pass
        finally:
            if handle >= 0:
                os.close(handle)

    def _look_by_number(self, pid: int, task: str) -> None:
        """Inspect a process that is not dumpable: root owns its /proc directory, but we may enter it."""
        try:
            handle = process.pidfd_open(pid)
        except OSError:
            return
        try:
            size = _field(_info(f"{task}/status"), b"FDSize:")
            for number in range(min(size, _MOST)):
                try:
                    copy = process.pidfd_getfd(handle, number)
                except OSError:
                    continue
                self._take(copy)
        finally:
            os.close(handle)

    def _take(self, copy: int) -> None:
        """Inspect a descriptor of our own, and close it."""
        try:
            status = os.fstat(copy)
            info = _info(f"/proc/self/fdinfo/{copy}")
            self._note(status, info)
        except BaseException:
            os.close(copy)
            raise
        if _field(info, b"scm_fds:") and status.st_ino not in self._seen:
            self._peek(copy, status.st_ino)
        else:
            os.close(copy)

    def _note(self, status: os.stat_result, info: bytes) -> None:
        self.found[status.st_dev, status.st_ino] = status, _field(info, b"mnt_id:")

    def _peek(self, descriptor: int, inode: int) -> None:
        """Inspect the files queued in a socket, and in the sockets that are queued there."""
        self._seen.add(inode)
        waiting = _field(_info(f"/proc/self/fdinfo/{descriptor}"), b"scm_fds:")
        queue = _socket.socket(fileno=descriptor)
        try:
            found = 0
            for copy in _queued(queue):
                found += 1
                self._left -= 1
                if self._left < 0:
                    os.close(copy)
                    continue
                self._take(copy)
            self.unknown += max(0, waiting - found)
        finally:
            queue.close()


def _queued(queue: _socket.socket) -> Iterator[int]:
    """Yield copies of the descriptors in all messages of a queue; the caller closes them."""
    try:
        before = queue.getsockopt(_socket.SOL_SOCKET, _SO_PEEK_OFF)
        queue.setsockopt(_socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    except OSError:
        return
    flags = _socket.MSG_PEEK | _socket.MSG_DONTWAIT | _CLOSE_ON_EXEC
    try:
        for _ in range(_MOST):
            data, ancillary, _, _ = queue.recvmsg(_CHUNK, _socket.CMSG_SPACE(4 * _IN_A_MESSAGE), flags)
            for level, kind, content in ancillary:
                if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                    yield from struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
            if not data and not ancillary:
                return
    except OSError:
        return  # the end of the queue, or a listening socket
    finally:
        queue.setsockopt(_socket.SOL_SOCKET, _SO_PEEK_OFF, before)


def _tables(pid: int) -> list[str]:
    """Return the /proc directories of the threads with separate descriptor tables: usually one."""
    try:
        threads = os.listdir(f"{procfs.directory(pid)}/task")
    except OSError:
        return []
    if len(threads) == 1:
        return [procfs.directory(pid)]
    found: list[str] = []
    for thread in threads:
        if not any(_is_same_table(int(thread), int(other)) for other in found):
            found.append(thread)
    return [f"{procfs.directory(pid)}/task/{thread}" for thread in found]


def _is_same_table(thread: int, other: int) -> bool:
    if procfs.is_outer():
        return False  # the kernel knows them by other numbers here: inspect both
    try:
        return call("kcmp", thread, other, _KCMP_FILES, 0, 0) == 0
    except OSError:
        return False  # this kernel cannot compare them: inspect both


def _info(path: str) -> bytes:
    try:
        return read_whole(path)
    except OSError:
        return b""


def _field(text: bytes, name: bytes) -> int:
    """Return the number after `name` in a file of /proc; 0 if it is missing."""
    _, found, rest = (b"\n" + text).partition(b"\n" + name)
    words = rest.split(None, 1)
    return int(words[0]) if found and words and words[0].isdigit() else 0


def device_of_memory_files() -> int:
    """Return the device of memfd_create(2) files, the same on the whole machine."""
    fd = os.memfd_create("staddle", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def mounts_without_layers(pid: int) -> frozenset[int]:
    """Return the ids of a process's mounts that are not overlays."""
    rows = _info(f"{procfs.directory(pid)}/mountinfo").splitlines()
    return frozenset(int(row.split(b" ", 1)[0]) for row in rows if b" - overlay " not in row)
