"""Packets that the kernel tells about: TCP and UDP destinations, nothing from what does not fit."""

from __future__ import annotations

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from staddle.linux.netlink import attribute, message
from staddle.network.rules.sniff import destinations


def told(packet: bytes) -> bytes:
    return message(4 << 8, 0, struct.pack(">BBH", 2, 0, 1) + attribute(1, bytes(4)) + attribute(9, packet))


def v4(protocol: int, host: str, port: int) -> bytes:
    return (
        b"\x45"
        + bytes(8)
        + bytes([protocol])
        + bytes(6)
        + socket.inet_aton(host)
        + struct.pack(">HH", 40000, port)
    )


def v6(protocol: int, host: str, port: int) -> bytes:
    head = b"\x60" + bytes(5) + bytes([protocol]) + bytes(1 + 16)
    return head + socket.inet_pton(socket.AF_INET6, host) + struct.pack(">HH", 40000, port)


def test_destinations_are_read_from_every_packet_of_a_message() -> None:
    whole = told(v4(6, "1.2.3.4", 443)) + told(v6(17, "2001:db8::1", 53)) + told(v4(1, "8.8.8.8", 0))
    assert list(destinations(whole)) == [("tcp", "1.2.3.4", 443), ("udp", "2001:db8::1", 53)]


def test_what_is_cut_is_skipped() -> None:
    assert list(destinations(told(v4(6, "1.2.3.4", 443)[:-1]))) == []
    assert list(destinations(told(b""))) == []
    assert list(destinations(told(v4(6, "1.2.3.4", 443))[:-4])) == []


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    list(destinations(data))
    list(destinations(told(data)))
