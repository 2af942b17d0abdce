"""The addresses that the supervisor connects to over TCP, where not all are allowed. Pure.

A row is (network, prefix length, port, refused): the network packed, port 0 for every one. What
no row allows is refused, and so is what one refuses.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    Row = tuple[bytes, int, int, int]

_MAPPED = bytes(10) + b"\xff\xff"
#: The loopback address, by the length of an address.
_LOOPBACK = {4: bytes((127, 0, 0, 1)), 16: bytes(15) + b"\x01"}
_AF_INET, _AF_INET6 = 2, 10


class Destinations:
    """Rows, asked one address at a time."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self._rows = rows

    def allow(self, name: bytes) -> bool:
        """Whether a socket may be connected to this address, as connect() takes it."""
        found = _parsed(name)
        if found is None:
            return False
        address, port = found
        # connect() to the unspecified address, 0.0.0.0 or ::, goes to the host's loopback.
        meant = (address,) if any(address) else (address, _LOOPBACK[len(address)])
        return all(self._allows(each, port) for each in meant)

    def _allows(self, address: bytes, port: int) -> bool:
        about = [
            refused
            for network, prefix, at, refused in self._rows
            if at in (0, port) and _contains(network, prefix, address)
        ]
        return bool(about) and not any(about)


def _parsed(name: bytes) -> tuple[bytes, int] | None:
    """Address and port in a sockaddr_in or sockaddr_in6; an IPv4 address in an IPv6 one is that."""
    if len(name) < 8:
        return None
    (family,) = struct.unpack_from("H", name)
    (port,) = struct.unpack_from(">H", name, 2)
    if family == _AF_INET:
        return name[4:8], port
    if family != _AF_INET6 or len(name) < 24:
        return None
    packed = name[8:24]
    return (packed[12:], port) if packed.startswith(_MAPPED) else (packed, port)


def _contains(network: bytes, prefix: int, address: bytes) -> bool:
    if len(network) != len(address):
        return False
    after = len(network) * 8 - prefix
    return int.from_bytes(network, "big") >> after == int.from_bytes(address, "big") >> after
