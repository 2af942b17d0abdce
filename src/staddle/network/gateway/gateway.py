"""The gateway: the process on the host that connects for one sandbox.

It receives the sandbox's sockets over its own socket, and runs as long as that is open. It has the host's
network but no files, no other programs and no rights (see `confinement`). After it has exited, nobody accepts
connections any more, so nothing leaves the sandbox.
"""

from __future__ import annotations

import _socket
import errno
import os
from functools import partial

from ...hostnames import parse
from ...ipc.gateway_messages import (
    LONGEST,
    MOST_DESCRIPTORS,
    Attempt,
    GatewaySettings,
    decode_change,
    decode_decision,
    decode_flush,
    decode_settings,
    decode_sockets,
)
from ...ipc.wire import Malformed, receive
from ...policy.network import Network
from ..namespace.from_policy import WILDCARD_SLOTS, exact_names
from ..namespace.socket_handoff import STOCK
from ..rules import synthetic
from ..rules.rules import Verdict, decide
from ..rules.sniff import destinations
from .confinement import confine
from .connection import EXPOSED, Connection
from .context import MOST_DECISIONS, GatewayContext
from .dns_client import DnsClient
from .dns_server import DnsServer
from .host_channel import Approvals
from .inspector import InspectorSocket
from .loop import INPUT
from .tcp_relay import reset
from .udp_relay import UdpRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ...ipc.gateway_messages import Label

