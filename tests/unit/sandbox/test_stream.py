"""Chunks are what was printed, byte for byte, and never end inside a character."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.policy import Limits
from staddle.sandbox.capture import CapturedCommand
from staddle.sandbox.stream import Chunk, Chunks


def taken(chunks: Chunks) -> list[Chunk]:
    found = []
    while (chunk := chunks.take()) is not None:
        found.append(chunk)
    return found


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(0, 160), max_size=10))
def test_a_text_cut_anywhere_arrives_in_whole_characters(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    command = CapturedCommand("x", Limits())
    chunks = Chunks(command)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        command.out(data[start:end])
    chunks.finish()
    found = taken(chunks)
    assert b"".join(chunk.data for chunk in found) == data
    assert "".join(chunk.text for chunk in found) == data.decode()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=10))
def test_any_bytes_arrive_exactly_and_as_the_text_of_the_whole(pieces: list[bytes]) -> None:
    command = CapturedCommand("x", Limits())
    chunks = Chunks(command)
    for piece in pieces:
        command.err(piece)
    chunks.finish()
    found = taken(chunks)
    whole = b"".join(pieces)
    assert b"".join(chunk.data for chunk in found) == whole
    assert "".join(chunk.text for chunk in found) == whole.decode("utf-8", "replace")
    assert {chunk.stream for chunk in found} <= {"stderr"}


def test_the_streams_keep_their_order_and_their_halves_apart() -> None:
    command = CapturedCommand("x", Limits())
    chunks = Chunks(command)
    command.out(b"a\xc3")
    command.err(b"\xa9 alone")
    command.out(b"\xa9")
    chunks.finish()
    assert [(chunk.stream, chunk.text) for chunk in taken(chunks)] == [
        ("stdout", "a"),
        ("stderr", "\ufffd alone"),
        ("stdout", "é"),
    ]
    assert str(Chunk("stdout", b"x")) == "x"
