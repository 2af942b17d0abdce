"""DNS messages: queries from a sandbox, answers to them, and queries to real servers. Pure.

All input is untrusted. The parser refuses a message at the first error. It follows no pointers in a question,
and in an answer only pointers to earlier bytes, so that no loop is possible.
"""

from __future__ import annotations

import struct

from ..._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .synthetic import Addresses

A, CNAME, PTR, AAAA, OPT, SVCB, HTTPS, ANY = 1, 5, 12, 28, 41, 64, 65, 255
INTERNET = 1
OK, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = 0, 1, 2, 3, 4, 5
_BAD_VERSION = 16

#: Seconds for which programs may cache an answer. Short, because the policy may change.
TTL = 30
LONGEST_NAME = 255  # bytes on the wire
#: Default size of an answer over UDP, and the maximum if the client allows more.
SMALL, LARGE = 512, 1232
#: Longest message accepted over TCP. No allowed query comes near it.
LONGEST_QUERY = 4096
#: Number of records of an answer that are parsed, and of aliases that are followed.
MOST_RECORDS, MOST_ALIASES = 64, 12

_HEADER = struct.Struct(">HHHHHH")
_RECORD = struct.Struct(">HHIH")
_QR, _AA, _TC, _RD, _RA = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080


class DnsFormatError(ValueError):
    """The bytes are not a valid DNS message."""


class DnsQuestion(Value):
    """One question. `name` is in lower case without the last dot, or None if it is not a host name."""

    identity: int
    flags: int
    name: str | None
    kind: int
    kelass: int
    asked: bytes  # the bytes of the question, repeated in the answer
    room: int  # maximum length of the answer
    extended: bool  # whether the query has EDNS
    version: int = 0


class Unanswerable(DnsFormatError):
    """A malformed message with a valid header. `answer` is the error to send."""

    def __init__(self, why: str, answer: bytes) -> None:
        super().__init__(why)
        self.answer = answer


class DnsAnswer(Value):
    """A server's answer about one name and type. `aliases` lead from the name to the addresses."""

    code: int
    truncated: bool
    addresses: tuple[bytes, ...]
    ttl: int
    aliases: tuple[str, ...] = ()


# Queries from a sandbox.


def parse(packet: bytes, over_tcp: bool = False) -> DnsQuestion:
    """Parse a query with one question. DnsFormatError: send nothing. Unanswerable: send its `answer`."""
    if not _HEADER.size <= len(packet) <= LONGEST_QUERY:
        raise DnsFormatError("too short or too long")
    identity, flags, questions, answers, authorities, additional = _HEADER.unpack_from(packet)
    if flags & _QR:
        raise DnsFormatError("an answer, not a question")
    try:
        if flags >> 11 & 15:
            raise Unanswerable("not a query", _bare(identity, flags, NOT_IMPLEMENTED))
        if questions != 1 or answers or authorities or additional > 2:
            raise DnsFormatError("not exactly one question")
        labels, at = _labels(packet, _HEADER.size, pointers=False)
        kind, kelass = struct.unpack_from(">HH", packet, at)
        end = at + 4
        asked = packet[_HEADER.size : end]
        room, extended, version = SMALL, False, 0
        for _ in range(additional):
            owner, end = _labels(packet, end, pointers=False)
            record, size, ttl, length = _RECORD.unpack_from(packet, end)
            end += _RECORD.size + length
            if record == OPT:
                if owner or extended:
                    raise DnsFormatError("EDNS twice, or with a name")
                extended, version = True, ttl >> 16 & 0xFF
                room = max(SMALL, min(size, LARGE))
        if end != len(packet):
            raise DnsFormatError("something follows, or is cut off")
    except Unanswerable:
        raise
    except (DnsFormatError, struct.error, IndexError) as error:
        raise Unanswerable(str(error), _bare(identity, flags, FORMAT_ERROR)) from None
    room = 0xFFFF if over_tcp else room
    return DnsQuestion(identity, flags, _text(labels), kind, kelass, asked, room, extended, version)


