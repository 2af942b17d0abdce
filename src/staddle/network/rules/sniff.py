"""Find the server name in the first bytes of a connection: SNI of TLS, Host of plain HTTP. Pure.

    opening = parse_opening(data)    None: not enough bytes yet
    opening.protocol                 "tls", "http" or "other"
    opening.name                     the canonical name, or None if the client did not send one
    opening.problem                  the reason for a refusal, or empty

Only the opening of a connection and its first request are parsed. Anything except TLS and HTTP/1 (ssh,
databases, HTTP/2 without TLS) is "other" and judged by name and port alone. Bytes that only some servers read
as TLS or HTTP are TLS or HTTP with a problem, never "other". A client can show one name here and use another
inside TLS; nobody outside can see it.

    destinations(message)            (protocol, address, port) of each packet in an nfnetlink_log message:
                                     the kernel's log of packets that nftables refused in the sandbox
"""

from __future__ import annotations

import ipaddress
import struct

from ..._value import Value
from ...errors import PolicyError
from ...hostnames import canonical
from .rules import refused_name, refuses_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from ...policy.network import Network

#: Maximum number of bytes that are held back. In practice a ClientHello has at most 2 KiB.
LONGEST = 32768
_LONGEST_LINE = 8192
_ALERT, _HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 21, 22, 1, 0
#: Content types of TLS records, from change_cipher_spec to heartbeat (RFC 8446 B.1, RFC 6520).
_RECORDS = range(20, 25)
#: Methods from RFC 9110 and common ones from the registry. A line that begins with one may be HTTP.
_METHODS = (
    b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK "
    b"SEARCH REPORT MKACTIVITY CHECKOUT MERGE PURGE LINK UNLINK BIND REBIND UNBIND ACL SOURCE M-SEARCH "
    b"NOTIFY SUBSCRIBE UNSUBSCRIBE MKCALENDAR QUERY"
).split()
_BLANK = b" \t\r\n\v\f"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Opening(Value):
    """The protocol and the name in the first bytes."""

    protocol: Literal["tls", "http", "other"]
    name: str | None = None
    problem: str = ""


OTHER = Opening("other")


class _NotYet(Exception):
    """More bytes are needed."""


class _Bad(Exception):
    """The bytes are TLS or HTTP, but malformed."""


def parse_opening(data: bytes) -> Opening | None:
    """Return the protocol and name in `data`, or None if more bytes are needed.

    Returns a result for LONGEST bytes or more.
    """
    if not data:
        return None
    protocol: Literal["tls", "http"] = "tls"
    try:
        if _is_tls(data):
            return Opening("tls", _server_name(data))
        protocol = "http"
        return _http(data)
    except _NotYet:
        return Opening(protocol, None, "its opening is too long") if len(data) >= LONGEST else None
    except _Bad as bad:
        return Opening(protocol, None, str(bad))
    except PolicyError:
        return Opening(protocol, None, "the name in it is not a host name")


# TLS.


def _is_tls(data: bytes) -> bool:
    """Whether any server reads these bytes as TLS. The type of the first record does not matter.

    A server may skip an alert before the ClientHello, and may ignore the version of a record (RFC 8446 5.1;
    Go does both).
    """
    if data[0] in _RECORDS:
        if data[1:2] in (b"", b"\3"):
            return True
        if len(data) < 6:
            raise _NotYet
        if data[0] == _ALERT:
            return data[3:5] == b"\0\2" and data[5] in (1, 2)
        return data[0] == _HANDSHAKE and data[5] == _CLIENT_HELLO
    # An SSL 2 hello, which some servers still accept as TLS. It has no name.
    if data[0] & 0xC0 != 0x80 or data[2:4] not in (b"", b"\1", b"\1\3"):
        return False
    if len(data) < 4:
        raise _NotYet
    return True


