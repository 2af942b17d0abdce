"""Start a gateway on the host, give it the sandbox's sockets, read its reports.

    gateway = start(network)                  before the sandbox exists, so that it need not wait
    gateway.pass_on(message, descriptors)     forwards the message of `socket_handoff.hand_over`
    gateway.attempts()                        allowed, refused and failed attempts since the last call
    gateway.all_attempts()                    the same, up to this moment
    gateway.close()

This module runs in the caller's process, and never waits for long. It keeps copies of sockets that the
gateway has not read yet (`UnreadSockets`).
"""

from __future__ import annotations

import _socket
import os
import select
import sys

from ... import check
from ..._value import Value
from ...errors import LaunchFailed, PolicyError
from ...events import Event
from ...ipc.gateway_messages import (
    LONGEST,
    Attempt,
    ConnectQuestion,
    GatewaySettings,
    NeedSockets,
    Sockets,
    decode_report,
    encode_change,
    encode_decision,
    encode_flush,
    encode_settings,
    encode_sockets,
)
from ...ipc.wire import Malformed, send
from .spawn import end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...ipc.gateway_messages import Flushed

    Report = Attempt | ConnectQuestion | NeedSockets | Flushed
    from collections.abc import Callable, Sequence
    from typing import Self

    from ...policy.network import Network
    from ...policy.plan import Plan


