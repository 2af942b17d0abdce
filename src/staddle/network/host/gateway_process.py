"""On the host: start a gateway, give it the sandbox's sockets, read what it tells.

    gateway = start(network)                  before the sandbox is there, so that it need not wait
    gateway.pass_on(message, descriptors)     what `socket_handoff.hand_over` sent
    gateway.attempts()                        what was allowed, refused or failed since the last call
    gateway.all_attempts()                    the same, up to this very moment
    gateway.close()

The only part of the gateway that runs in the caller's process, and it never waits for long. Sockets that
the gateway has not read yet are kept (`UnreadSockets`).
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


def receive(socket: _socket.socket, most: int) -> tuple[list[Report], bool]:
    """The messages that are there, at most so many, without waiting; False once no more can come.

    The gateway reads hostile bytes: what is no message is skipped.
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

    A gateway takes a moment to start. A caller that asks meanwhile what was refused need not wait for
    it when nothing was tried: all attempts wait in these sockets, and the gateway sends a first message
    before it takes anything out of them.
    """

    def __init__(self) -> None:
        self._poll: select.poll | None = select.poll()
        self._descriptors: list[int] = []

    def add(self, descriptors: Iterable[int]) -> None:
        """The gateway is given these."""
        if self._poll is not None:
            for descriptor in descriptors:
                self._descriptors.append(os.dup(descriptor))
                self._poll.register(self._descriptors[-1], select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether no attempt waits for the gateway. Call it before `receive`."""
        return self._poll is not None and not any(event & select.POLLIN for _, event in self._poll.poll(0))

    def close(self) -> bool:
        """Close the copies, so that the sockets end with the gateway. True the first time."""
        first, self._poll = self._poll is not None, None
        while self._descriptors:
            os.close(self._descriptors.pop())
        return first


#: As much as is read of the host's files about names.
_LARGEST_FILE, _MOST_HOSTS, _MOST_SERVERS = 1 << 16, 512, 3
#: What fits into the socket before anybody reads it.
_LONGEST_SETTINGS = 100_000
#: Attempts that are kept for the next call of `attempts`.
_KEPT = 4096
#: Milliseconds for a gateway to say what was tried. It is one of many processes. And for one that was silent.
_MOMENT, _SHORT_MOMENT = 5000, 50
#: And to end, when its starter has.
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

    def __post_init__(self) -> None:
        for name in self._fields:
            least = 1 if name == "connections" else 0
            check.count(f"{name} of a network gateway", getattr(self, name), least, error=PolicyError)


