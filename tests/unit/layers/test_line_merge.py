"""Two versions of a text become one, or a conflict for each range that both changed."""

from __future__ import annotations

import time

import pytest

from staddle.layers.line_merge import Effort, LineConflict, TooDifferent, joined, merge_lines

BASE = b"1\n2\n3\n4\n5\n"


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        pytest.param(BASE, BASE, BASE, BASE, id="nothing"),
        pytest.param(BASE, b"0\n" + BASE, BASE + b"6\n", b"0\n" + BASE + b"6\n", id="both ends"),
        pytest.param(BASE, b"1\nB\n3\n4\n5\n", b"1\n2\n3\nD\n5\n", b"1\nB\n3\nD\n5\n", id="two lines"),
        pytest.param(BASE, b"1\n3\n4\n5\n", b"1\n2\n3\n4\n", b"1\n3\n4\n", id="two deletions"),
        pytest.param(BASE, b"1\nX\n4\n5\n", b"1\nX\n4\n5\n", b"1\nX\n4\n5\n", id="the same change"),
        pytest.param(b"", b"a\n", b"", b"a\n", id="an empty file"),
        pytest.param(
            b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nC\r\n", id="CRLF"
        ),
        pytest.param(b"a\nb\nc", b"A\nb\nc", b"a\nb\nC", b"A\nb\nC", id="no newline at the end"),
        pytest.param(b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nc", b"A\nb\nc", id="the last newline goes"),
        pytest.param(
            b"a\x0cb\n1\n2\n", b"a\x0cB\n1\n2\n", b"a\x0cb\n1\n3\n", b"a\x0cB\n1\n3\n", id="form feed"
        ),
        pytest.param(b"\xff\n1\n2\n", b"\xff\n1\n3\n", b"\xfe\n1\n2\n", b"\xfe\n1\n3\n", id="no UTF-8"),
    ],
)
def test_changes_of_both_sides_are_merged(base: bytes, ours: bytes, theirs: bytes, merged: bytes) -> None:
    assert joined(merge_lines(base, ours, theirs)) == merged
    assert joined(merge_lines(base, theirs, ours)) == merged


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(b"1\nB\n3\n4\n5\n", b"1\nC\n3\n4\n5\n", id="the same line"),
        pytest.param(b"1\nB\n3\n4\n5\n", b"1\n3\n4\n5\n", id="changed and deleted"),
        pytest.param(b"1\nB\n3\n4\n5\n", b"1\n2\nC\n4\n5\n", id="lines that touch"),
        pytest.param(BASE + b"6\n", BASE + b"7\n", id="both add at the end"),
    ],
)
def test_changes_that_touch_conflict(ours: bytes, theirs: bytes) -> None:
    pieces = merge_lines(BASE, ours, theirs)

    assert [type(piece) for piece in pieces].count(LineConflict) == 1
    assert joined(pieces, "ours") == ours
    assert joined(pieces, "theirs") == theirs


def test_a_conflict_is_shown_with_the_markers_of_git() -> None:
    assert joined(merge_lines(b"a\n", b"b\n", b"c")) == (
        b"<<<<<<< ours\nb\n||||||| base\na\n=======\nc\n>>>>>>> theirs\n"
    )


def test_only_the_lines_in_conflict_are_of_one_side() -> None:
    pieces = merge_lines(BASE, b"ours\n2\n3\n4\n5\n6\n", b"theirs\n2\n3\nFOUR\n5\n")

    assert joined(pieces, "ours") == b"ours\n2\n3\nFOUR\n5\n6\n"
    assert joined(pieces, "theirs") == b"theirs\n2\n3\nFOUR\n5\n6\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(b"a\n" * 200_000, b"a\n" * 100_000 + b"b\n" + b"a\n" * 100_000, id="equal lines"),
        pytest.param(b"a\nb\n" * 30_000, b"b\nb\na\n" * 20_000, id="two lines in turn"),
        pytest.param(b"".join(b"%d\n" % n for n in range(60_000)), b"x\n" * 60_000, id="nothing in common"),
        pytest.param(
            b"".join(b"%d\n" % n for n in range(60_000)),
            b"".join(b"%d\n" % n for n in reversed(range(60_000))),
            id="reversed",
        ),
    ],
)
def test_hostile_texts_cost_a_bounded_time(one: bytes, other: bytes) -> None:
    began = time.process_time()
    try:
        merge_lines(one, other, one + b"more\n")
    except TooDifferent:
        pass
    assert time.process_time() - began < 20


def test_the_effort_is_that_of_all_texts_together() -> None:
    texts = BASE, b"5\n4\n3\n2\n1\n", BASE
    merge_lines(*texts, Effort(100))
    effort = Effort(100)
    with pytest.raises(TooDifferent):
        _ = [merge_lines(*texts, effort) for _ in range(100)]
