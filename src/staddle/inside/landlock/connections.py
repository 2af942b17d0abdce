"""The supervisor makes the command's connections in its place, those the policy allows.

The filter stops every connect() and tells us; where only some connections over TCP are allowed, every
listen() as well. The address and the descriptor in the call
are the caller's to change until the kernel looks at them, so no such call is ever let
through: we copy both, decide about the copies, and connect ourselves on the caller's own
socket, or where its descriptor cannot be had, on a new one that takes its place
(`replacements`). A socket file is opened first, through no link, and the connection made to exactly
what was opened. See seccomp_unotify(2) on why nothing else is safe.

A server sees the supervisor as its peer (SO_PEERCRED): the same user, another process.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import fcntl
import os
import stat
import struct

from ...linux import process, syscalls
from ...linux.landlock import RIGHTS
from ...linux.openat2 import open_without_symlinks
from ...linux.syscalls import ctypes
from . import by_proxy, replacements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.exec_spec import ExecSpec
    from .replacements import CallersSocket

    Row = tuple[bytes, int, int, int]

AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 0, 1, 2, 10, 16

_RECEIVE, _SEND, _ID_VALID = 0xC0502100, 0xC0182101, 0x40082102
_REQUEST = struct.Struct("QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("QqiI")  # struct seccomp_notif_resp
_LONGEST_ADDRESS = 128
_LISTEN = syscalls.number("listen")
_LONGEST_QUEUE = 0x7FFF_FFFF
_PIDFD_THREAD = os.O_EXCL  # Linux 6.9: a descriptor of one thread, with its own table of files
#: Connections that may be waiting for a slow server at once. More wait their turn in the kernel.
_AT_ONCE = 128


class Rules:
    """Rules on the UNIX sockets that may be connected to. Pure; paths are real ones."""

    def __init__(self, rules: tuple[tuple[bytes, bytes], ...]) -> None:
        self._exactly = frozenset(path for kind, path in rules if kind == b"exactly")
        # At the same place a refusal comes first.
        self._beneath = [(path, kind == b"beneath") for kind, path in sorted(rules) if kind != b"exactly"][
            ::-1
        ]

    def allow(self, path: bytes) -> bool:
        """Whether the socket at `path` is named itself, or the innermost rule around it allows it."""
        if path in self._exactly:
            return True
        around = [
            rule for rule in self._beneath if path == rule[0] or path.startswith(rule[0].rstrip(b"/") + b"/")
        ]
        return max(around, key=lambda rule: len(rule[0]), default=(b"", False))[1]


class ConnectRefused(Exception):
    """The connection is not made; `number` is what the caller is told."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Broker:
    """Answers the requests that arrive on the filter's listener, each in a thread of its own.

    A thread, because a server that does not accept makes connect() wait; and because only
    then is our process, which stays, the peer that the server sees.
    """

    def __init__(self, listener: int, spec: ExecSpec) -> None:
        self.listener = listener
        self._rules = Rules(spec.sockets)
        self._internet = bool(spec.internet)
        self._destinations = Destinations(spec.destinations)
        self._proxy = by_proxy.ProxyRoute(spec.proxy_port, spec.proxy_word) if spec.proxy_port else None
        # Our own domain has this scope, so the kernel itself keeps us from the host's.
        self._abstract = bool(spec.scoped & RIGHTS["scope"]["abstract_unix_socket"][0])
        # CDLL, not PyDLL: a connection that blocks must not stop the other threads.
        self._connect = ctypes.CDLL(None, use_errno=True).connect
        self._lock = _thread.allocate_lock()
        self._at_work = 0
        #: Whether descriptors can be taken out of the caller. Container engines refuse that.
        self._copies = True

    def is_free(self) -> bool:
        """Whether one more request can be taken."""
        return self._at_work < _AT_ONCE

    def receive(self) -> None:
        """Take one request and have it answered. Never blocks."""
        buffer = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, buffer)
        except OSError:
            return  # the caller died, or changed its mind, before we looked
        request = _REQUEST.unpack(buffer)
        self._count(1)
        try:
            _thread.start_new_thread(self._answer, request)
        except RuntimeError:  # no more threads may be started
            self._count(-1)
            self._send(request[0], -errno.EAGAIN)

    def _count(self, change: int) -> None:
        with self._lock:
            self._at_work += change

    def _answer(self, identity: int, thread: int, *rest: int) -> None:
        call, fd, second, third = rest[1], rest[4] & 0xFFFFFFFF, rest[5], rest[6]
        error = errno.EACCES
        try:
            if call == _LISTEN:
                error = self._listening(identity, thread, fd, second & 0xFFFFFFFF)
            else:
                error = self._connected(identity, thread, fd, second, third & 0xFFFFFFFF)
        except ConnectRefused as refused:
            error = refused.number
        except OSError as failed:
            error = failed.errno or errno.EACCES
        except Exception:  # whatever it is, the answer is no
            error = errno.EACCES
        finally:
            self._count(-1)
            self._send(identity, -error)

    def _send(self, identity: int, error: int) -> None:
        try:
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(identity, 0, error, 0))
        except OSError:
            pass  # the caller is gone

    def _connected(self, identity: int, thread: int, fd: int, address: int, length: int) -> int:
        """Make the connection; 0, or the error that the caller gets."""
        name = _address(thread, address, length)
        socket, seen = self._socket(thread, fd)
        try:
            # Up to here everything was done by a number, which may be another process's by
            # now. If the request still stands, its caller has been waiting all the time.
            fcntl.ioctl(self.listener, _ID_VALID, struct.pack("Q", identity))
            if not stat.S_ISSOCK(os.fstat(socket).st_mode):
                raise ConnectRefused(errno.ENOTSOCK)
            error = self._decided(socket, thread, name)
            if seen is not None and error in (0, errno.EINPROGRESS):
                replacements.put(
                    self.listener, identity, socket, fd, closes_on_exec=bool(seen.flags & os.O_CLOEXEC)
                )
            return error
        finally:
            os.close(socket)

    def _listening(self, identity: int, thread: int, fd: int, backlog: int) -> int:
        """Have the caller's UNIX socket listen. An Internet one would take a port of the host's.

        Where its descriptor cannot be had none may: a new socket could not take over its name.
        """
        try:
            copy = _descriptor(thread, fd)
        except OSError as error:
            raise ConnectRefused(errno.EBADF if error.errno == errno.EBADF else errno.EACCES) from None
        try:
            fcntl.ioctl(self.listener, _ID_VALID, struct.pack("Q", identity))  # see `_connected`
            socket = _socket.socket(fileno=copy)
            try:
                if socket.family != AF_UNIX:
                    raise ConnectRefused(errno.EACCES)
                socket.listen(min(backlog, _LONGEST_QUEUE))
            finally:
                socket.detach()
            return 0
        finally:
            os.close(copy)

    def _socket(self, thread: int, fd: int) -> tuple[int, CallersSocket | None]:
        """Our copy of the caller's socket; or a new one, and what the caller's is."""
        if self._copies:
            try:
                return _descriptor(thread, fd), None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOSYS) or _can_copy():
                    raise
            self._copies = False
        seen = replacements.CallersSocket(thread, fd, datagrams=self._internet)
        return seen.another(), seen

    def _decided(self, socket: int, thread: int, name: bytes) -> int:
        """Connect `socket` to the address, if that is allowed."""
        (family,) = struct.unpack_from("H", name)
        if family != AF_UNIX:
            if self._may_reach(family, name):
                return self._connect_to(socket, name)
            found = _parsed(name)
            if self._proxy is None or found is None or not by_proxy.leads(*found):
                raise ConnectRefused(errno.EACCES)
            return self._proxy.connect(socket, family, *found, self._connect_to)
        path = name[2:]
        if not path[:1].strip(b"\0"):
            return self._connect_abstract(socket, name)
        return self._connect_path(socket, _real(thread, path.split(b"\0")[0]))

    def _may_reach(self, family: int, name: bytes) -> bool:
        if self._internet:
            return family in (AF_UNSPEC, AF_INET, AF_INET6, AF_NETLINK)
        return self._destinations.allow(name)

    def _connect_abstract(self, socket: int, name: bytes) -> int:
        """The command's own abstract sockets; the kernel refuses us all others."""
        if not self._abstract or len(name) <= 2:
            raise ConnectRefused(errno.EACCES if len(name) > 2 else errno.EINVAL)
        error = self._connect_to(socket, name)
        return errno.EACCES if error == errno.EPERM else error

    def _connect_path(self, socket: int, path: bytes) -> int:
        if not self._rules.allow(path):
            raise ConnectRefused(errno.EACCES)
        try:
            file = open_without_symlinks(os.fsdecode(path), os.O_PATH)
        except OSError as error:
            # A link that was not there a moment ago, or a look-up that raced: no.
            raise ConnectRefused(errno.ENOENT if error.errno == errno.ENOENT else errno.EACCES) from None
        try:
            if not stat.S_ISSOCK(os.fstat(file).st_mode):
                raise ConnectRefused(errno.ECONNREFUSED)
            return self._connect_to(socket, struct.pack("H", AF_UNIX) + b"/proc/self/fd/%d\0" % file)
        finally:
            os.close(file)

    def _connect_to(self, socket: int, name: bytes) -> int:
        return 0 if self._connect(socket, name, len(name)) == 0 else ctypes.get_errno()


