"""The supervisor makes the command's connections in its place, if the policy allows them.

The filter stops every connect() and notifies us. If only some TCP connections are allowed, it also stops
every listen(). The caller can change the address and the descriptor of the call until the kernel reads them,
so no such call is ever let through. We copy both, decide about the copies, and connect the caller's own
socket ourselves. If its descriptor cannot be copied, we connect a new socket that replaces it
(`replacements`). A socket file is opened first, through no link, and the connection goes to the opened file.
See seccomp_unotify(2) on why nothing else is safe.

A server sees the supervisor as its peer (SO_PEERCRED): the same user, another process.
"""

from __future__ import annotations

import _socket
import _socket as socket
import _thread
import errno
import fcntl
import os
import select
import stat
import struct

from ...ipc.led_connection import NAMES, LedConnection, encode
from ...linux import process, syscalls
from ...linux.landlock import RIGHTS
from ...linux.openat2 import open_without_symlinks
from ...linux.syscalls import ctypes
from ...network.rules import synthetic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...ipc.exec_spec import ExecSpec

    Row = tuple[bytes, int, int, int]

AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 0, 1, 2, 10, 16

_RECEIVE, _SEND, _ID_VALID = 0xC0502100, 0xC0182101, 0x40082102
_REQUEST = struct.Struct("QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("QqiI")  # struct seccomp_notif_resp
_LONGEST_ADDRESS = 128
_LISTEN = syscalls.number("listen")
_LONGEST_QUEUE = 0x7FFF_FFFF
_PIDFD_THREAD = os.O_EXCL  # Linux 6.9: a descriptor of one thread, with its own table of files
#: Connections that may wait for a slow server at once. Further requests wait in the kernel.
_AT_ONCE = 128


class Rules:
    """The UNIX sockets that may be connected to. Pure; paths are real paths."""

    def __init__(self, rules: tuple[tuple[bytes, bytes], ...]) -> None:
        self._exactly = frozenset(path for kind, path in rules if kind == b"exactly")
        # At the same place, a refusal wins.
        self._beneath = [(path, kind == b"beneath") for kind, path in sorted(rules) if kind != b"exactly"][
            ::-1
        ]

    def allow(self, path: bytes) -> bool:
        """Whether a rule names the socket at `path`, or the innermost rule around it allows it."""
        if path in self._exactly:
            return True
        around = [
            rule for rule in self._beneath if path == rule[0] or path.startswith(rule[0].rstrip(b"/") + b"/")
        ]
        return max(around, key=lambda rule: len(rule[0]), default=(b"", False))[1]


class ConnectRefused(Exception):
    """The connection is refused; the caller gets `number` as errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Broker:
    """Answers the requests that arrive on the filter's listener, each in its own thread.

    A separate thread, because connect() waits while a server does not accept. A separate process would end,
    and the server would see it as its peer.
    """

    def __init__(self, listener: int, spec: ExecSpec) -> None:
        self.listener = listener
        self._rules = Rules(spec.sockets)
        self._internet = bool(spec.internet)
        self._destinations = Destinations(spec.destinations)
        self._proxy = ProxyRoute(spec.proxy_port, spec.proxy_word) if spec.proxy_port else None
        # Our own domain has this scope, so the kernel itself refuses us the host's sockets.
        self._abstract = bool(spec.scoped & RIGHTS["scope"]["abstract_unix_socket"][0])
        # CDLL, not PyDLL: a connection that blocks must not stop the other threads.
        self._connect = ctypes.CDLL(None, use_errno=True).connect
        self._lock = _thread.allocate_lock()
        self._at_work = 0
        #: Whether we can copy descriptors from the caller. Container engines refuse that.
        self._copies = True

    def is_free(self) -> bool:
        """Whether one more request can be accepted."""
        return self._at_work < _AT_ONCE

    def receive(self) -> None:
        """Read one request and start a thread that answers it. Never blocks."""
        buffer = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, buffer)
        except OSError:
            return  # the caller died, or a signal interrupted its call, before we looked
        request = _REQUEST.unpack(buffer)
        self._count(1)
        try:
            _thread.start_new_thread(self._answer, request)
        except RuntimeError:  # no more threads can be started
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
        except Exception:  # refuse after any error
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
        """Make the connection; return 0, or the error for the caller."""
        name = _address(thread, address, length)
        socket, seen = self._socket(thread, fd)
        try:
            # Until here we used a thread id, which another process may have by now. If the request is still
            # valid, its caller has been waiting all the time.
            fcntl.ioctl(self.listener, _ID_VALID, struct.pack("Q", identity))
            if not stat.S_ISSOCK(os.fstat(socket).st_mode):
                raise ConnectRefused(errno.ENOTSOCK)
            error = self._decided(socket, thread, name)
            if seen is not None and error in (0, errno.EINPROGRESS):
                put(self.listener, identity, socket, fd, closes_on_exec=bool(seen.flags & os.O_CLOEXEC))
            return error
        finally:
            os.close(socket)

    def _listening(self, identity: int, thread: int, fd: int, backlog: int) -> int:
        """Make the caller's UNIX socket listen. An Internet socket would occupy a port of the host.

        If its descriptor cannot be copied, the call is refused: a new socket could not take over its name.
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
        """Return our copy of the caller's socket; or a new socket, and the description of the caller's."""
        if self._copies:
            try:
                return _descriptor(thread, fd), None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOSYS) or _can_copy():
                    raise
            self._copies = False
        seen = CallersSocket(thread, fd, datagrams=self._internet)
        return seen.another(), seen

    def _decided(self, socket: int, thread: int, name: bytes) -> int:
        """Connect `socket` to the address, if that is allowed."""
        (family,) = struct.unpack_from("H", name)
        if family != AF_UNIX:
            if self._may_reach(family, name):
                return self._connect_to(socket, name)
            found = _parsed(name)
            if self._proxy is None or found is None or not leads(*found):
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
        """Connect to the command's own abstract sockets; the kernel refuses us all others."""
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
            # A link was planted, or the lookup raced with a change: refuse.
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
    """Return a copy of the caller's address, read once."""
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
    """Return our own copy of the caller's descriptor."""
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
    """Whether we can copy a descriptor from any process; tested on our own."""
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
    """Return the real path of `path` for the caller.

    Only a hint: the socket is then opened through no link.
    """
    try:
        if not path.startswith(b"/"):
            path = os.path.join(os.readlink(b"/proc/%d/cwd" % thread), path)
        return os.path.realpath(path)
    except OSError:
        raise ConnectRefused(errno.EACCES) from None  # it changed while we looked


