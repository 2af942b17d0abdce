"""Messages on the socket between the host program and a gateway, as bytes. Pure.

The host side sends `GatewaySettings`, first and on changes, and decisions. The sandbox's first process sends
`Sockets`, with descriptors. The gateway reports what happened (`Attempt`) and asks (`ConnectQuestion`). One
message is one packet of a SOCK_SEQPACKET socket.
"""

from __future__ import annotations

from .._value import Value
from . import wire
from .wire import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    #: The purpose of a socket, and its address and port.
    Label = tuple[str, bytes, int]

#: The most descriptors that we send in one message (SCM_MAX_FD is 253).
MOST_DESCRIPTORS = 128
LONGEST = 1 << 18
KINDS = ("tcp", "forward", "dns", "dns-tcp", "udp", "refusals", "stock", "expose", "inspector")

_SETTINGS, _SOCKETS, _ATTEMPT, _NEED_SOCKETS = (
    b"settings 1\n",
    b"sockets 1\n",
    b"attempt 1\n",
    b"need-sockets 1\n",
)
_QUESTION, _DECISION, _FLUSH = b"question 1\n", b"decision 1\n", b"flush 1\n"
_CHANGE = b"change 1\n"


class GatewaySettings(Value):
    """Settings of a gateway. `entries` are lines of an allow list; `hosts` is /etc/hosts, parsed.

    `connections` is the most at once, and `idle` the seconds without a byte before one is closed (0: never).
    `most_bytes` limits both directions together, for all connections (0: no limit). `asks` is how many
    seconds to wait for a decision about destinations that no entry mentions (0: do not ask). With `lasting`,
    it continues when its socket is closed, as long as its starter lives. Connections to the entries of
    `inspected` go to the HTTP inspector.
    """

    mode: Literal["allow", "loopback"]
    entries: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    nameservers: tuple[tuple[str, int], ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()
    connections: int = 512
    idle: int = 0
    most_bytes: int = 0
    asks: int = 0
    lasting: int = 0
    inspected: tuple[str, ...] = ()


class Sockets(Value):
    """Sockets that come with this message, in this order."""

    labels: tuple[Label, ...]
    redirects: bool = False
    v6: bool = False


class ConnectQuestion(Value):
    """A connection inside to a destination that no entry mentions: `on_connect` has to decide."""

    identity: int
    host: str
    port: int


class Attempt(Value):
    """An attempt inside to reach a destination; `count` equal attempts in a short time."""

    outcome: Literal["allowed", "refused", "failed", "note"]
    protocol: str
    host: str
    port: int
    why: str
    allow: str = ""
    count: int = 1


class NeedSockets(Value):
    """A request of the gateway for `count` unconnected sockets."""

    count: int


class Flushed(Value):
    """The gateway has sent all attempts before the flush request with this number."""

    number: int


def encode_settings(settings: GatewaySettings) -> bytes:
    """Return the first message to a gateway."""
    fields = (
        settings.mode.encode(),
        tuple(entry.encode() for entry in settings.entries),
        settings.ports,
        tuple((host.encode(), port) for host, port in settings.nameservers),
        tuple((name.encode(), address.encode()) for name, address in settings.hosts),
        settings.connections,
        settings.idle,
        settings.most_bytes,
        settings.asks,
        settings.lasting,
        tuple(entry.encode() for entry in settings.inspected),
    )
    return wire.encode(_SETTINGS, fields)


def decode_settings(data: bytes) -> GatewaySettings:
    """Return the settings, or raise Malformed."""
    mode, entries, ports, servers, hosts, *numbers, inspected = wire.decode(_SETTINGS, data, 11)
    if mode not in (b"allow", b"loopback"):
        raise Malformed("there is no such mode")
    made = GatewaySettings(
        "allow" if mode == b"allow" else "loopback",
        tuple(entry.decode() for entry in entries),
        tuple(ports),
        tuple((host.decode(), port) for host, port in servers),
        tuple((name.decode(), address.decode()) for name, address in hosts),
        *numbers,
    )
    return made.replace(inspected=tuple(entry.decode() for entry in inspected))


def encode_change(settings: GatewaySettings) -> bytes:
    """Return the message that replaces the settings of a gateway."""
    return _CHANGE + encode_settings(settings)


def decode_change(data: bytes) -> GatewaySettings | None:
    """Return the new settings; None for another message."""
    return decode_settings(data[len(_CHANGE) :]) if data.startswith(_CHANGE) else None


def encode_sockets(order: Sockets) -> bytes:
    """Return the message that comes with descriptors."""
    labels = tuple((kind.encode(), packed, port) for kind, packed, port in order.labels)
    return wire.encode(_SOCKETS, (labels, int(order.redirects), int(order.v6)))


def decode_sockets(data: bytes, descriptors: int) -> Sockets:
    """Decode the message that came with so many descriptors, or raise Malformed."""
    labels, redirects, v6 = wire.decode(_SOCKETS, data, 3)
    if not isinstance(labels, tuple) or len(labels) != descriptors or {redirects, v6} - {0, 1}:
        raise Malformed("the sockets and their labels do not go together")
    made: list[Label] = []
    for label in labels:
        if not isinstance(label, tuple) or len(label) != 3:
            raise Malformed("a label is not what it should be")
        kind, packed, port = label
        fits = isinstance(kind, bytes) and isinstance(packed, bytes) and isinstance(port, int)
        if not fits or kind.decode("ascii", "replace") not in KINDS or len(packed) not in (0, 4, 16):
            raise Malformed("a label is not what it should be")
        if not 0 <= port <= 65535:
            raise Malformed("a label is not what it should be")
        made.append((kind.decode(), packed, port))
    return Sockets(tuple(made), bool(redirects), bool(v6))


def encode_attempt(attempt: Attempt) -> bytes:
    """Return the report of an attempt for the host side."""
    fields = tuple(
        value if isinstance(value, int) else str(value).encode("utf-8", "backslashreplace")[:1024]
        for value in attempt.as_dict().values()
    )
    return wire.encode(_ATTEMPT, fields)


def decode_attempt(data: bytes) -> Attempt:
    """Decode the report of an attempt, or raise Malformed."""
    fields = wire.decode(_ATTEMPT, data, 7)
    outcome, protocol, host, port, why, allow, count = fields
    texts = [outcome, protocol, host, why, allow]
    if not all(isinstance(text, bytes) for text in texts) or not isinstance(port, int):
        raise Malformed("an attempt is not what it should be")
    if outcome not in (b"allowed", b"refused", b"failed", b"note") or not isinstance(count, int):
        raise Malformed("an attempt is not what it should be")
    words = [text.decode("utf-8", "replace") for text in texts]
    return Attempt(words[0], words[1], words[2], port, words[3], words[4], count)


def encode_need_sockets(count: int) -> bytes:
    """Return a request for so many unconnected sockets."""
    return wire.encode(_NEED_SOCKETS, (count,))


def decode_need_sockets(data: bytes) -> int | None:
    """Return the number of sockets that the gateway asks for; None for another message."""
    if not data.startswith(_NEED_SOCKETS):
        return None
    (count,) = wire.decode(_NEED_SOCKETS, data, 1)
    if not isinstance(count, int) or not 0 < count <= MOST_DESCRIPTORS:
        raise Malformed("a wish for sockets is not what it should be")
    return count


def encode_flush(number: int) -> bytes:
    """Return a flush request: the gateway reports all attempts until now, and then sends this back."""
    return wire.encode(_FLUSH, (number,))


def decode_flush(data: bytes) -> int | None:
    """Return the number of a flush request; None for another message."""
    if not data.startswith(_FLUSH):
        return None
    (number,) = wire.decode(_FLUSH, data, 1)
    if not isinstance(number, int):
        raise Malformed("a turn is not what it should be")
    return number


def encode_question(question: ConnectQuestion) -> bytes:
    """Return the gateway's request for a decision."""
    return wire.encode(_QUESTION, (question.identity, question.host.encode("ascii"), question.port))


def decode_question(data: bytes) -> ConnectQuestion | None:
    """Return the question of a gateway; None for another message."""
    if not data.startswith(_QUESTION):
        return None
    identity, host, port = wire.decode(_QUESTION, data, 3)
    if not isinstance(identity, int) or not isinstance(host, bytes) or not isinstance(port, int):
        raise Malformed("a question is not what it should be")
    return ConnectQuestion(identity, host.decode("ascii", "replace"), port)


#: Decisions on the wire: no, yes, and a no for this connection only.
_NOT_NOW = 2


def encode_decision(identity: int, allowed: bool | None) -> bytes:
    """Return the answer to a question; None is a no for this time, and the next connection asks again."""
    return wire.encode(_DECISION, (identity, _NOT_NOW if allowed is None else int(allowed)))


def decode_decision(data: bytes) -> tuple[int, bool | None] | None:
    """Decode a decision: the question's number and the answer; None for a message of another kind."""
    if not data.startswith(_DECISION):
        return None
    identity, allowed = wire.decode(_DECISION, data, 2)
    return identity, None if allowed == _NOT_NOW else allowed == 1


def decode_report(data: bytes) -> Attempt | ConnectQuestion | NeedSockets | Flushed:
    """Decode one message from a gateway to the host side, or raise Malformed."""
    if (question := decode_question(data)) is not None:
        return question
    if (count := decode_need_sockets(data)) is not None:
        return NeedSockets(count)
    if (number := decode_flush(data)) is not None:
        return Flushed(number)
    return decode_attempt(data)
