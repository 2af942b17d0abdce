"""Heads of HTTP/1.1: read those that everybody reads alike, and write them. Pure. h11 reads all others.

A usual head is complete, has one header a line in printable ASCII, and at most one Content-Length. No reader
finds another end of the head or of its body.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .substitution import Headers

_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_FIELDS = rb"((?:%b:[\t\x20-\x7e]*\r\n)+)\r\n" % _TOKEN
_REQUEST = re.compile(rb"([A-Z]+) ([\x21-\x7e]+) HTTP/1\.1\r\n" + _FIELDS)
_RESPONSE = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ([\t\x20-\x7e]*)\r\n" + _FIELDS)
_LENGTH = re.compile(rb"[0-9]{1,20}")
_FRAMING = re.compile(rb"content-length: [0-9]{1,20}|transfer-encoding: chunked")
_FIRST = re.compile(_TOKEN + rb" [\x21-\x7e]+ HTTP/1\.1")
_NAME = _TOKEN.replace(b"A-Z", b"")
_VALUE = rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?"
_LINE = re.compile(_NAME + b": " + _VALUE)


class RequestHead(NamedTuple):
    """Method, target and headers of a request."""

    method: str
    target: str
    headers: Headers
    version: bytes = b"1.1"


class ResponseHead(NamedTuple):
    """Status and headers of an answer."""

    status: int
    reason: bytes
    headers: Headers
    version: bytes = b"1.1"


def read_request(data: bytes) -> tuple[RequestHead, bytes] | None:
    """Return the head at the begin of `data`, and what follows it; None if h11 is to read it."""
    found = _REQUEST.match(data)
    if found is None:
        return None
    method, target, fields = found.groups()
    headers = _usual(fields)
    if headers is None or [name for name, _ in headers].count(b"host") != 1:
        return None
    return RequestHead(method.decode(), target.decode(), headers), data[found.end() :]


def read_response(data: bytes) -> tuple[ResponseHead, bytes] | None:
    """Return the head at the begin of `data`, and what follows it; None if h11 is to read it."""
    found = _RESPONSE.match(data)
    if found is None:
        return None
    status, reason, fields = found.groups()
    headers = _usual(fields)
    return None if headers is None else (ResponseHead(int(status), reason, headers), data[found.end() :])


def _usual(fields: bytes) -> Headers | None:
    """Return the headers in these lines; None if there is more to say about the length of the body."""
    headers = []
    lengths = 0
    for line in fields[:-2].split(b"\r\n"):
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"content-length":
            lengths += 1
            if lengths > 1 or not _LENGTH.fullmatch(value):
                return None
        elif name == b"transfer-encoding":
            return None
        headers.append((name, value))
    return headers


def write_request(method: str, target: str, headers: Headers) -> bytes:
    """Return the bytes of a head. Raises ValueError if it would be read in another way than it was meant."""
    first = f"{method} {target} HTTP/1.1".encode("latin-1")
    if not _FIRST.fullmatch(first):
        raise ValueError("its method or path has a character that none has")
    lines, hosts, framing = [first], 0, 0
    for name, value in headers:
        line = name + b": " + value
        # A name with a colon would be read as a shorter one.
        if not _LINE.fullmatch(line) or b":" in name:
            raise ValueError(f"the header {name[:64].decode('latin-1')!r} has a character that none has")
        if name == b"host":
            hosts += 1
            lines.insert(1, line)
            continue
        if name in (b"content-length", b"transfer-encoding"):
            framing += 1
            if not _FRAMING.fullmatch(line):
                raise ValueError("its length is no number")
        lines.append(line)
    if hosts != 1 or framing > 1:
        raise ValueError("its host is missing, or its host or length is given twice")
    return b"\r\n".join([*lines, b"", b""])