class _Bytes:
    """A bounded reader that raises `_Bad` at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise _Bad("its opening is malformed")
        self._at, start = end, self._at
        return self._data[start:end]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> _Bytes:
        """Return a reader of the bytes after a length of `size` bytes."""
        return _Bytes(self.take(self.number(size)))

    def more(self) -> bool:
        return self._at < len(self._data)

    def rest(self) -> bytes:
        return self._data[self._at :]


def _server_name(data: bytes) -> str | None:
    if data[0] not in _RECORDS:
        return None
    hello = _Bytes(_client_hello(data))
    hello.take(2 + 32)  # version, random
    hello.block(1)  # session
    hello.block(2)  # cipher suites
    hello.block(1)  # compression
    if not hello.more():
        return None
    extensions = hello.block(2)
    if hello.more():
        raise _Bad("its opening is malformed")
    found: list[str] = []
    while extensions.more():
        kind, content = extensions.number(2), extensions.block(2)
        if kind == _SERVER_NAME:
            found.append(_name_in(content))
    if len(found) > 1:
        raise _Bad("it has more than one server name")
    return found[0] if found else None


def _name_in(content: _Bytes) -> str:
    names = content.block(2)
    kind, name = names.number(1), names.block(2).rest()
    if kind or names.more() or content.more():
        raise _Bad("it has more than one server name")
    return _plain(name)


def _client_hello(data: bytes) -> bytes:
    """Return the content of the first handshake message, which may span several records."""
    message, at = b"", 0
    while True:
        if len(message) >= 4:
            length = int.from_bytes(message[1:4], "big")
            if message[0] != _CLIENT_HELLO or length > LONGEST:
                raise _Bad("its opening is malformed")
            if len(message) >= 4 + length:
                return message[4 : 4 + length]
        elif message and message[0] != _CLIENT_HELLO:
            raise _Bad("its opening is malformed")
        header = data[at : at + 5]
        if len(header) < 5:
            raise _NotYet
        length = int.from_bytes(header[3:], "big")
        if header[0] != _HANDSHAKE:
            raise _Bad("another record comes before the end of its ClientHello")
        if header[1] != 3 or not 0 < length <= 16384 + 256:
            raise _Bad("its opening is malformed")
        message += data[at + 5 : at + 5 + length]
        if at + 5 + length > len(data):
            # An incomplete record may already contain the whole message.
            if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big"):
                at = len(data)
                continue
            raise _NotYet
        at += 5 + length


# HTTP/1.


def _http(data: bytes) -> Opening:
    text = data.lstrip(_BLANK)  # servers skip empty lines before a request, some also other blanks
    if not text:
        raise _NotYet
    if text.startswith(_PREFACE):
        return OTHER
    if _PREFACE.startswith(text):
        raise _NotYet  # may still become a request with this method
    line, newline, _ = text.partition(b"\n")
    if not newline:
        if _may_begin_a_request(text):
            raise _NotYet
        return OTHER
    line = line.removesuffix(b"\r")
    words = line.split()
    if not _is_request(words):
        return OTHER
    # Servers disagree whether a control character ends a word or is part of it.
    if len(words) != 3 or not _is_version(words[2]) or any(byte < 32 or byte == 127 for byte in line):
        raise _Bad("its request line is malformed")
    head = _head(text)
    return Opening("http", _agreed(words[0].upper(), words[1], head))


def _is_request(words: list[bytes]) -> bool:
    """Whether any server reads a first line with these words as a request.

    HTTP/0.9 has no version, so a method and a target are enough. `GET key` is not a request, because
    databases have such commands.
    """
    if len(words) > 2 and (_is_version(words[2]) or _is_version(words[-1])):
        return True
    return len(words) > 1 and words[0].upper() in _METHODS and (words[1][:1] == b"/" or b"://" in words[1])


def _is_version(word: bytes) -> bool:
    return word.upper().startswith(b"HTTP/")


def _may_begin_a_request(text: bytes) -> bool:
    """Whether an incomplete first line could become a request."""
    words = text[:_LONGEST_LINE].split(None, 1)
    word = words[0].upper()
    alone = len(words) == 1 and not text[-1:].isspace()
    known = any(method.startswith(word) for method in _METHODS) if alone else word in _METHODS
    if known and len(text) > _LONGEST_LINE:
        raise _Bad("its request line is too long")
    return known


def _head(text: bytes) -> list[bytes]:
    """Return the header lines of the first request. Accepts the line ends that lenient servers accept."""
    lines: list[bytes] = []
    at = text.index(b"\n") + 1
    while True:
        end = text.find(b"\n", at)
        if end < 0:
            raise _NotYet
        line = text[at:end]
        line = line[:-1] if line.endswith(b"\r") else line
        at = end + 1
        if not line:
            return lines
        if line[:1] in (b" ", b"\t") or b"\0" in line or b"\r" in line:
            raise _Bad("a header line is malformed")
        lines.append(line)


def _agreed(method: bytes, target: bytes, head: list[bytes]) -> str | None:
    """Return the host that the target and the Host header name, or None if there is none."""
    hosts = []
    for line in head:
        name, colon, value = line.partition(b":")
        if not colon or name != name.strip():
            raise _Bad("a header line is malformed")
        if name.lower() == b"host":
            hosts.append(value.strip())
    if len(hosts) > 1:
        raise _Bad("it has more than one Host")
    if b"://" in target.split(b"?", 1)[0]:
        hosts.append(target.split(b"://", 1)[1].split(b"/", 1)[0].split(b"?", 1)[0])
    elif method == b"CONNECT":
        hosts.append(target)
    names = {_plain(_without_port(host)) for host in hosts if host}
    if len(names) > 1:
        raise _Bad("its Host and its target are different hosts")
    return names.pop() if names else None


def _without_port(host: bytes) -> bytes:
    bare, colon, port = host.rpartition(b":")
    if not colon or host.endswith(b"]"):
        return host
    if not port.isdigit() or len(port) > 5:
        raise _Bad("the port in its Host is malformed")
    return bare


def _plain(name: bytes) -> str:
    """Return the canonical spelling of a name that must be ASCII."""
    if not name.isascii():
        raise _Bad("the name in it is not a host name")
    return canonical(name.decode("ascii"))


def objection(seen: Opening, name: str | None, network: Network) -> str:
    """Return the reason why an opening does not match its destination, or an empty string.

    `name` is the requested name, or None if the destination is an address.
    """
    if seen.protocol == "other" and not seen.problem:
        return ""
    what = "TLS" if seen.protocol == "tls" else "HTTP"
    if seen.name is not None:
        rule = refused_name(seen.name, network)
        if rule is not None:
            return f"{what} names {seen.name}, refused by {rule}"
    if seen.problem and (name is not None or refuses_names(network)):
        return f"{what}: {seen.problem}"
    if name is None:
        return ""  # the address itself is allowed, with any protocol
    if seen.name is None:
        return f"{what} does not name the host it is for"
    return "" if seen.name == name else f"{what} is for {seen.name}, not for {name}"


_HEADER = struct.Struct("IHHII")
_PACKET = 4 << 8
_PAYLOAD = 9
_PROTOCOLS = {6: "tcp", 17: "udp"}


def destinations(message: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield the destinations of refused TCP and UDP packets. Skips malformed packets."""
    at = 0
    while at + _HEADER.size <= len(message):
        length, kind = _HEADER.unpack_from(message, at)[:2]
        if length < _HEADER.size or at + length > len(message):
            return
        if kind == _PACKET:
            # The nfnetlink header has four bytes.
            packet = _attribute(message[at + _HEADER.size + 4 : at + length], _PAYLOAD)
            found = _destination(packet)
            if found is not None:
                yield found
        at += length + -length % 4


def _attribute(attributes: bytes, wanted: int) -> bytes:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("HH", attributes, at)
        if length < 4 or at + length > len(attributes):
            return b""
        if kind & 0x3FFF == wanted:
            return attributes[at + 4 : at + length]
        at += length + -length % 4
    return b""


def _destination(packet: bytes) -> tuple[str, str, int] | None:
    """Return protocol, address and port of an IP packet. Does not parse IPv6 extension headers."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        header, protocol, packed = (packet[0] & 15) * 4, packet[9], packet[16:20]
    elif len(packet) >= 40 and packet[0] >> 4 == 6:
        header, protocol, packed = 40, packet[6], packet[24:40]
    else:
        return None
    if protocol not in _PROTOCOLS or len(packet) < header + 4:
        return None
    (port,) = struct.unpack_from(">H", packet, header + 2)
    return _PROTOCOLS[protocol], str(ipaddress.ip_address(packed)), port