def _address(thread: int, where: int, length: int) -> bytes:
    """The address that the caller gave, copied once."""
    if not 2 <= length <= _LONGEST_ADDRESS:
        raise ConnectRefused(errno.EINVAL)
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(memory, length, where)
    except (OSError, OverflowError):
        raise ConnectRefused(errno.EFAULT) from None
    finally:
        os.close(memory)
    if len(data) != length:
        raise ConnectRefused(errno.EFAULT)
    return data


def _descriptor(thread: int, fd: int) -> int:
    """Our own copy of the caller's descriptor."""
    try:
        pidfd = process.pidfd_open(thread, _PIDFD_THREAD)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        pidfd = process.pidfd_open(_leader(thread))
    try:
        return process.pidfd_getfd(pidfd, fd)
    finally:
        os.close(pidfd)


def _can_copy() -> bool:
    """Whether a descriptor can be had of any process: tried with our own."""
    try:
        pidfd = process.pidfd_open(os.getpid())
        try:
            os.close(process.pidfd_getfd(pidfd, pidfd))
        finally:
            os.close(pidfd)
    except OSError:
        return False
    return True


def _leader(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"Tgid:"))


def _real(thread: int, path: bytes) -> bytes:
    """The real path of `path` for the caller. A hint only: the socket is then opened through no link."""
    try:
        if not path.startswith(b"/"):
            path = os.path.join(os.readlink(b"/proc/%d/cwd" % thread), path)
        return os.path.realpath(path)
    except OSError:
        raise ConnectRefused(errno.EACCES) from None  # it changed while we looked


