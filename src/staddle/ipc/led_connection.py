"""The first line of a connection that a supervisor leads to the sandbox's proxy. Pure.

    staddle WORD HOST PORT wait|go

HOST is an address, or `dns` for questions to a nameserver. It is answered by one byte, an error's number or
0: for `wait` when the host has been dialled, for `go` when it is known that it may be. Then all that follows
is the program's.
"""

from __future__ import annotations

from .._value import Value

#: What such a connection begins with. No request of HTTP does.
FIRST = b"staddle "
#: The host of a connection that asks for names.
NAMES = "dns"


class LedConnection(Value):
    """The first line of a connection, and what came after it."""

    word: str
    host: str
    port: int
    waits: bool
    rest: bytes = b""


def encode(led: LedConnection) -> bytes:
    """The line."""
    return f"{FIRST.decode()}{led.word} {led.host} {led.port} {'wait' if led.waits else 'go'}\n".encode()


def decode(data: bytes) -> LedConnection:
    """Read the first line. ValueError for anything else."""
    import ipaddress

    line, end, rest = data.partition(b"\n")
    first, word, host, port, how = line.decode("ascii").split(" ")
    if not end or first.encode() != FIRST.strip() or how not in ("wait", "go"):
        raise ValueError("not a connection that is led here")
    if host != NAMES:
        host = str(ipaddress.ip_address(host))
    return LedConnection(word, host, int(port), how == "wait", rest)
