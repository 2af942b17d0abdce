"""What a sandbox's network is to have arrives as it was."""

from __future__ import annotations

import pytest

from staddle import Network
from staddle.ipc.namespace_spec import NetworkSpec, decoded, encoded
from staddle.network.namespace.from_policy import network_spec

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
