"""NamespaceSpec are understood exactly, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from staddle import Network
from staddle.ipc.namespace_spec import MAGIC, NamespaceSpec, NetworkSpec, decode, decoded, encode, encoded
from staddle.ipc.wire import Malformed
from staddle.mounts.operations import BIND
from staddle.network.namespace.from_policy import network_spec


def orders(**fields: Any) -> NamespaceSpec:
    defaults = {
        "unit": b"staddle-x.scope",
        "starter": (b"/usr/bin/busctl", b"--user"),
        "starter_environment": (b"A=b",),
        "status": 5,
        "launcher": 1,
        "view": ((BIND, b"/a\xff", 1, 0, 0, b""),),
        "namespaces": 0x04000000,
        "uid": 1000,
        "gid": 1000,
        "host": b"sandbox",
        "unprivileged_uid": -1,
        "foreign": ((b"net", 4026531840),),
        "bounds": ((b"memory.max", 1 << 40),),
        "command": b"...",
        "network": (),
        "gateway": (),
        "cgroup_fds": (),
    }
    return NamespaceSpec(**{**defaults, **fields})


def test_what_was_said_is_what_is_heard() -> None:
    assert decode(encode(orders())) == orders()


@pytest.mark.parametrize(
    "fields",
    [
        {"starter": ()},
        {"starter": (b"busctl",)},
        {"starter": "text"},
        {"view": ((b"bind", b"relative", 0, 0, 0, b""),)},
        {"view": ((b"bind", b"/nul\0", 0, 0, 0, b""),)},
        {"view": ((b"remove", b"/a", 0, 0, 0, b""),)},
        {"view": ((b"bind", b"/a", 0),)},
        {"foreign": ((b"net", b"1"),)},
        {"host": "text"},
        {"uid": b"0"},
        {"uid": -1},
        {"gid": -1},
        {"unprivileged_uid": 0},
    ],
)
def test_nonsense_is_not_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        encode(orders(**fields))


def test_damaged_orders_are_refused() -> None:
    whole = encode(orders())
    for broken in (b"", MAGIC, whole[:-1], whole + b"x", b"x" + whole, whole.replace(b"bind", b"bond")):
        with pytest.raises(Malformed):
            decode(broken)


# The network of a sandbox.


NETWORKS = {
    "deny": Network.deny(),
    "loopback": Network.loopback(ports=[5432, 8080]),
    "names": Network.allow("api.example.com:443", "*.github.com", "!gist.github.com"),
    "addresses": Network.allow("10.1.0.0/16:5432", "2001:db8::/32", "udp://192.0.2.1:53"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_an_arrangement_arrives_as_it_was_but_for_what_nobody_can_hold(name: str) -> None:
    made = network_spec(NETWORKS[name])
    assert decoded(encoded(made)) == made.replace(unheld=())


def test_nothing_is_an_arrangement_too() -> None:
    assert encoded(NetworkSpec()) == ()
    assert decoded(()) == NetworkSpec()


@pytest.mark.parametrize("row", [(b"door", b"", 0, b""), (b"gate", b"abcd", 8, b"odd")])
def test_a_row_that_is_none_is_refused(row: tuple[bytes, bytes, int, bytes]) -> None:
    with pytest.raises(ValueError, match="network"):
        decoded((row,))