class GatewayProcess:
    """A started gateway. It ends when this is closed, or when this process ends.

    `pid` is 0 for one that is not a child of this process; it ends with its starter, too. When a
    child has ended, `over` is called.
    """

    def __init__(self, socket: _socket.socket, pid: int, over: Callable[[], object] = tuple) -> None:
        self.pid, self._over = pid, over
        self._socket = socket
        self._wanted = 0
        self._questions: list[ConnectQuestion] = []
        self._flush = self._flushed = 0
        #: Whether it did not answer when it was last asked: it is stopped, or has too much to do.
        self.is_silent = False
        self._unread = UnreadSockets()

    def fileno(self) -> int:
        """Becomes readable when the gateway has told something, or has ended."""
        return self._socket.fileno()

    def pass_on(self, message: bytes, descriptors: Sequence[int]) -> None:
        """Give the gateway sockets of the sandbox, with what was said about them. Ours stay open."""
        self.tell(message, descriptors)
        self._unread.add(descriptors)

    def tell(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send it a message."""
        try:
            send(self._socket, message, descriptors)
        except OSError as error:
            raise LaunchFailed(
                "the network gateway has exited", why=error.strerror or "", fix="start the sandbox again"
            ) from None

    def change(self, network: Network, bounds: GatewayBounds) -> None:
        """Have it go by the rules of another policy, before it answers `all_attempts`."""
        self.tell(encode_change(settings(network, bounds)))

    def expose(self, listener: int, port: int) -> None:
        """Have connections to `listener`, a socket of ours, go to `port` of the sandbox's loopback."""
        self.pass_on(encode_sockets(Sockets((("expose", bytes((127, 0, 0, 1)), port),))), [listener])

    def attempts(self) -> list[Attempt]:
        """The attempts that were reported since the last call; never waits."""
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
        """The attempts until now that were not reported yet. Waits for the gateway, but not for long."""
        quiet = self._unread.is_quiet()
        found = self.attempts()
        if quiet and self._unread.is_quiet():
            return found  # it is not there yet, and nothing was tried
        self._flush += 1
        try:
            self._socket.send(encode_flush(self._flush), _socket.MSG_DONTWAIT)
        except OSError:
            return found + self.attempts()  # it has ended, or has more to do than it can
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
        """The number of unconnected sockets that the gateway asked for: see `socket_handoff.stock`."""
        wanted, self._wanted = self._wanted, 0
        return wanted

    def questions(self) -> list[ConnectQuestion]:
        """The questions of the gateway that `attempts` has read."""
        questions, self._questions = self._questions, []
        return questions

    def decide(self, question: ConnectQuestion, allowed: object) -> None:
        """Answer a question. Anything but True is a no, and so is an answer that comes too late.

        None is a no that the next connection asks about again.
        """
        self.pass_on(encode_decision(question.identity, None if allowed is None else allowed is True), ())

    def ended(self) -> bool:
        """Whether the gateway is gone: nothing goes out any more."""
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        events = poll.poll(0)
        if events:
            self._unread.close()
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in events)

    def close(self) -> None:
        """End the gateway and every connection it holds; it is gone when this returns."""
        if self._socket.fileno() >= 0:
            if not self.pid:
                self._see_it_end()
            try:
                # Not only ours: a child that this program forked may have a copy of our end.
                self._socket.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already
            self._socket.close()
        unread = self._unread.close()
        if self.pid:
            # One that is not there yet holds nothing, and would only come to find its socket down.
            end(self.pid, *((0,) if unread else ()))
            self.pid = 0
            self._over()

    def _see_it_end(self) -> None:
        """Wait until one that is not our child has ended. Its starter has by now, and takes it along."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        try:
            self._socket.shutdown(_socket.SHUT_WR)
            while poll.poll(_ENDING) and self._socket.recv(LONGEST, _socket.MSG_DONTWAIT):
                pass
        except OSError:
            pass  # it has ended already

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
    """A gateway for this policy. `nameservers` and `hosts` are those of the host, unless given.

    See `from_policy.needs_gateway`. One for a denied network is for ports that are exposed.
    """
    from ...interrupts import uninterrupted  # not in a launcher
    from .prewarm import GATEWAYS

    message = _said(settings(network, bounds or GatewayBounds(), nameservers, hosts))
    for _ in range(2):
        begun: list[GatewayProcess] = []
        try:
            # An exception of a signal's handler between its start and the note of it would leave it running.
            uninterrupted(lambda: begun.append(GatewayProcess(*GATEWAYS.take(), GATEWAYS.release)))  # noqa: B023
            begun[0].tell(message)
            return begun[0]
        except BaseException as error:
            for started in begun:
                uninterrupted(started.close)
            if not isinstance(error, LaunchFailed):
                raise
            failed = error  # one that waited may have been killed
    raise failed


def new_socket(
    network: Network,
    bounds: GatewayBounds | None = None,
    *,
    nameservers: tuple[tuple[str, int], ...] | None = None,
    hosts: tuple[tuple[str, str], ...] | None = None,
    lasting: bool = False,
) -> tuple[_socket.socket, _socket.socket]:
    """A socket pair for a gateway that is started later (see `spawn`): our end, and its end.

    With `lasting`, it goes on when our end is closed, and ends with its starter only.
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
    """The first message to a gateway, if one can be started."""
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
    """The settings of a gateway for this policy."""
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
    )


def event(attempt: Attempt) -> Event:
    """An attempt as an event of the run."""
    shown = f"[{attempt.host}]" if ":" in attempt.host else attempt.host
    where = f"{shown}:{attempt.port}" if attempt.port else attempt.host
    if attempt.protocol == "udp":
        where = f"udp://{where}"
    kind = "refused" if attempt.outcome == "refused" else "note"
    rule = attempt.why if attempt.outcome == "refused" else f"{attempt.outcome}: {attempt.why}"
    return Event("refused" if kind == "refused" else "note", where, rule, attempt.allow)


def host_nameservers() -> tuple[tuple[str, int], ...]:
    """The nameservers of /etc/resolv.conf."""
    found = []
    for words in _lines("/etc/resolv.conf"):
        if words[0] == "nameserver" and len(words) > 1 and _is_address(words[1]):
            found.append((words[1], 53))
    return tuple(found[:_MOST_SERVERS]) or (("127.0.0.1", 53),)


def host_names() -> tuple[tuple[str, str], ...]:
    """The names of /etc/hosts with their addresses, as far as they are names."""
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
