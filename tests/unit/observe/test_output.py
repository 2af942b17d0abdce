"""Output stays within its bound, keeps both ends, and counts what it dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from staddle.observe.output import HeadTail, Tail


@given(st.integers(0, 40), st.lists(st.binary(max_size=30), max_size=20))
def test_head_and_tail_are_kept_and_the_rest_is_counted(limit: int, chunks: list[bytes]) -> None:
    kept = HeadTail(limit)
    for chunk in chunks:
        kept.feed(chunk)
    whole = b"".join(chunks)
    head, tail = (limit + 1) // 2, limit // 2
    expected = whole if len(whole) <= limit else whole[:head] + (whole[-tail:] if tail else b"")
    assert kept.value() == expected
    assert kept.dropped == len(whole) - len(expected)
    assert kept.total == len(whole)


@given(st.lists(st.integers(0, 40_000), max_size=20), st.integers(0, 60_000))
def test_the_tail_of_large_and_small_pieces_is_kept(sizes: list[int], limit: int) -> None:
    kept = Tail(limit)
    pieces = [bytes((number,)) * size for number, size in enumerate(sizes)]
    for number, piece in enumerate(pieces, 1):
        kept.feed(piece)
        whole = b"".join(pieces[:number])
        assert kept.value() == whole[max(0, len(whole) - limit) :]
        assert kept.dropped == max(0, len(whole) - limit)
    assert sum(map(len, kept._parts)) <= limit + 40_000


def test_without_a_limit_everything_is_kept() -> None:
    kept = HeadTail(None)
    kept.feed(b"a" * 100_000)
    assert (len(kept.value()), kept.dropped) == (100_000, 0)