# The TCP addresses to connect to, if not all are allowed. A row is (network, prefix length, port, refused):
# the network is packed, and port 0 matches every port. An address is allowed if at least one row allows it
# and none refuses it.

_MAPPED = bytes(10) + b"\xff\xff"
#: The loopback address, by the length of an address.
_LOOPBACK = {4: bytes((127, 0, 0, 1)), 16: bytes(15) + b"\x01"}


class Destinations:
    """Decides about one address at a time, by these rows."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self._rows = rows

    def allow(self, name: bytes) -> bool:
        """Whether a socket may be connected to this sockaddr."""
        found = _parsed(name)
        if found is None:
            return False
        address, port = found
        # connect() to the unspecified address, 0.0.0.0 or ::, reaches the host's loopback.
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
    """Return address and port of a sockaddr_in or sockaddr_in6; an IPv4-mapped address as IPv4."""
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


# Redirects connections to the sandbox's proxy, for programs that do not know of a proxy.
#
# The supervisor redirects queries to any nameserver, over TCP, and connections to the synthetic addresses
# in its answers, which stand for names. The socket stays the caller's, who can read and write it meanwhile.
# That breaks only the caller's own connection, as it may talk to the proxy directly anyway. The proxy
# decides.
#
# See `ipc.led_connection` for the protocol.


#: The port of nameservers.
_NAMES_PORT = 53
#: Milliseconds for the proxy to accept a connection, to decide about it, and to connect.
_TAKEN, _DECIDED, _DIALLED = 5_000, 5_000, 60_000
_NO_ADDRESS = struct.pack("H14x", _socket.AF_UNSPEC)


def leads(address: bytes, port: int) -> bool:
    """Whether a connection to this address goes to the proxy."""
    return port == _NAMES_PORT or synthetic.is_ours(address)


class ProxyRoute:
    """The route to the proxy of one sandbox."""

    def __init__(self, port: int, word: bytes) -> None:
        self._port, self._word = port, word.decode()

    def connect(
        self, fd: int, family: int, address: bytes, port: int, connect: Callable[[int, bytes], int]
    ) -> int:
        """Connect the caller's socket to the destination behind the address. Return 0, or an error number."""
        waits = not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
        copy = _socket.socket(fileno=os.dup(fd))
        try:
            error = connect(fd, self._address(family))
            if error == errno.EINPROGRESS:
                error = _finished(copy)
            if error:
                return error
            error = self._led(copy, self._line(address, port, waits), _DIALLED if waits else _DECIDED)
            if error:
                connect(fd, _NO_ADDRESS)  # disconnect, so that it can be connected to another address
            return error
        finally:
            copy.close()

    def _address(self, family: int) -> bytes:
        """Return the proxy's address, for a socket of this family."""
        if family == _socket.AF_INET:
            return struct.pack("=H", family) + struct.pack(">H4s8x", self._port, bytes((127, 0, 0, 1)))
        mapped = bytes(10) + b"\xff\xff" + bytes((127, 0, 0, 1))
        return struct.pack("=H", family) + struct.pack(">HI16sI", self._port, 0, mapped, 0)

    def _line(self, address: bytes, port: int, waits: bool) -> bytes:
        host = NAMES
        if synthetic.is_ours(address):
            host = _socket.inet_ntop(_socket.AF_INET if len(address) == 4 else _socket.AF_INET6, address)
        return encode(LedConnection(self._word, host, port, waits))

    def _led(self, copy: _socket.socket, line: bytes, patience: int) -> int:
        """Send the destination; return the answer, or an error."""
        try:
            if copy.send(line, _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT) != len(line):
                return errno.EAGAIN
            if not _ready(copy, select.POLLIN, patience):
                return errno.ETIMEDOUT
            answer = copy.recv(1, _socket.MSG_DONTWAIT)
        except OSError as error:
            return error.errno or errno.ECONNRESET
        return answer[0] if answer else errno.ECONNRESET