def address_answer(question: DnsQuestion, v4: bytes | None, v6: bytes | None) -> bytes:
    """Answer for an allowed name with its addresses, and with no records for other types.

    HTTPS and SVCB records would let clients bypass the address or hide the name in TLS. Without them, clients
    fall back to A and AAAA.
    """
    records = []
    if question.kind in (A, ANY) and v4:
        records.append((A, v4))
    if question.kind in (AAAA, ANY) and v6:
        records.append((AAAA, v6))
    return _answer(question, OK, records)


def pointer_answer(question: DnsQuestion, name: str) -> bytes:
    """Answer a reverse lookup with the name for the address."""
    wire = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    return _answer(question, OK, [(PTR, wire)])


def error_answer(question: DnsQuestion, code: int) -> bytes:
    """Return an answer without records."""
    return _answer(question, code, [])


def problem(question: DnsQuestion) -> int | None:
    """Return the error for a question that is refused regardless of its name, or None."""
    if question.version:
        return _BAD_VERSION
    if question.kelass != INTERNET:
        return REFUSED
    return NOT_IMPLEMENTED if 249 <= question.kind <= 254 else None  # TKEY, TSIG, zone transfers


def address_in(name: str) -> bytes | None:
    """Return the address in a name below in-addr.arpa or ip6.arpa, or None."""
    labels = name.split(".")[::-1]
    try:
        if labels[:2] == ["arpa", "in-addr"] and len(labels) == 6:
            if all(label.isascii() and label.isdigit() and len(label) <= 3 for label in labels[2:]):
                return bytes(int(label) for label in labels[2:])
        elif labels[:2] == ["arpa", "ip6"] and len(labels) == 34 and all(len(x) == 1 for x in labels[2:]):
            return bytes.fromhex("".join(labels[2:]))
    except ValueError:
        pass
    return None


def framed(message: bytes) -> bytes:
    """Prefix a message with its length, for TCP."""
    return struct.pack(">H", len(message)) + message


def unframed(data: bytes) -> tuple[bytes, bytes] | None:
    """Split the first message off a TCP stream; None while it is incomplete. Bounded."""
    if len(data) < 2:
        return None
    (length,) = struct.unpack_from(">H", data)
    if not _HEADER.size <= length <= LONGEST_QUERY:
        raise DnsFormatError("too short or too long")
    return (data[2 : 2 + length], data[2 + length :]) if len(data) >= 2 + length else None


# Queries to real servers, only for names that the policy allows.


def query(identity: int, name: str, kind: int) -> bytes:
    """Return a query to a real server that allows a large answer."""
    wire = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    question = wire + b"\0" + struct.pack(">HH", kind, INTERNET)
    extended = b"\0" + _RECORD.pack(OPT, LARGE, 0, 0)
    return _HEADER.pack(identity, _RD, 1, 0, 0, 1) + question + extended


def read_answer(packet: bytes, identity: int, name: str, kind: int) -> DnsAnswer:
    """Parse the answer to `query(identity, name, kind)`. DnsFormatError if it answers another query."""
    if len(packet) < _HEADER.size:
        raise DnsFormatError("too short")
    received, flags, questions, answers, _, _ = _HEADER.unpack_from(packet)
    if received != identity or not flags & _QR or questions != 1:
        raise DnsFormatError("not the answer to this question")
    try:
        labels, at = _labels(packet, _HEADER.size, pointers=False)
        if _text(labels) != name or struct.unpack_from(">HH", packet, at) != (kind, INTERNET):
            raise DnsFormatError("not the answer to this question")
        aliases, found = _records(packet, at + 4, min(answers, MOST_RECORDS), kind)
    except (struct.error, IndexError) as error:
        raise DnsFormatError("cut off") from error
    wanted, ttls, followed = name, [300], list[str]()
    for _ in range(MOST_ALIASES):
        if wanted not in aliases:
            break
        wanted, ttl = aliases[wanted]
        ttls.append(ttl)
        followed.append(wanted)
    records = found.get(wanted, [])
    ttls += [ttl for _, ttl in records]
    addresses = tuple(data for data, _ in records)
    return DnsAnswer(flags & 15, bool(flags & _TC), addresses, min(ttls), tuple(followed))


