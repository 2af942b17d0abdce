"""Netlink messages are the kernel's structures, and its errors are found in any answer."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.linux import netlink, nftables
from staddle.linux.netlink import socket_memory


def attributes(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(data):
        length, kind = struct.unpack_from("HH", data, at)
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += length + -length % 4
    return found


def test_messages_have_their_length_and_are_padded() -> None:
    made = netlink.message(16, 4, b"12345")
    assert struct.unpack_from("IHHII", made) == (21, 16, 5, 0, 0)
    assert len(made) == 24


def test_a_local_route_has_destination_interface_and_source() -> None:
    made = netlink.local_route(socket.inet_aton("198.18.0.0"), 15, socket.inet_aton("198.18.0.1"))
    family, length, _, _, table, _, scope, kind = struct.unpack_from("8B", made, 16)
    assert (family, length, table, scope, kind) == (socket.AF_INET, 15, 255, 254, 2)
    assert attributes(made[28:]) == {
        1: socket.inet_aton("198.18.0.0"),
        4: struct.pack("I", netlink.LOOPBACK),
        7: socket.inet_aton("198.18.0.1"),
    }
    everything = netlink.local_route(bytes(16), 0)
    assert set(attributes(everything[28:])) == {4}


def test_errors_are_found_one_by_one() -> None:
    ok = struct.pack("IHHIIi", 20, 2, 0, 0, 0, 0)
    refused = struct.pack("IHHIIi", 20, 2, 0, 0, 0, -1)
    assert list(netlink.errors(ok + refused)) == [0, 1]
    assert list(netlink.errors(ok[:-1])) == []
    assert list(netlink.errors(struct.pack("IHHII", 0, 2, 0, 0, 0))) == []


@given(st.binary(max_size=100))
def test_no_answer_breaks_the_reader(data: bytes) -> None:
    list(netlink.errors(data))


def test_what_the_kernel_refuses_is_an_error() -> None:
    with netlink.Netlink() as kernel, pytest.raises(OSError, match=r"No such device|not permitted"):
        kernel.ask(netlink.link_up(2**30))


def test_a_transaction_is_framed_and_counts_its_answers() -> None:
    rules = [nftables.protocol(nftables.TCP) + nftables.reset(), nftables.unreachable()]
    made, answers = nftables.transaction("t", [("c", nftables.PREROUTING, -150, rules)])
    kinds, at = [], 0
    while at < len(made):
        length, kind = struct.unpack_from("IH", made, at)
        kinds.append(kind)
        at += length + -length % 4
    assert kinds == [16, 10 << 8 | 0, 10 << 8 | 3, 10 << 8 | 6, 10 << 8 | 6, 17]
    assert answers == 4


@pytest.mark.parametrize(
    ("address", "prefix", "mask"),
    [
        ("198.18.0.0", 15, "fffe0000"),
        ("10.0.0.1", 32, "ffffffff"),
        ("2001:2::", 48, "ffffffffffff" + "0" * 20),
    ],
)
def test_networks_are_compared_under_their_mask(address: str, prefix: int, mask: str) -> None:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    made = nftables.destination(packed, prefix)
    assert bytes.fromhex(mask) in made
    assert packed in made
    assert nftables.destination(packed, 0) == b""


# The memory that waits in sockets, as the kernel tells it without a capability.


def test_what_is_sent_by_unix_sockets_and_not_read_counts() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        sent = one.send(bytes(100_000))
        assert socket_memory() >= sent


def test_what_is_sent_by_tcp_and_not_read_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, other = socket.create_connection(server.getsockname()), server.accept()[0]
        with one, other:
            one.setblocking(False)
            sent = one.send(bytes(100_000))
            assert socket_memory() >= sent


def test_what_the_kernel_does_not_tell_counts_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(netlink._socket, "socket", refuse)
    assert socket_memory() == 0
