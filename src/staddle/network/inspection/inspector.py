"""The inspector: the process that decides about each HTTP request of one sandbox.

It gets connected sockets from the gateway and settings from the host program. It can open neither files nor
sockets, so what it knows, such as secrets, leaves it only on connections that the gateway has allowed.
"""

from __future__ import annotations

import _socket
import encodings.idna  # noqa: F401 - loaded before the process gives up files
import errno
import gc
import json
import os
import time
import unicodedata  # noqa: F401
from collections import deque

from ...ipc.wire import Malformed, receive
from ..gateway.loop import ENDING, INPUT, READABLE, Loop
from .certificates import Authority
from .confinement import confine
from .connection import InspectedConnection
from .decisions import compile_rules, decide
from .endpoint import ClientContext, ServerContext
from .messages import LONGEST, InspectionSettings, decode, exactly, secret_value, settings
from .request import RequestRefused
from .substitution import values_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from ...hostnames import HostRule
    from .decisions import CompiledRule, RequestVerdict
    from .messages import HostLimit, InspectedSecret
    from .substitution import Values

CONNECTIONS = 256
#: Reports of one second. More are merged by method, host and outcome, up to the second number.
_REPORTS, _MERGED = 200, 200
#: Messages that wait for the host program, and questions that wait for answers.
_MOST_UNSENT, _MOST_ASKED = 2000, 256
_TURNS = 32
#: Seconds for a newer value of a secret, and between two questions about one.
_REFRESH, _STALE = 5.0, 10.0
_OLD_VALUES = 4
_OPENING = 64 << 10
_LARGEST_BLOCK = 8 << 20
#: Decisions that are kept, and the longest target of one.
_DECIDED, _LONGEST_DECIDED = 1024, 512