#: Messages read before other handlers get their turn.
_TURNS = 32
#: Descriptors reserved for listeners, DNS lookups and UDP.
_RESERVED = 40
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Gateway(GatewayContext):
    """The gateway of one sandbox. `run` returns when the socket closes.

    If `ready` is a descriptor, the gateway writes to it when it has received its first sockets.
    """

    def __init__(self, socket: _socket.socket, ready: int = -1) -> None:
        super().__init__(socket)
        self._socket, self._ready = socket, ready
        #: Number of connections for which descriptors suffice, regardless of the settings.
        self.room = 1 << 30
        self._settings: GatewaySettings | None = None
        self._connections: set[Connection] = set()
        self._paused: list[tuple[_socket.socket, Label]] = []
        self._listeners: list[_socket.socket] = []
        self._refusals: list[_socket.socket] = []
        self._decisions: dict[tuple[bytes, int], tuple[Verdict, str | None]] = {}
        self._stock: list[_socket.socket] = []
        self._asked_for = 0
        #: The number of connections accepted so far.
        self._begun = 0

    def run(self) -> None:
        """Serve until the other end of the socket closes."""
        self._socket.setblocking(False)
        self.loop.watch(self._socket.fileno(), self._ordered, INPUT)
        self.loop.sweep(self._sweep)
        self.loop.run()
        for served in self._refusals:
            self._refused(served)  # users ask first about the last thing that a command tried
        self.events.flush()
        for served in self._listeners:
            served.close()  # before the socket: once it is closed, nothing listens any more

    # Messages from the host.

    def _ordered(self, _: int) -> None:
        try:
            data, descriptors = receive(self._socket, LONGEST, MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError as error:
            # A truncated message is malformed; any other error means that the other end is closed.
            data, descriptors = b"cut" if error.errno == errno.EMSGSIZE else b"", []
        sockets = [_socket.socket(fileno=fd) for fd in descriptors]
        try:
            if not data:
                raise Malformed("the socket is closed, or a message was cut")
            if self._settings is None:
                self._set(decode_settings(data))
            elif (decision := decode_decision(data)) is not None:
                self.approvals.decided(*decision)
            elif (settings := decode_change(data)) is not None:
                self._change(settings)
            elif (turn := decode_flush(data)) is not None:
                self.loop.soon(partial(self._flush, turn))
            else:
                order = decode_sockets(data, len(sockets))
                if [kind for kind, _, _ in order.labels] == ["inspector"]:
                    self.inspector = InspectorSocket(self.loop, sockets[0])
                    return
                if not self._listeners:
                    self.events.send_flush(0)  # tells the host that the gateway runs, see `UnreadSockets`
                self.dns_server.v6 = self.dns_server.v6 or order.v6
                if not order.redirects and any(kind == "tcp" for kind, _, _ in order.labels):
                    self.addresses.narrow(WILDCARD_SLOTS)
                for served, label in zip(sockets, order.labels, strict=True):
                    self._serve(served, label)
                if self._ready >= 0:
                    os.write(self._ready, b"!")
                    self._ready = -1
        except (Malformed, ValueError, OSError):
            if not data and self._listeners and self._settings and self._settings.lasting:
                self.loop.forget(self._socket.fileno())  # nobody reads reports; it exits with its starter
                return
            # Malformed messages do not come from our launcher, so there is no sandbox to serve any more.
            self.loop.stop()

    def _set(self, settings: GatewaySettings) -> None:
        self.network = _network(settings)
        self.inspected = tuple(map(parse, settings.inspected))
        self.addresses = synthetic.Addresses(exact_names(self.network))
        self.budget.most_bytes = settings.most_bytes
        self.dns_client = DnsClient(self.loop, settings.nameservers, settings.hosts)
        self.dns_server = DnsServer(self, v6=False)
        self.udp_relay = UdpRelay(self)
        self.approvals = Approvals(self.loop, self.events, settings.asks)
        self._settings = settings

    def _change(self, settings: GatewaySettings) -> None:
        """Apply other rules from now on, and close connections that they do not allow."""
        self.network = _network(settings)
        self.inspected = tuple(map(parse, settings.inspected))
        self._decisions.clear()
        self._answers.clear()
        self.dns_server.forget()
        self.approvals.forget()
        self.udp_relay.close()
        for connection in list(self._connections):
            connection.judge_again(self.network)

    def _serve(self, served: _socket.socket, label: Label) -> None:
        kind, _, port = label
        served.setblocking(False)
        if kind == "stock":
            self._stock.append(served)
            self._asked_for = max(0, self._asked_for - 1)
            self._resume()
            return
        self._listeners.append(served)
        if kind == "dns":
            self.dns_server.serve_datagrams(served)
        elif kind == "dns-tcp":
            self.dns_server.serve_streams(served)
        elif kind == "udp":
            self.udp_relay.serve(served, port)
        elif kind == "refusals":
            self._refusals.append(served)
            self.loop.watch(served.fileno(), lambda _: self._refused(served), INPUT)
        else:
            # Accepted sockets inherit this option from the listener.
            served.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self._watch(served, label)

    def _watch(self, listener: _socket.socket, label: Label) -> None:
        self.loop.watch(listener.fileno(), lambda _: self._accept(listener, label), INPUT)

    # Connections.

    def _accept(self, listener: _socket.socket, label: Label) -> None:
        """Accept one connection. If more are waiting, epoll reports it again after the other handlers."""
        settings = self._settings
        full = settings is None or len(self._connections) >= min(settings.connections, self.room)
        if full or (label[0] == "expose" and not self._has_stock()):
            self._pause(listener, label)
            return
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _NOTHING_LEFT:
                self._pause(listener, label)
            return  # any other error: the client closed before we accepted
        # With all three arguments, Python does not query the kernel for them.
        accepted = _socket.socket(listener.family, _socket.SOCK_STREAM, _socket.IPPROTO_TCP, fd)
        accepted.setblocking(False)
        self._begun += 1
        try:
            self._begin(accepted, label)
        except OSError:
            reset(accepted)

    def _pause(self, listener: _socket.socket, label: Label) -> None:
        """Stop accepting for now. Other connections wait in the kernel's backlog, which is short."""
        self.loop.forget(listener.fileno())
        self._paused.append((listener, label))

    def _begin(self, accepted: _socket.socket, label: Label) -> None:
        kind, packed, port = label
        if kind == "forward":
            host = _socket.inet_ntop(_family(packed), packed)
            verdict = decide(host, port, self.network)
            self._connect(accepted, verdict, None, looked_at=False)
        elif kind == "expose":
            self._expose(accepted, port)
        else:
            local = accepted.getsockname()
            packed = _socket.inet_pton(accepted.family, local[0])
            verdict, name = self._decide(packed, local[1])
            self._connect(accepted, verdict, name, looked_at=True)

    def _connect(
        self, accepted: _socket.socket, verdict: Verdict, name: str | None, *, looked_at: bool
    ) -> None:
        asks = not verdict.allowed and self.approvals.can(verdict)
        if not verdict.allowed and not asks:
            self.events.about("refused", verdict)
            reset(accepted)
            return
        connection = Connection(self, accepted, verdict, name)
        self._connections.add(connection)
        if not looked_at:
            connection.unlooked()
        if asks:
            connection.hold(self.approvals.seconds)
            self.approvals.ask(verdict, connection.decided)
        else:
            connection.begin()

    def _decide(self, packed: bytes, port: int) -> tuple[Verdict, str | None]:
        """Return the policy's verdict on the destination of an accepted socket, and its name or None."""
        name = self.addresses.name(packed)
        if name is None and synthetic.is_ours(packed):
            host = _socket.inet_ntop(_family(packed), packed)
            return Verdict(False, host, port, "tcp", "it stands for no name"), None
        known = self._decisions.get((packed, port))
        if known is not None and known[1] == name:
            return known
        host = name or _socket.inet_ntop(_family(packed), packed)
        found = decide(host, port, self.network), name
        if len(self._decisions) >= MOST_DECISIONS:
            self._decisions.clear()
        self._decisions[packed, port] = found
        return found

    def ended(self, connection: object) -> None:
        """Forget a closed connection and accept others."""
        self._connections.discard(connection)
        self._resume()

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        for listener, label in paused:
            self._watch(listener, label)

    # Connections from the host into the sandbox.

    def _has_stock(self) -> bool:
        if len(self._stock) + self._asked_for < STOCK // 2:
            self._asked_for += STOCK
            self.events.need_sockets(STOCK)
        return bool(self._stock)

    def _expose(self, accepted: _socket.socket, port: int) -> None:
        verdict = Verdict(True, "127.0.0.1", port, "tcp", EXPOSED)
        connection = Connection(self, accepted, verdict, None)
        self._connections.add(connection)
        connection.unlooked()
        server = self._stock.pop()
        both = server.family == _socket.AF_INET6
        # In this order: after a refused IPv4 connection, the kernel no longer connects this socket over IPv6.
        places = ("::1", "::ffff:127.0.0.1") if both else ("127.0.0.1",)
        connection.through(server, [(place, port) for place in places])

    # Reports and timeouts.

    def _flush(self, number: int, turns: int = _TURNS, seen: int = -1) -> None:
        """Report all attempts so far, then confirm with `number`.

        A command that has ended may have left connections to accept: wait for a turn without any.
        """
        if turns and seen != self._begun:
            self.loop.soon(partial(self._flush, number, turns - 1, self._begun))
            return
        for served in self._refusals:
            self._refused(served)
        self.events.send_flush(number)

    def _refused(self, served: _socket.socket) -> None:
        for _ in range(_TURNS):
            try:
                message = served.recv(65536)
            except OSError:
                return
            for protocol, host, port in destinations(message):
                verdict = decide(host, port, self.network, "udp" if protocol == "udp" else "tcp")
                if not verdict.allowed:
                    self.events.about("refused", self._by_name(verdict))

    def _by_name(self, verdict: Verdict) -> Verdict:
        """Return the verdict for the name if the address stands for one. Its port was refused."""
        packed = _socket.inet_pton(_socket.AF_INET6 if ":" in verdict.host else _socket.AF_INET, verdict.host)
        name = self.addresses.name(packed)
        return decide(name, verdict.port, self.network, verdict.protocol) if name else verdict

    def _sweep(self, now: float) -> bool:
        idle = float(self._settings.idle) if self._settings else 0.0
        for connection in list(self._connections):
            connection.look_at_the_clock(now, idle)
        self._resume()
        return bool(self._connections or self._paused)


def serve(socket: int, starter: int = -1, ready: int = -1) -> NoReturn:
    """Run the gateway on `socket`, in a process that has no other descriptor. Never returns.

    The process is either a program of its own, or forked from a single-threaded process that has loaded this
    module. `starter` is a pidfd: the gateway exits when that process does, even if a copy of the socket's
    other end is still open. For `ready` see Gateway.
    """
    gateway = Gateway(_socket.socket(fileno=socket), ready)
    try:
        if starter >= 0:
            gateway.loop.watch(starter, lambda _: gateway.loop.stop(), INPUT)
        gateway.room = max(1, (confine() - _RESERVED) // 2)
        gateway.run()
    except BaseException as error:
        # Fail closed, but report it. There is no traceback, because this process cannot open source files.
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = f"{where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
        why = f"the gateway exited, which is a bug: {type(error).__name__} at {at}"
        gateway.events.tell(Attempt("note", "", "", 0, why))
    finally:
        os._exit(0)


def _network(settings: GatewaySettings) -> Network:
    if settings.mode == "allow":
        return Network.allow(*settings.entries)
    return Network.loopback(settings.ports) if settings.ports else Network.deny()


def _family(packed: bytes) -> int:
    return int(_socket.AF_INET if len(packed) == 4 else _socket.AF_INET6)