# The addresses to connect to over TCP, where not all are allowed. A row is (network, prefix length,
# port, refused): the network packed, port 0 for every one. What no row allows is refused, and so is
# what one refuses.

_MAPPED = bytes(10) + b"\xff\xff"
#: The loopback address, by the length of an address.
_LOOPBACK = {4: bytes((127, 0, 0, 1)), 16: bytes(15) + b"\x01"}


class Destinations:
    """Rows, asked one address at a time."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self._rows = rows

    def allow(self, name: bytes) -> bool:
        """Whether a socket may be connected to this address, as connect() takes it."""
        found = _parsed(name)
        if found is None:
            return False
        address, port = found
        # connect() to the unspecified address, 0.0.0.0 or ::, goes to the host's loopback.
        meant = (address,) if any(address) else (address, _LOOPBACK[len(address)])
        return all(self._allows(each, port) for each in meant)

    def _allows(self, address: bytes, port: int) -> bool:
        about = [
            refused
            for network, prefix, at, refused in self._rows
            if at in (0, port) and _contains(network, prefix, address)
        ]
        return bool(about) and not any(about)


def _parsed(name: bytes) -> tuple[bytes, int] | None:
    """Address and port in a sockaddr_in or sockaddr_in6; an IPv4 address in an IPv6 one is that."""
    if len(name) < 8:
        return None
    (family,) = struct.unpack_from("H", name)
    (port,) = struct.unpack_from(">H", name, 2)
    if family == AF_INET:
        return name[4:8], port
    if family != AF_INET6 or len(name) < 24:
        return None
    packed = name[8:24]
    return (packed[12:], port) if packed.startswith(_MAPPED) else (packed, port)


def _contains(network: bytes, prefix: int, address: bytes) -> bool:
    if len(network) != len(address):
        return False
    after = len(network) * 8 - prefix
    return int.from_bytes(network, "big") >> after == int.from_bytes(address, "big") >> after