def _finished(copy: _socket.socket) -> int:
    """Wait for a connection in progress; return its error, or 0."""
    if not _ready(copy, select.POLLOUT, _TAKEN):
        return errno.ETIMEDOUT
    return copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)


def _ready(copy: _socket.socket, events: int, patience: int) -> bool:
    poll = select.poll()
    poll.register(copy.fileno(), events)
    return bool(poll.poll(patience))


# A new socket in place of the caller's, where we may not copy descriptors of another process.
#
# The default filters of container engines refuse pidfd_getfd. There the supervisor reads the kind of the
# caller's socket from /proc and connects a new socket of that kind. It replaces the caller's descriptor
# atomically with SECCOMP_IOCTL_NOTIF_ADDFD. Only O_NONBLOCK and O_CLOEXEC are copied from the old socket.
# Other options that were set before connect() are lost, and a socket that was bound to a name is refused.
#
# The caller can change the data in /proc meanwhile. That is harmless: we make only kinds of sockets that
# its filter allows, and connect them only where the policy allows.


_ADD_DESCRIPTOR = 0x40182103
_ADD = struct.Struct("QIIII")  # struct seccomp_notif_addfd
_AT_NUMBER = 1  # SECCOMP_ADDFD_FLAG_SETFD

#: Protocol names, as in the attributes of a socket, and their address families.
_STREAM = {"TCP": socket.AF_INET, "TCPv6": socket.AF_INET6}
_DATAGRAM = {"UDP": socket.AF_INET, "UDPv6": socket.AF_INET6}
#: Types of UNIX sockets. No datagram sockets, which can send to any path.
_UNIX = {1: socket.SOCK_STREAM, 5: socket.SOCK_SEQPACKET}
_ESTABLISHED, _CONNECTING = 1, 2
_UNIX_CONNECTED = 3


