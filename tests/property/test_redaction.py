"""Redaction against its definition: every byte of every occurrence is gone, for any chunking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from staddle.observe.redaction import MARK, RedactedTail, Redactor

values = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=3)
chunks = st.lists(st.text("abc", max_size=9).map(str.encode), max_size=12)


def reference(values: list[bytes], data: bytes) -> bytes:
    """Mark the bytes of all occurrences; what overlaps is one, what only touches is two."""
    spans = sorted(
        (at, at + len(value))
        for value in set(values)
        for at in range(len(data))
        if data.startswith(value, at)
    )
    out, at = b"", 0
    while spans:
        start, end = spans.pop(0)
        while spans and spans[0][0] < end:
            end = max(end, spans.pop(0)[1])
        out, at = out + data[at:start] + MARK, end
    return out + data[at:]


@given(values, chunks)
def test_any_chunking_gives_what_the_definition_says(values: list[bytes], chunks: list[bytes]) -> None:
    redactor = Redactor(values)
    found = b"".join([*map(redactor.feed, chunks), redactor.finish()])
    assert found == reference(values, b"".join(chunks))


@given(values, chunks, st.one_of(st.none(), st.integers(0, 20)))
def test_the_tail_is_that_of_the_redacted_stream(
    values: list[bytes], chunks: list[bytes], limit: int | None
) -> None:
    kept = RedactedTail(limit, values)
    for chunk in chunks:
        if chunk:
            kept.feed(chunk)
    whole = reference(values, b"".join(chunks))
    expected = whole if limit is None or len(whole) <= limit else whole[len(whole) - limit :]
    assert (kept.value(), kept.dropped) == (expected, len(whole) - len(expected))
