"""The output of background processes that is kept for later readers."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from staddle.shell.background_output import Transcript


def test_a_program_that_writes_single_bytes_takes_no_more_memory_than_its_limit() -> None:
    tracemalloc.start()
    try:
        transcript = Transcript(1 << 17)
        for _ in range(1 << 17):
            transcript.feed("stdout", bytes(bytearray(b"x")))
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()


@given(st.lists(st.tuples(st.sampled_from(("stdout", "stderr")), st.binary(min_size=1, max_size=5000))))
def test_output_is_found_from_any_offset(fed: list[tuple[str, bytes]]) -> None:
    transcript = Transcript(None)
    for stream, data in fed:
        transcript.feed(stream, data)  # type: ignore[arg-type]
    for name in ("stdout", "stderr"):
        whole = b"".join(data for stream, data in fed if stream == name)
        for offset in (0, 1, 4999, transcript.end):
            found = b"".join(data for stream, data in transcript.since(offset)[0] if stream == name)
            assert whole.endswith(found)
    assert sum(len(data) for _, data in transcript.since(1)[0]) == max(0, transcript.end - 1)