def receive(socket: _socket.socket, most: int) -> tuple[list[Report], bool]:
    """Return the pending messages, at most `most`, without waiting; and False once no more can come.

    The gateway reads untrusted bytes, so malformed messages are skipped.
    """
    found: list[Report] = []
    for _ in range(most):
        try:
            data = socket.recv(LONGEST, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return found, True
        except OSError:
            return found, False
        if not data:
            return found, False
        try:
            found.append(decode_report(data))
        except Malformed:
            continue
    return found, True


class UnreadSockets:
    """Copies of the sockets of a gateway that has not sent anything yet.

    A gateway takes a moment to start. Meanwhile a caller can ask for refusals without waiting if nothing was
    tried: all attempts are queued in these sockets, and the gateway sends a first message before it reads
    from them.
    """

    def __init__(self) -> None:
        self._poll: select.poll | None = select.poll()
        self._descriptors: list[int] = []

    def add(self, descriptors: Iterable[int]) -> None:
        """Keep copies of sockets that the gateway receives."""
        if self._poll is not None:
            for descriptor in descriptors:
                self._descriptors.append(os.dup(descriptor))
                self._poll.register(self._descriptors[-1], select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether no attempt is queued for the gateway. Call it before `receive`."""
        return self._poll is not None and not any(event & select.POLLIN for _, event in self._poll.poll(0))

    def close(self) -> bool:
        """Close the copies, so that the sockets close with the gateway. True the first time."""
        first, self._poll = self._poll is not None, None
        while self._descriptors:
            os.close(self._descriptors.pop())
        return first


#: Bytes read from a file of the host about names, and the maximum of hosts and nameservers.
_LARGEST_FILE, _MOST_HOSTS, _MOST_SERVERS = 1 << 16, 512, 3
#: Bytes that fit into the socket buffer before the gateway reads.
_LONGEST_SETTINGS = 100_000
#: Attempts stored for the next call of `attempts`.
_KEPT = 4096
#: Milliseconds for a gateway to report its attempts; for a gateway that did not answer the last time.
_MOMENT, _SHORT_MOMENT = 5000, 50
#: Milliseconds for a gateway to exit after its starter.
_ENDING = 2000


class GatewayBounds(Value):
    """Limits of one gateway. 0 means unlimited, except for `connections`.

    A connection that no entry allows waits up to `asks` seconds for `GatewayProcess.decide`. If `asks` is 0,
    the gateway refuses it at once.
    """

    connections: int = 512
    idle: int = 0
    most_bytes: int = 0
    asks: int = 0
    #: Hosts whose connections go to the HTTP inspector.
    inspected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("connections", "idle", "most_bytes", "asks"):
            least = 1 if name == "connections" else 0
            check.count(f"{name} of a network gateway", getattr(self, name), least, error=PolicyError)


def inspected(plan: Plan, network: Network) -> tuple[str, ...]:
    """Return the hosts whose connections go to the HTTP inspector while `network` applies."""
    if not network.is_inspected and not plan.secrets:
        return ()
    from ...policy.egress import inspected_hosts

    return inspected_hosts(plan, network)


class GatewayProcess:
    """A started gateway. It exits when this object is closed, or when this process exits.

    `pid` is 0 if the gateway is not a child of this process; it then also exits with its starter. When a
    child has exited, `over` is called.
    """

    def __init__(self, socket: _socket.socket, pid: int, over: Callable[[], object] = tuple) -> None:
        self.pid, self._over = pid, over
        self._socket = socket
        self._wanted = 0
        self._questions: list[ConnectQuestion] = []
        self._flush = self._flushed = 0
        #: Whether it did not answer the last request: it is stopped or overloaded.
        self.is_silent = False
        self._unread = UnreadSockets()

    def fileno(self) -> int:
        """Return the descriptor, readable when the gateway has sent something or has exited."""
        return self._socket.fileno()

    def pass_on(self, message: bytes, descriptors: Sequence[int]) -> None:
        """Send the gateway sockets of the sandbox with the message about them. Our copies stay open."""
        self.tell(message, descriptors)
        self._unread.add(descriptors)

    def tell(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send the gateway a message."""
        try:
            send(self._socket, message, descriptors)
        except OSError as error:
            raise LaunchFailed(
                "the network gateway has exited", why=error.strerror or "", fix="start the sandbox again"
            ) from None

    def change(self, network: Network, bounds: GatewayBounds) -> None:
        """Apply the rules of another policy before the next answer to `all_attempts`."""
        self.tell(encode_change(settings(network, bounds)))

    def expose(self, listener: int, port: int) -> None:
        """Lead connections to `listener`, a socket of the host, to `port` of the sandbox's loopback."""
        self.pass_on(encode_sockets(Sockets((("expose", bytes((127, 0, 0, 1)), port),))), [listener])

    def attempts(self) -> list[Attempt]:
        """Return the attempts reported since the last call. Never waits."""
        reports, more = receive(self._socket, _KEPT)
        if reports or not more:
            self._unread.close()
        found: list[Attempt] = []
        for report in reports:
            if isinstance(report, Attempt):
                found.append(report)
            elif isinstance(report, ConnectQuestion):
                self._questions.append(report)
            elif isinstance(report, NeedSockets):
                self._wanted += report.count
            else:
                self._flushed = report.number
        return found

    def all_attempts(self) -> list[Attempt]:
        """Return all attempts so far that were not returned yet. Waits briefly for the gateway."""
        quiet = self._unread.is_quiet()
        found = self.attempts()
        if quiet and self._unread.is_quiet():
            return found  # it has not started yet, and nothing was tried
        self._flush += 1
        try:
            self._socket.send(encode_flush(self._flush), _socket.MSG_DONTWAIT)
        except OSError:
            return found + self.attempts()  # it has exited or is overloaded
        found += self.attempts()
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while self._flushed != self._flush and len(found) < _KEPT:
            if not poll.poll(_SHORT_MOMENT if self.is_silent else _MOMENT):
                self.is_silent = True
                return found
            fresh = self.attempts()
            found += fresh
            if not fresh and self.ended():
                break
        self.is_silent = False
        return found

    def wanted(self) -> int:
        """Return the number of unconnected sockets that the gateway asked for, see `socket_handoff.stock`."""
        wanted, self._wanted = self._wanted, 0
        return wanted

    def questions(self) -> list[ConnectQuestion]:
        """Return the gateway's questions that `attempts` has read."""
        questions, self._questions = self._questions, []
        return questions

    def decide(self, question: ConnectQuestion, allowed: object) -> None:
        """Answer a question. Anything except True is a no, and so is a late answer.

        None is a no after which the next connection asks again.
        """
        self.pass_on(encode_decision(question.identity, None if allowed is None else allowed is True), ())

    def ended(self) -> bool:
        """Whether the gateway has exited, so that no connection is possible."""
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        events = poll.poll(0)
        if events:
            self._unread.close()
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in events)

    def close(self) -> None:
        """Close all connections of the gateway and wait until it has exited."""
        if self._socket.fileno() >= 0:
            if not self.pid:
                self._see_it_end()
            try:
                # Not only close: a forked child of this program may have a copy of our end.
                self._socket.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass  # it has exited already
            self._socket.close()
        unread = self._unread.close()
        if self.pid:
            # A gateway that has not started yet has no connections, so it is killed at once.
            end(self.pid, *((0,) if unread else ()))
            self.pid = 0
            self._over()

    def _see_it_end(self) -> None:
        """Wait until a gateway that is not our child has exited. Its starter has exited, which ends it."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        try:
            self._socket.shutdown(_socket.SHUT_WR)
            while poll.poll(_ENDING) and self._socket.recv(LONGEST, _socket.MSG_DONTWAIT):
                pass
        except OSError:
            pass  # it has exited already

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(
    network: Network,
    bounds: GatewayBounds | None = None,
    *,
    nameservers: tuple[tuple[str, int], ...] | None = None,
    hosts: tuple[tuple[str, str], ...] | None = None,
) -> GatewayProcess:
    """Start a gateway for this policy. `nameservers` and `hosts` default to the host's.

    See `from_policy.needs_gateway`. A denied network needs a gateway only for exposed ports.
    """
    from ...interrupts import uninterrupted  # not imported in a launcher
    from .prewarm import GATEWAYS

    message = _said(settings(network, bounds or GatewayBounds(), nameservers, hosts))
    for _ in range(2):
        begun: list[GatewayProcess] = []
        try:
            # An exception from a signal handler before `begun` is set would leave the gateway running.
            uninterrupted(lambda: begun.append(GatewayProcess(*GATEWAYS.take(), GATEWAYS.release)))  # noqa: B023
            begun[0].tell(message)
            return begun[0]
        except BaseException as error:
            for started in begun:
                uninterrupted(started.close)
            if not isinstance(error, LaunchFailed):
                raise
            failed = error  # a prewarmed gateway may have been killed
    raise failed


def new_socket(
    network: Network,
    bounds: GatewayBounds | None = None,
    *,
    nameservers: tuple[tuple[str, int], ...] | None = None,
    hosts: tuple[tuple[str, str], ...] | None = None,
    lasting: bool = False,
) -> tuple[_socket.socket, _socket.socket]:
    """Return a socket pair for a gateway that is started later (see `spawn`): our end and its end.

    With `lasting`, the gateway continues when our end closes, and exits only with its starter.
    """
    said = settings(network, bounds or GatewayBounds(), nameservers, hosts)
    message = _said(said.replace(lasting=int(lasting)))
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    try:
        ours.send(message)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return ours, theirs


def _said(settings: GatewaySettings) -> bytes:
    """Return the first message to a gateway. Raises an error if no gateway can be started."""
    message = encode_settings(settings)
    if len(message) > _LONGEST_SETTINGS:
        raise PolicyError(
            "the allow list is too long for the network gateway",
            why=f"its {len(settings.entries)} entries have more than {_LONGEST_SETTINGS} bytes together",
            fix="use wildcards and networks",
        )
    if not sys.executable:
        raise LaunchFailed(
            "the network gateway cannot be started",
            why="this Python does not know its own interpreter (sys.executable is empty)",
            fix="run staddle from an ordinary Python",
        )
    return message


def settings(
    network: Network,
    bounds: GatewayBounds,
    nameservers: tuple[tuple[str, int], ...] | None = None,
    hosts: tuple[tuple[str, str], ...] | None = None,
) -> GatewaySettings:
    """Return the settings of a gateway for this policy."""
    if network.mode == "open":
        raise ValueError("an open network has no gateway")
    return GatewaySettings(
        "allow" if network.mode == "allow" else "loopback",
        tuple(str(rule) for rule in network.rules),
        network.ports,
        nameservers or tuple((each, 53) for each in network.dns) or host_nameservers(),
        host_names() if hosts is None else hosts,
        bounds.connections,
        bounds.idle,
        bounds.most_bytes,
        bounds.asks,
        inspected=bounds.inspected,
    )


def event(attempt: Attempt) -> Event:
    """Convert an attempt to an event of the run."""
    shown = f"[{attempt.host}]" if ":" in attempt.host else attempt.host
    where = f"{shown}:{attempt.port}" if attempt.port else attempt.host
    if attempt.protocol == "udp":
        where = f"udp://{where}"
    kind = "refused" if attempt.outcome == "refused" else "note"
    rule = attempt.why if attempt.outcome == "refused" else f"{attempt.outcome}: {attempt.why}"
    return Event("refused" if kind == "refused" else "note", where, rule, attempt.allow)


def host_nameservers() -> tuple[tuple[str, int], ...]:
    """Return the nameservers of /etc/resolv.conf."""
    found = []
    for words in _lines("/etc/resolv.conf"):
        if words[0] == "nameserver" and len(words) > 1 and _is_address(words[1]):
            found.append((words[1], 53))
    return tuple(found[:_MOST_SERVERS]) or (("127.0.0.1", 53),)


def host_names() -> tuple[tuple[str, str], ...]:
    """Return the names in /etc/hosts with their addresses, without invalid entries."""
    found = []
    for address, *names in _lines("/etc/hosts"):
        if _is_address(address):
            found += [(name.lower().rstrip("."), address) for name in names if name.isascii()]
    return tuple(found[:_MOST_HOSTS])


def _lines(path: str) -> list[list[str]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return []
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [words for words in lines if words]


def _is_address(text: str) -> bool:
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            _socket.inet_pton(family, text)
        except OSError:
            continue
        return True
    return False