class Inspector:
    """The inspector of one sandbox. `run` returns when the host program's socket closes."""

    def __init__(self, socket: _socket.socket) -> None:
        self.loop = Loop()
        self._socket = socket
        self._gateway: _socket.socket | None = None
        self._connections: set[InspectedConnection] = set()
        self._unsent: deque[dict[str, Any]] = deque()
        self._asked: dict[int, tuple[Callable[[bool], None], float]] = {}
        self._refreshing: list[tuple[tuple[str, ...], Callable[[bool], None], float]] = []
        self._stale: dict[str, float] = {}
        self._old: dict[str, deque[str]] = {}
        self._number = 0
        self._second, self._reported = 0, 0
        self._merged: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._usage: dict[HostRule, _HostUsage] = {}
        #: Caches, empty again after each change of rules or secrets.
        self._decided: dict[tuple[str, str, int, str], RequestVerdict] = {}
        self._wiped: dict[tuple[str, int], Values | None] = {}
        self._about: dict[tuple[str, int], tuple[CompiledRule, ...]] = {}
        self.all_values: Values | None = None
        self._settings: InspectionSettings
        self._authority: Authority
        self.clients: ClientContext
        self.servers: ServerContext

    # Start.

    def prepare(self) -> None:
        """Read the first message, and everything from files. Blocks."""
        data, descriptors = receive(self._socket, LONGEST, 4)
        kind, fields = decode(data)
        if kind != "settings" or len(descriptors) != 1:
            raise Malformed("the first message has the settings and one descriptor")
        self._gateway = _socket.socket(fileno=descriptors[0])
        self._set(settings(fields))
        self._authority = Authority(self._settings.hosts())
        self.clients = ClientContext(self._authority)
        self.servers = ServerContext(self._settings.roots)

    def run(self) -> None:
        """Serve until the host program's socket closes."""
        gateway = self._gateway
        assert gateway is not None  # noqa: S101 - `prepare` has set it
        self._socket.setblocking(False)
        gateway.setblocking(False)
        self.loop.watch(self._socket.fileno(), self._ordered)
        self.loop.watch(gateway.fileno(), self._handed, INPUT)
        self.loop.sweep(self._sweep)
        self.tell(kind="ready", ca=self._authority.pem(), truststore=self._authority.truststore())
        self.loop.run()

    def _set(self, found: InspectionSettings) -> None:
        self._settings = found
        self._rules = compile_rules(found.rules)
        self._keep(found.secrets)
        kept = self._usage
        self._usage = {limit.host: kept.get(limit.host, _HostUsage()).bound(limit) for limit in found.limits}

    def _keep(self, secrets: tuple[InspectedSecret, ...]) -> None:
        self.secrets, self.all_values = secrets, values_of(secrets)
        self._decided.clear()
        self._wiped.clear()
        self._about.clear()

    # Messages of the host program.

    def _ordered(self, events: int) -> None:
        self.send()
        if not events & (READABLE | ENDING):
            return
        for _turn in range(_TURNS):
            try:
                data, descriptors = receive(self._socket, LONGEST, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            for fd in descriptors:
                os.close(fd)
            try:
                if not data or descriptors:
                    raise Malformed("the socket is closed, or has an unexpected descriptor")
                self._order(*decode(data))
            except (Malformed, ValueError):
                self.loop.stop()  # it does not come from our host program, so there is no sandbox to serve
                return
        self.loop.soon(lambda: self._ordered(READABLE))

    def _order(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "change":
            self._change(settings(fields))
        elif kind == "answer":
            exactly(fields, id=int, allow=bool)
            asked = self._asked.pop(fields["id"], None)
            if asked is not None:
                asked[0](fields["allow"])
        elif kind == "secret":
            exactly(fields, name=str, value=str)
            self._renew(fields["name"], secret_value(fields["value"]))
        elif kind == "flush":
            exactly(fields, number=int)
            self._report_merged()
            self.tell(kind="flushed", number=fields["number"])
        else:
            raise Malformed(f"{kind!r} is no kind of message")

    def _change(self, found: InspectionSettings) -> None:
        """Apply other settings, and end connections to hosts that are not inspected any more."""
        for secret in self.secrets:
            self._remember(secret)
        self._set(found)
        hosts = found.hosts()
        for connection in list(self._connections):
            name, port, _ = connection.place
            if not any(host.matches(name, port) for host in hosts):
                connection.abort()

    def _remember(self, secret: InspectedSecret) -> None:
        """Keep wiping a value that is replaced: an answer may still have it."""
        values = self._old.setdefault(secret.name, deque(maxlen=_OLD_VALUES))
        if secret.value not in values:
            values.append(secret.value)

    def _renew(self, name: str, value: str) -> None:
        for secret in self.secrets:
            if secret.name == name:
                self._remember(secret)
        changed = (each.replace(value=value) if each.name == name else each for each in self.secrets)
        self._keep(tuple(changed))
        self._stale.pop(name, None)
        waiting, self._refreshing = self._refreshing, []
        for names, then, until in waiting:
            rest = tuple(each for each in names if each != name)
            if rest:
                self._refreshing.append((rest, then, until))
            else:
                then(True)

    # Connections of the gateway.

    def _handed(self, _: int) -> None:
        gateway = self._gateway
        if gateway is None:
            return
        try:
            data, descriptors = receive(gateway, _OPENING + 1024, 2)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.EMFILE):
                return
            data, descriptors = b"", []
        sockets = [_socket.socket(fileno=fd) for fd in descriptors]
        if not data:
            self.loop.forget(gateway.fileno())  # the gateway has exited; open connections go on
            gateway.close()
            self._gateway = None
            return
        try:
            head, _line, rest = data.partition(b"\n")
            place, newline, opening = rest.partition(b"\n")
            name, _space, port = place.decode("ascii").rpartition(" ")
            if (
                head != b"connection 1"
                or not newline
                or len(sockets) != 2
                or not opening
                or not port.isdecimal()
            ):
                raise Malformed("it is no connection")
            self._begin(sockets, name.lower(), int(port), opening)
        except (ValueError, OSError):
            for each in sockets:
                each.close()

    def _begin(self, sockets: list[_socket.socket], name: str, port: int, opening: bytes) -> None:
        place = name, port, opening[:1] == b"\x16"
        why = ""
        if len(self._connections) >= CONNECTIONS:
            why = f"more than {CONNECTIONS} connections are open"
        elif not any(host.matches(name, port) for host in self._settings.hosts()):
            why = "no rule about requests, secret or limit names this host"
        elif place[2] and not self._authority.permits(name):
            why = "the certificate of this sandbox was made before this host was added; open a new sandbox"
        if why:
            self.connection_failed(place, why)
            raise Malformed(why)
        connection = InspectedConnection(self, sockets, name, port, opening)
        self._connections.add(connection)
        connection.begin()

    def ended(self, connection: InspectedConnection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)

    # What requests ask.

    def decide(self, method: str, host: str, port: int, target: str) -> RequestVerdict:
        """Decide by the rules. A host without any may be inspected for another reason."""
        key = method, host, port, target
        found = self._decided.get(key)
        if found is None:
            is_open = any(secret.covers(host, port) for secret in self.secrets)
            is_open = is_open or any(rule.matches(host, port) for rule in self._usage)
            found = decide(self._rules_of(host, port), method, host, port, target, otherwise=is_open)
            if len(self._decided) >= _DECIDED:
                self._decided.clear()
            if len(target) <= _LONGEST_DECIDED:
                self._decided[key] = found
        return found

    def _rules_of(self, host: str, port: int) -> tuple[CompiledRule, ...]:
        if (host, port) not in self._about:
            if len(self._about) > CONNECTIONS:
                self._about.clear()
            self._about[host, port] = tuple(rule for rule in self._rules if rule.host.matches(host, port))
        return self._about[host, port]

    def values_of(self, host: str, port: int) -> Values | None:
        """Return the values, with their last ones, that answers of this host may have."""
        if (host, port) not in self._wiped:
            found = [
                each
                for secret in self.secrets
                if secret.covers(host, port)
                for each in (secret, *(secret.replace(value=old) for old in self._old.get(secret.name, ())))
            ]
            if len(self._wiped) > CONNECTIONS:
                self._wiped.clear()
            self._wiped[host, port] = values_of(found)
        return self._wiped[host, port]

    def ask(self, method: str, host: str, port: int, path: str, then: Callable[[bool], None]) -> bool:
        """Ask the host program about a request; False if it is not to be asked."""
        if not self._settings.asks or len(self._asked) >= _MOST_ASKED:
            return False
        number = self.next_id()
        self._asked[number] = then, self.loop.now + self._settings.asks
        self.tell(kind="ask", id=number, method=method, host=host, port=port, path=path)
        return True

    def refresh(self, names: tuple[str, ...], then: Callable[[bool], None]) -> None:
        """Ask for newer values of these secrets, and call `then` with whether they came."""
        now = self.loop.now
        if len(self._refreshing) >= _MOST_ASKED:
            self.loop.soon(lambda: then(False))
            return
        for name in names:
            if now - self._stale.get(name, -_STALE) >= _STALE:
                self._stale[name] = now
                self.tell(kind="stale", name=name)
        self._refreshing.append((names, then, now + _REFRESH))

    def count_request(self, host: str, port: int) -> None:
        """Count a request. Raises RequestRefused at a limit."""
        for rule, usage in self._usage.items():
            if rule.matches(host, port):
                usage.request(rule, self.loop.now)

    def count_bytes(self, host: str, port: int, count: int) -> None:
        """Count bytes of a body. Raises RequestRefused at a limit."""
        for rule, usage in self._usage.items():
            if rule.matches(host, port):
                usage.moved(rule, count)

    # Reports.

    def next_id(self) -> int:
        """Return a number that no other message has."""
        self._number += 1
        return self._number

    def connection_failed(self, place: tuple[str, int, bool], why: str) -> None:
        """Report a connection that ended before a request."""
        name, port, _ = place
        counts = dict.fromkeys(("status", "sent", "received"), 0)
        texts = dict.fromkeys(("method", "path", "protocol", "rule"), "")
        fields = {"host": name, "port": port, "outcome": "failed", "why": why, "secrets": []}
        self.report(id=self.next_id(), seconds=0.0, began=time.time(), **counts, **texts, **fields)

    def report(self, **fields: Any) -> None:
        """Report the end of a request; more than 200 a second are merged."""
        fields["why"] = fields["why"][:1000]
        second = int(self.loop.now)
        if second != self._second:
            self._report_merged()
            self._second, self._reported = second, 0
        self._reported += 1
        if self._reported <= _REPORTS:
            self.tell(kind="request", count=1, **fields)
            return
        key = fields["method"], fields["host"], fields["port"], fields["outcome"], fields["rule"]
        if key not in self._merged and len(self._merged) >= _MERGED:
            key = "", "", 0, fields["outcome"], ""
            fields.update(method="", host="", port=0, path="", rule="", why="of several hosts", secrets=[])
        known = self._merged.setdefault(key, {**fields, "count": 0, "sent": 0, "received": 0})
        known["count"] += 1
        for name in ("sent", "received"):
            known[name] += fields[name]
        known["secrets"] = sorted({*known["secrets"], *fields["secrets"]})

    def _report_merged(self) -> None:
        merged, self._merged = self._merged, {}
        for fields in merged.values():
            self.tell(kind="request", **fields)

    def tell(self, **message: Any) -> None:
        """Send a message to the host program soon, or keep it until that reads.

        Reports of passed requests wait until nothing else is to do, at most for half a second.
        """
        if len(self._unsent) < _MOST_UNSENT:
            self._unsent.append(message)
        if message.get("outcome") != "allowed":
            self.loop.soon(self.send)  # after answers to clients
        else:
            self.loop.idle(self.send)

    def send(self) -> None:
        """Send messages to the host program until it reads no more."""
        while self._unsent:
            try:
                self._socket.send(json.dumps(self._unsent[0]).encode())
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    self.loop.stop()
                    return
            self._unsent.popleft()

    def _sweep(self, now: float) -> bool:
        if int(now) != self._second:
            self._report_merged()
        self.send()
        for connection in list(self._connections):
            connection.look_at_the_clock(now)
        for number, (then, until) in list(self._asked.items()):
            if now > until:
                del self._asked[number]
                then(False)
        late = [each for each in self._refreshing if now > each[2]]
        self._refreshing = [each for each in self._refreshing if now <= each[2]]
        for _, then, _ in late:
            then(False)
        return bool(self._connections or self._asked or self._refreshing or self._merged)


class _HostUsage:
    """Requests and bytes that count towards one limit."""

    def __init__(self) -> None:
        self._limit: HostLimit | None = None
        self._requests = self._bytes = 0
        self._tokens = self._since = 0.0

    def bound(self, limit: HostLimit) -> _HostUsage:
        """Apply a limit to what was used so far."""
        if self._limit is None or self._limit.rate != limit.rate:
            self._tokens = float(limit.rate)
        self._limit = limit
        return self

    def request(self, host: HostRule, now: float) -> None:
        """Count a request. Raises RequestRefused."""
        limit = self._limit
        assert limit is not None  # noqa: S101 - `bound` has set it
        if limit.requests and self._requests >= limit.requests:
            raise RequestRefused(429, f"the limit of {limit.requests} requests to {host} is reached")
        if limit.bytes and self._bytes >= limit.bytes:
            raise RequestRefused(429, f"the limit of {limit.bytes} bytes of {host} is reached")
        if limit.rate:
            self._tokens = min(float(limit.rate), self._tokens + (now - self._since) * limit.rate / 60)
            self._since = now
            if self._tokens < 1:
                raise RequestRefused(429, f"the limit of {limit.rate} requests a minute to {host} is reached")
            self._tokens -= 1
        self._requests += 1

    def moved(self, host: HostRule, count: int) -> None:
        """Count bytes. Raises RequestRefused."""
        limit = self._limit
        assert limit is not None  # noqa: S101 - `bound` has set it
        self._bytes += count
        if limit.bytes and self._bytes > limit.bytes:
            raise RequestRefused(429, f"the limit of {limit.bytes} bytes of {host} is reached")


def serve(socket: int, starter: int) -> NoReturn:
    """Run the inspector on `socket`, in a process that has no other descriptor. Never returns."""
    inspector = Inspector(_socket.socket(fileno=socket))
    try:
        inspector.prepare()
        inspector.loop.watch(starter, lambda _: inspector.loop.stop(), INPUT)
        gc.collect()
        gc.freeze()  # what stays is not looked at again for each few requests
        # glibc keeps up to twice the largest block that was freed. Without this one, it would return the
        # memory of each read to the kernel and ask for it again.
        bytearray(_LARGEST_BLOCK)
        confine()
        inspector.run()
    except BaseException as error:
        # Fail closed, but report it. There is no traceback, because this process cannot open source files.
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = f"{where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
        why = f"the inspector exited: {type(error).__name__} at {at}"
        if isinstance(error, Malformed | OSError):
            why += f": {error}"
        inspector.connection_failed(("", 0, False), why)
        inspector.send()
    finally:
        os._exit(0)
