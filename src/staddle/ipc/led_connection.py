"""The first line of a connection that a supervisor redirects to the sandbox's proxy. Pure.

    staddle WORD HOST PORT wait|go

HOST is an address, or `dns` for queries to a nameserver. The answer is one byte, an errno or 0. For `wait` it
comes once the host is connected, for `go` once the proxy has decided. All later bytes are the program's.
"""

from __future__ import annotations

from .._value import Value

#: The beginning of such a connection. No HTTP request begins so.
FIRST = b"staddle "
#: The host of a connection for DNS queries.
NAMES = "dns"


class LedConnection(Value):
    """The first line of a connection, and the bytes after it."""

    word: str
    host: str
    port: int
    waits: bool
    rest: bytes = b""


def encode(led: LedConnection) -> bytes:
    """Return the line."""
    return f"{FIRST.decode()}{led.word} {led.host} {led.port} {'wait' if led.waits else 'go'}\n".encode()


def decode(data: bytes) -> LedConnection:
    """Parse the first line. ValueError for anything else."""
    import ipaddress

    line, end, rest = data.partition(b"\n")
    first, word, host, port, how = line.decode("ascii").split(" ")
    if not end or first.encode() != FIRST.strip() or how not in ("wait", "go"):
        raise ValueError("not a connection that is led here")
    if host != NAMES:
        host = str(ipaddress.ip_address(host))
    return LedConnection(word, host, int(port), how == "wait", rest)
