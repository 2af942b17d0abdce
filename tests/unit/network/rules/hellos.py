"""Openings of TLS connections, made by a real client and by hand."""

from __future__ import annotations

import ssl
import struct


def real(name: str | None = "api.example.com") -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def extension(kind: int, content: bytes) -> bytes:
    return struct.pack(">HH", kind, len(content)) + content


def server_name(name: bytes, kind: int = 0) -> bytes:
    entry = bytes([kind]) + struct.pack(">H", len(name)) + name
    return extension(0, struct.pack(">H", len(entry)) + entry)


def hello(*extensions: bytes, records: int = 1) -> bytes:
    """A ClientHello with these extensions, in so many records."""
    joined = b"".join(extensions)
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    if extensions:
        body += struct.pack(">H", len(joined)) + joined
    message = b"\1" + len(body).to_bytes(3, "big") + body
    size = max(1, -(-len(message) // records))
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(part)) + part for part in parts)


def extended(opening: bytes, extra: bytes) -> bytes:
    """The same opening, of one record, with one more extension at its end."""
    hello = opening[9:]
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 1 + hello[at]
    extensions = hello[at + 2 :] + extra
    hello = hello[:at] + struct.pack(">H", len(extensions)) + extensions
    message = b"\1" + len(hello).to_bytes(3, "big") + hello
    return opening[:3] + struct.pack(">H", len(message)) + message