class SocketUnknown(OSError):
    """The caller's socket cannot be replaced; the caller gets `errno`."""


class CallersSocket:
    """The kind of a socket in another process."""

    def __init__(self, thread: int, fd: int, *, datagrams: bool) -> None:
        """Read it from /proc. `datagrams`: an Internet socket may be a datagram socket."""
        where = f"/proc/{thread}/fd/{fd}"
        try:
            name = os.readlink(where)
        except FileNotFoundError:
            raise SocketUnknown(errno.EBADF, "no such descriptor") from None
        if not name.startswith("socket:["):
            raise SocketUnknown(errno.ENOTSOCK, "not a socket")
        self._inode = int(name[8:-1])
        self.flags = _flags(thread, fd)
        protocol = os.getxattr(where, "system.sockprotoname").rstrip(b"\0").decode("ascii", "replace")
        if protocol.startswith("UNIX"):
            self.family, self.type = socket.AF_UNIX, self._unix_type()
        elif protocol in _STREAM:
            self.family, self.type = _STREAM[protocol], socket.SOCK_STREAM
            self._check_tcp("tcp" if self.family == socket.AF_INET else "tcp6")
        elif datagrams and protocol in _DATAGRAM:
            self.family, self.type = _DATAGRAM[protocol], socket.SOCK_DGRAM
        else:
            raise SocketUnknown(errno.EACCES, f"a socket of {protocol}")

    def _unix_type(self) -> int:
        for cells in _table("unix"):
            # Num RefCount Protocol Flags Type St Inode Path
            if len(cells) < 7 or int(cells[6]) != self._inode:
                continue
            kind, state = int(cells[4], 16), int(cells[5], 16)
            if state == _UNIX_CONNECTED:
                raise SocketUnknown(errno.EISCONN, "connected already")
            if kind in _UNIX and len(cells) == 7:
                return _UNIX[kind]
        raise SocketUnknown(errno.EACCES, "a UNIX socket with a name, or that sends datagrams")

    def _check_tcp(self, table: str) -> None:
        for cells in _table(table):
            # sl local rem st tx:rx tr:when retrnsmt uid timeout inode
            if len(cells) > 9 and int(cells[9]) == self._inode:
                state = int(cells[3], 16)
                told = {_ESTABLISHED: errno.EISCONN, _CONNECTING: errno.EALREADY}.get(state, errno.EACCES)
                raise SocketUnknown(told, "in use already")

    def another(self) -> int:
        """Return a new socket of the same kind, nonblocking if the caller's is."""
        kind = self.type | socket.SOCK_CLOEXEC | (self.flags & os.O_NONBLOCK)
        return socket.socket(self.family, kind).detach()


def _flags(thread: int, fd: int) -> int:
    with open(f"/proc/{thread}/fdinfo/{fd}", "rb") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith(b"flags:"))


def _table(name: str) -> Iterator[list[bytes]]:
    """Yield the rows of a table of sockets, without its header."""
    with open(f"/proc/self/net/{name}", "rb") as file:
        next(file, b"")
        for line in file:
            yield line.split()


def put(listener: int, request: int, made: int, fd: int, *, closes_on_exec: bool) -> None:
    """Replace the caller's descriptor `fd` with `made`."""
    flags = os.O_CLOEXEC if closes_on_exec else 0
    fcntl.ioctl(listener, _ADD_DESCRIPTOR, _ADD.pack(request, _AT_NUMBER, made, fd, flags))
