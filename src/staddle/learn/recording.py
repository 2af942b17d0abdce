"""Record the paths that the programs of a sandbox use, from the listeners of their watching filters.

Runs in the host program, in one thread for each sandbox that learns. The kernel stops each call in
`linux.watched_calls` until this thread has looked at it, and then lets it continue. The caller can change the
path in its memory meanwhile, so a record is advice, and a hostile program can make it wrong. It cannot gain
anything: the sandbox's own rules apply to the call as ever.

Everything read here is hostile and bounded: the length of paths, their number, and the processes.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import stat
import struct
import threading
import time

from ..errors import BackendUnavailable
from ..ipc.wire import receive
from ..linux import watched_calls
from ..linux.openat2 import open_in_root
from .facts import Fact, HostFact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.watched_calls import WatchedCall
    from .facts import State, Use
    from .proposal import World

_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_REQUEST = struct.Struct("QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("QqiI")  # struct seccomp_notif_resp
_LONGEST_PATH, _PIECE = 4096, 256
_AT_FDCWD = -100
_O_PATH = os.O_PATH
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: The most facts, remembered calls and open memories. More facts are reported as not whole.
_MOST_FACTS, _MOST_KNOWN, _MOST_MEMORIES = 20_000, 100_000, 64
#: The most facts of which some may be about the sandbox's own files, which need no grant.
_MOST_OWN = 5_000
_LONGEST_KNOWN = 512
#: Seconds between two counts of the threads that were seen.
_SAMPLE = 0.05
_MOST_THREADS = 20_000
#: The kernel's own file systems, which every sandbox has for itself.
_OWN = ("/proc/", "/dev/", "/sys/")
_LONGEST_LINE = 256


class UseRecorder:
    """Records one sandbox, which is compared with `world`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls = watched_calls.calls()
        self._facts: dict[tuple[str, Use], Fact] = {}
        self._hosts: dict[tuple[str, bool], HostFact] = {}
        self._known: set[tuple[str, str]] = set()
        self._memories: dict[int, int] = {}
        self._root = -1
        self._threads: set[int] = set()
        self._sampled = 0.0
        self._listeners: set[int] = set()
        self._ours, self.channel = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._poll = select.epoll()
        self._poll.register(self._ours.fileno(), select.EPOLLIN)
        self._thread = threading.Thread(target=self._work, name="staddle-learn", daemon=True)
        self._lock = threading.Lock()
        self.command, self.calls, self.unread, self.most_threads = 1, 0, 0, 0
        self.is_whole, self._read_one = True, False
        self._thread.start()

    def facts(self) -> tuple[Fact, ...]:
        """Return what was recorded so far. Raises BackendUnavailable if nothing could be read."""
        with self._lock:
            if self.unread and not self._read_one:
                raise BackendUnavailable(
                    "the run could not be watched",
                    why="this host does not let staddle read the memory of the sandbox's programs",
                    fix="see kernel.yama.ptrace_scope, or run outside of the container",
                )
            return tuple(self._facts.values())

    def hosts(self) -> tuple[HostFact, ...]:
        """Return the destinations that programs asked for."""
        with self._lock:
            return tuple(self._hosts.values())

    def asked(self, host: str, allowed: bool) -> None:
        """Record a destination, and the answer to it."""
        with self._lock:
            if len(self._hosts) < _MOST_FACTS:
                self._hosts.setdefault((host, allowed), HostFact(host, allowed, self.command))

    def close(self) -> None:
        """Stop. Watched calls that are still made fail, so the sandbox has to be closed before."""
        try:
            self._ours.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # its thread has ended
        self.channel.close()
        self._thread.join(5)

    # ------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            while self._serve():
                pass
        finally:
            for fd in (*self._listeners, *self._memories.values(), self._root):
                if fd >= 0:
                    os.close(fd)
            self._poll.close()
            self._ours.close()

    def _serve(self) -> bool:
        for fd, events in self._poll.poll():
            if fd == self._ours.fileno():
                data, descriptors = receive(self._ours, 64, most=1)
                for listener in descriptors:
                    self._listeners.add(listener)
                    self._poll.register(listener, select.EPOLLIN)
                if not data and not descriptors:
                    return False  # `close`, after the agent has ended
            elif events & select.EPOLLIN:
                self._answer(fd)
            else:  # no process is under this filter any more
                self._poll.unregister(fd)
                self._listeners.discard(fd)
                os.close(fd)
        return True

    def _answer(self, listener: int) -> None:
        request = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, request)
        except OSError:
            return  # the caller was killed meanwhile
        identity, thread, _, number, _, _, *arguments = _REQUEST.unpack(request)
        try:
            with self._lock:
                self._look(thread, self._calls[number], arguments)
        except (OSError, ValueError, KeyError):
            self.unread += 1
        finally:
            try:
                fcntl.ioctl(listener, _SEND, _ANSWER.pack(identity, 0, 0, _CONTINUE))
            except OSError:
                pass  # it was killed

    def _look(self, thread: int, call: WatchedCall, arguments: list[int]) -> None:
        self.calls += 1
        self._sample(thread)
        if call.kind == "connect":
            self._connect(thread, arguments[call.path], arguments[call.flags])
            return
        use: Use = "write"
        name = self._text(thread, arguments[call.path])
        if call.kind == "run":
            use = "run"
        elif call.kind in ("open", "open2"):
            flags = arguments[call.flags]
            if call.kind == "open2":
                (flags,) = struct.unpack("Q", self._bytes(thread, flags, 8))
            if flags & _O_PATH:
                return
            use = "write" if flags & _WRITES else "read"
        follow = call.kind not in ("change", "create")
        self._path(thread, name, _number(arguments, call.directory), use, follow)
        if call.also is not None:
            name = self._text(thread, arguments[call.also[0]])
            self._path(thread, name, _number(arguments, call.also[1]), "write", follow)

    def _path(self, thread: int, name: str, directory: int, use: Use, follow: bool = True) -> None:
        """Record one path, once it was found. Without `follow`, its last part is changed itself."""
        if not name.startswith("/"):
            where = "cwd" if directory == _AT_FDCWD else f"fd/{directory}"
            base = os.readlink(f"/proc/{thread}/{where}")
            if not base.startswith("/"):
                return  # a pipe, or memory
            name = f"{base}/{name}" if name else base
        if name.startswith(_OWN) or (name, use) in self._known:
            return
        found, state, is_directory = self._find(thread, name, use) if follow else self._new(thread, name)
        if state is None:
            return  # it does not exist anywhere: no grant could change that
        if len(self._known) < _MOST_KNOWN and len(name) <= _LONGEST_KNOWN:
            self._known.add((name, use))
        if use == "read" and is_directory:
            use = "list"
        self._record(thread, found, use, state, is_directory)
        link = os.path.normpath(name)
        if link != found and state == "used" and not self._world.covers(link):
            # A link that is not visible itself: the policy needs its spelling.
            self._record(thread, link, use, state, is_directory)

    def _record(self, thread: int, path: str, use: Use, state: State, is_directory: bool) -> None:
        if (path, use) in self._facts:
            return
        if len(self._facts) >= _MOST_OWN and self._world.is_own(path):
            return
        if len(self._facts) >= _MOST_FACTS:
            self.is_whole = False
            return
        fact = Fact(path, use, _program(thread), state, is_directory, self.command)
        self._facts[path, use] = fact

    def _find(self, thread: int, name: str, use: Use) -> tuple[str, State | None, bool]:
        """Return the real path inside, its state (None: it does not exist), and whether it is a directory."""
        try:
            fd = open_in_root(self._root_of(thread), name, os.O_PATH)
        except OSError as error:
            if error.errno == errno.ENOENT and use == "write":
                return self._new(thread, name)
            plain = os.path.normpath(name)
            if error.errno in (errno.EACCES, errno.EPERM):
                return plain, "hidden", False
            if self._world.is_hosts(plain):
                return plain, None, False
            return plain, "hidden" if _exists(plain) else None, False
        try:
            mode = os.fstat(fd).st_mode
            path = os.readlink(f"/proc/self/fd/{fd}")
            if use == "run" and stat.S_ISREG(mode):
                self._interpreter(thread, fd)
        finally:
            os.close(fd)
        return path, "hidden" if self._world.denied(path) else "used", stat.S_ISDIR(mode)

    def _root_of(self, thread: int) -> int:
        """Return the root of the sandbox, which no program inside can change."""
        if self._root < 0:
            self._root = os.open(f"/proc/{thread}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._root

    def _new(self, thread: int, name: str) -> tuple[str, State | None, bool]:
        """Return the path of a file that is made, removed or renamed: only links before its name count."""
        directory, _, last = name.rstrip("/").rpartition("/")
        try:
            fd = open_in_root(self._root_of(thread), directory or "/", os.O_PATH)
        except OSError:
            return name, None, False
        try:
            return os.path.join(os.readlink(f"/proc/self/fd/{fd}"), last), "used", False
        finally:
            os.close(fd)

    def _interpreter(self, thread: int, fd: int) -> None:
        """Record the interpreter of a script, or the loader of a program, which the kernel opens itself."""
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            start = file.read(_PIECE * 4)
        if start.startswith(b"#!"):
            words = start[2:_LONGEST_LINE].partition(b"\n")[0].split()
            found = os.fsdecode(words[0]) if words else ""
        else:
            found = _loader(start)
        if found.startswith("/"):
            self._path(thread, found, _AT_FDCWD, "run")

    def _connect(self, thread: int, where: int, length: int) -> None:
        if not 3 <= length <= 128:
            return
        name = self._bytes(thread, where, length)
        (family,) = struct.unpack_from("H", name)
        path = os.fsdecode(name[2:].partition(b"\0")[0])
        if family != _socket.AF_UNIX or not path:
            return
        if not path.startswith("/"):
            path = os.path.join(os.readlink(f"/proc/{thread}/cwd"), path)
        plain, state, _ = self._find(thread, path, "connect")
        if state is not None and not (state == "hidden" and not _is_socket(plain)):
            self._record(thread, plain, "connect", state, False)

    # ------------------------------------------------------------ of a process

    def _text(self, thread: int, where: int) -> str:
        data = b""
        while len(data) < _LONGEST_PATH:
            # Never beyond a page, the next of which may not exist.
            piece = self._bytes(thread, where + len(data), _PIECE - (where + len(data)) % _PIECE)
            before, ended, _ = piece.partition(b"\0")
            data += before
            if ended:
                return os.fsdecode(data)
        raise ValueError("a path is too long")

    def _bytes(self, thread: int, where: int, length: int) -> bytes:
        memory = self._memories.get(thread, -1)
        found = b"" if memory < 0 else _read(memory, length, where)
        if not found:  # another program, or another process, by now
            if memory >= 0:
                os.close(self._memories.pop(thread))
            while len(self._memories) >= _MOST_MEMORIES:
                os.close(self._memories.pop(next(iter(self._memories))))
            memory = self._memories[thread] = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
            found = _read(memory, length, where)
        if not found:
            raise ValueError("its memory cannot be read")
        self._read_one = True
        return found

    def _sample(self, thread: int) -> None:
        """Count the threads that were seen and still exist, now and then."""
        if len(self._threads) < _MOST_THREADS:
            self._threads.add(thread)
        now = time.monotonic()
        if now - self._sampled >= _SAMPLE:
            self._threads = {each for each in self._threads if os.path.exists(f"/proc/{each}")}
            self.most_threads = max(self.most_threads, len(self._threads))
            self._sampled = now


def _number(arguments: list[int], at: int) -> int:
    """Return a directory's descriptor among the arguments, as the int that the kernel takes."""
    if at < 0:
        return _AT_FDCWD
    low = arguments[at] & 0xFFFF_FFFF
    return low - (1 << 32) if low >> 31 else low


def _read(memory: int, length: int, where: int) -> bytes:
    try:
        return os.pread(memory, length, where)
    except (OSError, OverflowError):
        return b""


def _program(thread: int) -> str:
    try:
        with open(f"/proc/{thread}/comm", "rb") as file:
            name = os.fsdecode(file.read(64).rstrip(b"\n"))
            return "staddle" if name.startswith("staddle-") else name  # not the program yet that it becomes
    except OSError:
        return "?"


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _loader(start: bytes) -> str:
    """Return the loader that an ELF program names; empty if there is none. The content is hostile."""
    if start[:6] != b"\x7fELF\x02\x01" or len(start) < 64:
        return ""
    offset, size, count = *struct.unpack_from("<Q", start, 32), *struct.unpack_from("<HH", start, 54)
    for at in range(offset, offset + size * min(count, 16), size or 1):
        if at + 56 > len(start):
            break
        kind, _, place, _, _, length = struct.unpack_from("<IIQQQQ", start, at)
        if kind == 3:  # PT_INTERP
            return os.fsdecode(start[place : place + min(length, _PIECE)].rstrip(b"\0"))
    return ""
