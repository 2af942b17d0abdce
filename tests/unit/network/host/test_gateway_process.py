"""The host side: what a gateway is told, and what it tells as events."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Network
from staddle.display import shown
from staddle.errors import PolicyError
from staddle.ipc.gateway_messages import Attempt
from staddle.network.host import gateway_process
from staddle.network.host.gateway_process import GatewayBounds, UnreadSockets, event, settings


def test_a_gateway_is_told_the_policy_in_its_own_words() -> None:
    network = Network.allow("b.com:443", "!a.com", "udp://10.0.0.1:53")
    told = settings(network, GatewayBounds(connections=7), (("192.0.2.1", 53),), ())
    assert Network.allow(*told.entries) == network
    assert told.connections == 7
    assert settings(Network.loopback([5432]), GatewayBounds(), (), ()).ports == (5432,)


def test_an_open_network_has_none_and_a_denied_one_only_exposes() -> None:
    with pytest.raises(ValueError, match="open network"):
        settings(Network.open(), GatewayBounds())
    told = settings(Network.deny(), GatewayBounds(), (), ())
    assert (told.mode, told.entries, told.ports) == ("loopback", (), ())


def test_a_list_that_is_too_long_is_refused_before_anything_starts() -> None:
    with pytest.raises(PolicyError, match="too long"):
        gateway_process.start(Network.allow(*(f"host{n}.a-long-name.example.com:443" for n in range(3000))))


@pytest.mark.parametrize("wrong", [{"connections": 0}, {"idle": -1}, {"most_bytes": True}, {"idle": 1.5}])
def test_bounds_are_whole_numbers(wrong: dict[str, int]) -> None:
    with pytest.raises(PolicyError, match="whole number"):
        GatewayBounds(**wrong)


def test_the_hosts_files_are_read_as_far_as_they_make_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    lines = gateway_process._lines
    monkeypatch.setattr(gateway_process, "_lines", lambda _: lines(str(file)))
    file.write_bytes(
        b"# x\nnameserver 192.0.2.1 # y\nnameserver fe80::1%eth0\nnameserver x\nsearch a\nnameserver ::1\n"
    )
    assert gateway_process.host_nameservers() == (("192.0.2.1", 53), ("::1", 53))
    file.write_bytes(
        b"127.0.0.1 localhost\n10.0.0.1 A.example b.example. \xff\nnonsense x\n\n::1 six # seven\n"
    )
    assert gateway_process.host_names() == (
        ("localhost", "127.0.0.1"),
        ("a.example", "10.0.0.1"),
        ("b.example", "10.0.0.1"),
        ("six", "::1"),
    )
    file.unlink()
    assert gateway_process.host_names() == ()
    assert gateway_process.host_nameservers() == (("127.0.0.1", 53),)


def test_refusals_become_events_with_the_line_that_would_allow_them() -> None:
    made = event(Attempt("refused", "tcp", "evil.com", 443, "no entry allows it", "evil.com:443"))
    assert (made.kind, made.what, made.rule, made.allow) == (
        "refused",
        "evil.com:443",
        "no entry allows it",
        "evil.com:443",
    )
    assert event(Attempt("refused", "udp", "2001:db8::1", 53, "x")).what == "udp://[2001:db8::1]:53"
    assert event(Attempt("refused", "tcp", "evil.com", 0, "x")).what == "evil.com"
    assert event(Attempt("allowed", "tcp", "a.com", 1, "a.com")).kind == "note"
    assert shown(event(Attempt("refused", "tcp", "\x1b[2J", 1, "x")).what) == "\\x1b[2J:1"


def test_named_nameservers_take_the_place_of_the_hosts() -> None:
    network = Network.allow("a.example", dns=["192.0.2.7", "2001:db8::1"])
    found = gateway_process.settings(network, gateway_process.GatewayBounds())
    assert found.nameservers == (("192.0.2.7", 53), ("2001:db8::1", 53))
    for wrong in ("192.0.2.7", ["ns.example"], 5):
        with pytest.raises(PolicyError, match="dns"):
            Network.allow("a.example", dns=wrong)  # type: ignore[arg-type]


# A gateway that is not there yet is waited for only when somebody has tried something.


@pytest.fixture
def unheard() -> Iterator[UnreadSockets]:
    made = UnreadSockets()
    yield made
    made.close()


def test_it_is_quiet_until_something_waits(unheard: UnreadSockets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names, socket.socket() as stock:
        listener = socket.create_server(("127.0.0.1", 0))
        names.bind(("127.0.0.1", 0))
        unheard.add([names.fileno(), listener.fileno(), stock.fileno()])
        assert unheard.is_quiet()
        with socket.create_connection(listener.getsockname()):
            assert not unheard.is_quiet()
            accepted, _ = listener.accept()
            accepted.close()
            assert unheard.is_quiet()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.sendto(b"?", names.getsockname())
            assert not unheard.is_quiet()
        listener.close()


def test_once_it_was_heard_nothing_is_held(unheard: UnreadSockets) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with socket.socket() as one:
        unheard.add([one.fileno()])
        assert unheard.close()
        assert not unheard.close()
        assert not unheard.is_quiet()
        unheard.add([one.fileno()])
    assert {*os.listdir("/proc/self/fd")} <= {*before}
