"""Connections from the host to the loopback of a running command, and host ports that lead there.

A socket reaches the command's loopback only if it was created in the command's network namespace. None of our
processes runs there. So the first connection starts a helper (inside/forwarder.py) that enters the namespace.
The helper has no capability, serves this process alone, and exits with the command.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from ..background import start_thread
from ..errors import StaddleError
from ..interrupts import uninterruptible
from ..ipc.wire import receive
from ..linux.process import pidfd_open
from ..linux.process_tree import descendants
from ..network.host import forward, gateway_process
from ..network.host.spawn import end
from ..network.namespace.socket_handoff import ENTERED
from ..policy.network import Network
from .contract import ENVIRONMENT, helper_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

#: Seconds until the command has its network and the helper has entered it; seconds between two checks.
_PATIENCE, _LOOK_EVERY = 10.0, 0.01
#: Milliseconds between two checks whether the gateway of exposed ports wants sockets.
_FEED_EVERY = 500
_LONGEST = 4096


class CommandForwarding:
    """The connections from the host into the network of one running command. Thread-safe."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process
        self._lock = threading.Lock()
        #: The socket to the helper, and the helper's pid, once it is started.
        self._helper: tuple[socket.socket, int] | None = None
        self._gateway: gateway_process.GatewayProcess | None = None
        self._exposed: list[forward.ExposedPort] = []

    @uninterruptible
    def connect(self, port: int) -> socket.socket:
        """Connect to a server inside, at `port` of its 127.0.0.1 or ::1."""
        with self._lock:
            return socket.socket(fileno=forward.connect(self._entered(), port))

    @uninterruptible
    def expose(self, port: int, host_port: int) -> int:
        """Return a port of our 127.0.0.1 that leads to `port` inside, until the command ends."""
        with self._lock:
            handoff = self._entered()
            if self._gateway is None:
                self._gateway = gateway_process.start(Network.deny())
            exposed = forward.ExposedPort(port, host_port)
            try:
                exposed.serve(self._gateway, handoff)
            except BaseException:
                exposed.close()
                raise
            self._exposed.append(exposed)
            return exposed.host_port

    def _entered(self) -> int:
        """Return the descriptor of the socket to the helper. Starts the helper if needed."""
        if self._process.poll() is not None:
            raise _ended()
        if self._helper is None:
            network = _network(self._process)
            try:
                helper = self._enter(network)
            finally:
                os.close(network)
        else:
            helper = self._helper
        return helper[0].fileno()

    def _enter(self, network: int) -> tuple[socket.socket, int]:
        """Start the helper in `network`, and the thread that ends it with the command."""
        try:
            ended = pidfd_open(self._process.pid)  # not reaped yet, so the pid is its own
        except ProcessLookupError:
            raise _ended() from None
        try:
            helper = self._helper = _started(network)
            start_thread(lambda: self._attend(ended), "staddle-forwarding")
        except BaseException:
            os.close(ended)
            self._close()
            raise
        return helper

    def _attend(self, ended: int) -> None:
        """Give the gateway the sockets that it asks for, until the command ends. Runs in its own thread."""
        while True:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            with self._lock:
                if self._gateway is not None:
                    poll.register(self._gateway.fileno(), select.POLLIN)
            if ended in dict(poll.poll(_FEED_EVERY)):
                break
            with self._lock:
                self._feed()
        os.close(ended)
        with self._lock:
            self._close()

    def _feed(self) -> None:
        if self._gateway is None or self._helper is None:
            return
        self._gateway.attempts()
        try:
            forward.feed(self._gateway, self._helper[0].fileno())
        except (OSError, StaddleError):
            pass  # the command or the gateway is about to end
        if self._gateway.ended():
            self._close_ports()  # refuse connections, because nothing answers

    def _close_ports(self) -> None:
        while self._exposed:
            self._exposed.pop().close()
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close()

    def _close(self) -> None:
        self._close_ports()
        helper, self._helper = self._helper, None
        if helper is not None:
            _end(*helper)


def _network(process: subprocess.Popen[Any]) -> int:
    """Return a descriptor of the network namespace of a command that has just been started."""
    deadline, refused = time.monotonic() + _PATIENCE, False
    ours = os.stat("/proc/self/ns/net").st_ino
    while process.poll() is None:
        for pid in descendants(process.pid):
            try:
                found = _network_of(process.pid, pid)
            except PermissionError:
                refused = True
                continue
            except OSError:
                continue  # it has exited
            if os.fstat(found).st_ino != ours:  # ours: the process has not entered the sandbox yet
                return found
            os.close(found)
        if time.monotonic() > deadline:
            raise forward.ForwardFailed(
                "the network of the command cannot be entered",
                why="its processes cannot be inspected" if refused else "it has no network of its own yet",
                fix="as root in a container, add the capability SYS_PTRACE" if refused else "try it again",
            )
        time.sleep(_LOOK_EVERY)
    raise _ended()


def _network_of(command: int, pid: int) -> int:
    """Return the network namespace of `pid`, a process below `command`. Raises OSError if it has exited."""
    directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        # Another process may have had the pid when `directory` was opened. While the process of `directory`
        # exists, the pid is its own, and its parent was checked in between.
        if pid in descendants(command) and _is_there(directory):
            return found
        os.close(found)
        raise ProcessLookupError(pid)
    finally:
        os.close(directory)


def _is_there(directory: int) -> bool:
    """Whether the process of this directory in /proc still exists."""
    try:
        os.stat("ns", dir_fd=directory)
    except OSError:
        return False
    return True


def _started(network: int) -> tuple[socket.socket, int]:
    """Start a helper in `network`. Returns the socket to it and its pid; ForwardFailed if it cannot enter."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), (os.POSIX_SPAWN_DUP2, network, 1)]
        argv = helper_command("forwarder")
        pid = os.posix_spawn(argv[0], argv, ENVIRONMENT, file_actions=actions, setpgroup=0, setsigmask=())
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    try:
        ours.settimeout(_PATIENCE)
        said = receive(ours, _LONGEST)[0]
        if said == ENTERED:
            return ours, pid
        why = said.decode("utf-8", "replace") or "the helper has exited"
    except OSError as error:
        why = error.strerror or str(error)
    except BaseException:
        _end(ours, pid)
        raise
    _end(ours, pid)
    raise forward.ForwardFailed(
        "the network of the command cannot be entered", why=why, fix="use backend='namespaces'"
    )


def _end(handoff: socket.socket, pid: int) -> None:
    try:
        handoff.shutdown(socket.SHUT_RDWR)  # a fork of this program may have a copy
    except OSError:
        pass  # it has exited already
    handoff.close()
    end(pid)


def _ended() -> forward.ForwardFailed:
    return forward.ForwardFailed("the command cannot be reached", why="it has ended", fix="start it again")
