"""What is done before bubblewrap starts, as bytes."""

from __future__ import annotations

import pytest

from staddle.inside.bwrap_prelude import PreludeSpec, decode, encode
from staddle.ipc.wire import Malformed

ORDERS = PreludeSpec(3, 1234, ((b"gate", b"\0\0\0\0", 0, b""),), (4, 5, 6), -1, 7, 70000)


def test_they_come_back_as_they_were() -> None:
    assert decode(encode(ORDERS)) == ORDERS


@pytest.mark.parametrize(
    "wrong", [{"gateway": ()}, {"gateway": (1, 2)}, {"network": ((b"gate",),)}, {"status": b"3"}]
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        encode(ORDERS.replace(**wrong))


def test_what_is_cut_or_longer_is_refused() -> None:
    data = encode(ORDERS)
    for other in (b"", data[:-1], data + b"x", b"x" + data):
        with pytest.raises(Malformed):
            decode(other)
