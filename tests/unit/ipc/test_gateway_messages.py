"""The line between the host side and the gateway: what was sent arrives, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.ipc import gateway_messages
from staddle.ipc.gateway_messages import Attempt, GatewaySettings, Sockets
from staddle.ipc.wire import Malformed

SETTINGS = GatewaySettings(
    "allow", ("a.com:443", "!b.com"), (), (("192.0.2.1", 53),), (("c.com", "192.0.2.7"),), 9, 1, 2, 3
)
SOCKETS = Sockets(
    (("tcp", b"\xc6\x12\0\1", 0), ("dns", b"\x7f\0\0\x35", 53), ("refusals", b"", 0)), True, False
)
ATTEMPT = Attempt("refused", "tcp", "evil.com", 443, "no entry allows it", "evil.com:443", 3)


def test_everything_arrives_as_it_was_sent() -> None:
    assert gateway_messages.decode_settings(gateway_messages.encode_settings(SETTINGS)) == SETTINGS
    loopback = GatewaySettings("loopback", ports=(80, 5432))
    assert gateway_messages.decode_settings(gateway_messages.encode_settings(loopback)) == loopback
    assert gateway_messages.decode_sockets(gateway_messages.encode_sockets(SOCKETS), 3) == SOCKETS
    assert gateway_messages.decode_attempt(gateway_messages.encode_attempt(ATTEMPT)) == ATTEMPT
    assert gateway_messages.decode_need_sockets(gateway_messages.encode_need_sockets(16)) == 16
    assert gateway_messages.decode_need_sockets(gateway_messages.encode_attempt(ATTEMPT)) is None


def test_sockets_and_labels_go_together() -> None:
    for descriptors in (0, 2, 4):
        with pytest.raises(Malformed):
            gateway_messages.decode_sockets(gateway_messages.encode_sockets(SOCKETS), descriptors)
    for label in (("root", b"", 1), ("tcp", b"123", 1), ("tcp", b"", 70000), ("tcp", b"", -1)):
        with pytest.raises(Malformed):
            gateway_messages.decode_sockets(gateway_messages.encode_sockets(Sockets((label,))), 1)


def test_an_attempt_is_bounded_and_its_outcome_one_of_ours() -> None:
    long = gateway_messages.encode_attempt(ATTEMPT.replace(host="a" * 100_000, why="\udcff" * 5000))
    assert len(long) < 5000
    with pytest.raises(Malformed):
        gateway_messages.decode_attempt(gateway_messages.encode_attempt(ATTEMPT.replace(outcome="trusted")))


def test_a_turn_comes_back_as_it_was_said() -> None:
    assert gateway_messages.decode_flush(gateway_messages.encode_flush(7)) == 7
    assert gateway_messages.decode_flush(gateway_messages.encode_attempt(ATTEMPT)) is None
    with pytest.raises(Malformed):
        gateway_messages.decode_flush(gateway_messages.encode_flush(7)[:-1])


KINDS = [b"", b"attempt 1\n", b"hungry 1\n", b"question 1\n", b"turn 1\n"]


@given(st.binary(max_size=200), st.sampled_from(KINDS))
def test_whatever_a_gateway_says_is_an_attempt_or_malformed(data: bytes, start: bytes) -> None:
    for decode in (
        gateway_messages.decode_attempt,
        gateway_messages.decode_need_sockets,
        gateway_messages.decode_question,
        gateway_messages.decode_flush,
    ):
        try:
            decode(start + data)
        except Malformed:
            pass


@given(st.binary(max_size=200), st.integers(0, 4))
def test_whatever_comes_with_sockets_is_an_order_or_malformed(data: bytes, descriptors: int) -> None:
    with pytest.raises(Malformed):
        gateway_messages.decode_sockets(b"sockets 1\n" + data, descriptors)