def _records(
    packet: bytes, at: int, count: int, kind: int
) -> tuple[dict[str, tuple[str, int]], dict[str, list[tuple[bytes, int]]]]:
    """Return the aliases and the addresses among the first `count` records."""
    aliases: dict[str, tuple[str, int]] = {}
    found: dict[str, list[tuple[bytes, int]]] = {}
    length_of = {A: 4, AAAA: 16}
    for _ in range(count):
        labels, at = _labels(packet, at, pointers=True)
        record, kelass, ttl, length = _RECORD.unpack_from(packet, at)
        at += _RECORD.size
        if at + length > len(packet):
            raise DnsFormatError("cut off")
        owner = _text(labels)
        if owner is not None and kelass == INTERNET:
            if record == CNAME:
                target = _text(_labels(packet, at, pointers=True)[0])
                if target is not None:
                    aliases.setdefault(owner, (target, ttl))
            elif record == kind and length == length_of[kind]:
                found.setdefault(owner, []).append((packet[at : at + length], ttl))
        at += length
    return aliases, found


# Parts of a message.


def _labels(packet: bytes, at: int, pointers: bool) -> tuple[list[bytes], int]:
    """Return the labels of the name at `at`, and the offset after it."""
    labels: list[bytes] = []
    total, after, earliest = 0, -1, at
    while True:
        length = packet[at]
        if length & 0xC0 == 0xC0 and pointers:
            target = struct.unpack_from(">H", packet, at)[0] & 0x3FFF
            if after < 0:
                after = at + 2
            if target >= earliest:  # only backwards, so no loop is possible
                raise DnsFormatError("a pointer that does not lead back")
            at = earliest = target
            continue
        if length & 0xC0:
            raise DnsFormatError("a compressed or unknown label")
        at += 1
        if not length:
            return labels, at if after < 0 else after
        total += length + 1
        if total >= LONGEST_NAME or at + length > len(packet):
            raise DnsFormatError("a name that is too long or cut off")
        labels.append(packet[at : at + length])
        at += length


def _text(labels: list[bytes]) -> str | None:
    """Return the name as text, or None if it has characters that no host name has."""
    for label in labels:
        if not label.isascii() or not label.replace(b"-", b"").replace(b"_", b"").isalnum():
            return None
    return b".".join(labels).decode("ascii").lower()


def _answer(question: DnsQuestion, code: int, records: Iterable[tuple[int, bytes]]) -> bytes:
    extended = b""
    if question.extended:
        extended = b"\0" + _RECORD.pack(OPT, LARGE, code >> 4 << 24, 0)
    written = [b"\xc0\x0c" + _RECORD.pack(kind, INTERNET, TTL, len(data)) + data for kind, data in records]
    body, count = b"".join(written), len(written)
    flags = _QR | _AA | _RA | (question.flags & _RD) | (code & 15)
    if _HEADER.size + len(question.asked) + len(body) + len(extended) > question.room:
        flags, body, count = flags | _TC, b"", 0
    header = _HEADER.pack(question.identity, flags, 1, count, 0, 1 if extended else 0)
    return header + question.asked + body + extended


def _bare(identity: int, flags: int, code: int) -> bytes:
    return _HEADER.pack(identity, _QR | _RA | (flags & (_RD | 0x7800)) | code, 0, 0, 0, 0)


def answer(
    packet: bytes, addresses: Addresses, named: Callable[[DnsQuestion, str], bytes], *, over_tcp: bool
) -> bytes | None:
    """Return the answer to one message, or None if it gets none. `named` answers for a host name.

    No query leaves: names are resolved only when a program connects. So a refused name cannot carry data out,
    and an allowed name is answered at once.
    """
    try:
        question = parse(packet, over_tcp)
    except Unanswerable as error:
        return error.answer
    except DnsFormatError:
        return None
    code = problem(question)
    if code is not None:
        return error_answer(question, code)
    name = question.name
    if name is None:
        return error_answer(question, NO_SUCH_NAME)
    if name == "localhost" or name.endswith(".localhost"):
        return address_answer(question, bytes((127, 0, 0, 1)), bytes(15) + b"\1")
    if name.endswith(".arpa"):
        packed = address_in(name)
        known = addresses.name(packed) if packed else None
        if known is None:
            return error_answer(question, NO_SUCH_NAME)
        if question.kind in (PTR, ANY):
            return pointer_answer(question, known)
        return error_answer(question, OK)
    return named(question, name)
