"""Which addresses may be connected to, from the bytes that connect() takes."""

from __future__ import annotations

import socket
import struct

import pytest

from staddle.inside.landlock.connections import Destinations

RULES = Destinations(
    (
        (socket.inet_aton("127.0.0.1"), 32, 5432, 0),
        (socket.inet_aton("10.0.0.0"), 8, 0, 0),
        (socket.inet_aton("10.1.0.0"), 16, 0, 1),
        (socket.inet_aton("10.2.0.0"), 16, 25, 1),
        (socket.inet_pton(socket.AF_INET6, "2001:db8::"), 32, 443, 0),
    )
)


def name(address: str, port: int) -> bytes:
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        return struct.pack("=H", 10) + struct.pack(">HI", port, 0) + packed + bytes(4)
    return struct.pack("=H", 2) + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8)


@pytest.mark.parametrize(
    ("address", "port", "allowed"),
    [
        ("127.0.0.1", 5432, True),
        ("::ffff:127.0.0.1", 5432, True),
        ("127.0.0.1", 5433, False),
        ("127.0.0.2", 5432, False),
        ("0.0.0.0", 5432, False),
        ("::1", 5432, False),
        ("10.0.0.1", 1, True),
        ("10.255.255.255", 65535, True),
        ("11.0.0.0", 1, False),
        ("10.1.2.3", 80, False),
        ("::ffff:10.1.2.3", 80, False),
        ("10.2.3.4", 25, False),
        ("10.2.3.4", 26, True),
        ("2001:db8:ffff::1", 443, True),
        ("2001:db8::1", 80, False),
        ("2001:db9::1", 443, False),
    ],
)
def test_an_address_is_allowed_by_a_row_and_by_none_refused(address: str, port: int, allowed: bool) -> None:
    assert RULES.allow(name(address, port)) is allowed


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\2",
        b"\2\0",
        name("10.0.0.1", 1)[:7],
        name("2001:db8::1", 443)[:23],
        struct.pack("=H", 0) + bytes(14),
        struct.pack("=H", 16) + bytes(14),
    ],
)
def test_what_is_no_address_is_refused(raw: bytes) -> None:
    assert not RULES.allow(raw)


def test_without_rows_everything_is_refused() -> None:
    assert not Destinations(()).allow(name("127.0.0.1", 80))


@pytest.mark.parametrize("address", ["0.0.0.0", "::ffff:0.0.0.0", "::"])
def test_the_unspecified_address_is_the_loopback(address: str) -> None:
    every = ((bytes(4), 0, 0, 0), (bytes(16), 0, 0, 0))
    loopback = ((bytes((127, 0, 0, 0)), 8, 0, 1), (bytes(15) + b"\x01", 128, 0, 1))
    assert Destinations(every).allow(name(address, 80))
    assert not Destinations((*every, *loopback)).allow(name(address, 80))
    assert Destinations((*every, *loopback)).allow(name("10.0.0.1", 80))
