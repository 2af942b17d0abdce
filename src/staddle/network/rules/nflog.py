"""Parse the kernel's log of packets that nftables refused in the sandbox (nfnetlink_log). Pure.

destinations(message)      (protocol, address, port) of each packet in an nfnetlink_log message
"""

from __future__ import annotations

import ipaddress
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("IHHII")
_PACKET = 4 << 8
_PAYLOAD = 9
_PROTOCOLS = {6: "tcp", 17: "udp"}


def destinations(message: bytes) -> Iterator[tuple[str, str, int]]:
    """Where refused TCP and UDP packets were to go. What does not fit is skipped."""
    at = 0
    while at + _HEADER.size <= len(message):
        length, kind = _HEADER.unpack_from(message, at)[:2]
        if length < _HEADER.size or at + length > len(message):
            return
        if kind == _PACKET:
            # The header of nfnetlink has four bytes.
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
    """Protocol, address and port of an IP packet, without IPv6 extension headers."""
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
