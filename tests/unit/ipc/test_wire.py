"""Records between our processes: exact, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.ipc.wire import Malformed, check, decode, encode

VALUE = st.binary(max_size=20) | st.integers(-(2**63), 2**63 - 1)
FIELD = VALUE | st.lists(VALUE | st.tuples(VALUE, VALUE), max_size=3).map(tuple)


@given(st.lists(FIELD, max_size=5).map(tuple))
def test_fields_arrive_as_they_were_sent(fields: tuple[object, ...]) -> None:
    assert decode(b"it\n", encode(b"it\n", fields), len(fields)) == fields


def test_another_record_is_refused() -> None:
    data = encode(b"it\n", (1, b"x"))
    for magic, count in ((b"that\n", 2), (b"it\n", 3)):
        with pytest.raises(Malformed):
            decode(magic, data, count)


@pytest.mark.parametrize(
    ("value", "shape", "fits"),
    [
        (b"", bytes, True),
        (True, int, True),
        ("", bytes, False),
        ((1, 2), [int], True),
        ([1], [int], False),
        ((b"a", 1), (bytes, int), True),
        ((b"a",), (bytes, int), False),
        (((b"a", 1),), [(bytes, int)], True),
    ],
)
def test_a_field_has_its_shape_or_is_refused(value: object, shape: object, fits: bool) -> None:
    class Record:
        field = value

    if fits:
        check(Record, {"field": shape})
    else:
        with pytest.raises(Malformed, match="field"):
            check(Record, {"field": shape})
