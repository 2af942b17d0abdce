"""The matcher against a reference that knows only the definition, and the tail against a slice."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import LocalEnvironment
from staddle.environment.globs import Glob, GlobSet
from staddle.errors import PathEscape, PathNotAllowed, PolicyError
from staddle.output import Tail

LETTERS = "ab.\u00e9\udc80"
names = st.text(LETTERS, min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=5)

# A segment as what it means: a list of None (any run), a set of characters, or the complement of one.
Token = tuple[str, frozenset[str]]
tokens = st.one_of(
    st.sampled_from(LETTERS).map(lambda char: ("in", frozenset(char))),
    st.just(("star", frozenset[str]())),
    st.just(("out", frozenset[str]())),
    st.frozensets(st.sampled_from(LETTERS), min_size=1).map(lambda chars: ("in", chars)),
    st.frozensets(st.sampled_from(LETTERS), min_size=1).map(lambda chars: ("out", chars)),
)


def no_two_stars(segment: list[Token]) -> bool:
    return all(a[0] != "star" or b[0] != "star" for a, b in pairwise(segment))


def is_name(segment: list[Token]) -> bool:
    """Not `.`, which is dropped, and not `..`, which is refused: neither spelled out nor as a class."""
    return spelled(segment).replace("[", "").replace("]", "") not in (".", "..")


def spelled(segment: list[Token]) -> str:
    text = ""
    for kind, chars in segment:
        if kind == "star":
            text += "*"
        elif not chars:
            text += "?"
        elif kind == "in" and len(chars) == 1:
            text += next(iter(chars))
        else:
            text += ("[" if kind == "in" else "[!") + "".join(sorted(chars)) + "]"
    return text


segments = st.lists(tokens, min_size=1, max_size=5).filter(no_two_stars).filter(is_name)
literals = st.lists(
    st.sampled_from(LETTERS).map(lambda char: ("in", frozenset(char))), min_size=1, max_size=2
).filter(is_name)
DEEP: list[Token] = [("deep", frozenset())]
globs = st.one_of(
    st.lists(segments, min_size=1, max_size=4),
    st.builds(
        lambda head, tail: [*head, DEEP, *tail],
        st.lists(literals, max_size=2),
        st.lists(segments, max_size=2),
    ),
)


def text_of(glob: list[list[Token]]) -> str:
    return "/".join("**" if segment == DEEP else spelled(segment) for segment in glob)


def spells(segment: list[Token], name: str) -> bool:
    """The definition, letter by letter, trying everything."""
    if not segment:
        return not name
    kind, chars = segment[0]
    if kind == "star":
        return any(spells(segment[1:], name[cut:]) for cut in range(len(name) + 1))
    return bool(name) and (name[0] in chars) == (kind == "in") and spells(segment[1:], name[1:])


def reference(glob: list[list[Token]], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] == DEEP:
        return any(reference(glob[1:], path[cut:]) for cut in range(len(path) + 1))
    return bool(path) and spells(glob[0], path[0]) and reference(glob[1:], path[1:])


@settings(max_examples=400, deadline=None)
@given(st.lists(globs, min_size=1, max_size=5), st.lists(paths, min_size=1, max_size=8))
def test_what_matches_is_what_the_definition_says(
    several: list[list[list[Token]]], places: list[list[str]]
) -> None:
    parsed = [Glob(text_of(glob)) for glob in several]
    together = GlobSet(parsed)
    for place in places:
        path = "/".join(place)
        expected = [reference(glob, place) for glob in several]
        assert [glob.matches(path) for glob in parsed] == expected
        assert together.matches(path) == any(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(globs, min_size=1, max_size=3), st.lists(paths, min_size=1, max_size=4))
def test_what_the_file_tools_write_is_what_the_definition_says(
    several: list[list[list[Token]]], places: list[list[str]]
) -> None:
    for place in places:
        path = "/".join(place)
        texts = [text_of(glob) for glob in several]
        with tempfile.TemporaryDirectory() as anchor, LocalEnvironment(anchor, texts) as env:
            if any(reference(glob, place) for glob in several):
                env.write_file(path, "x")
                assert env.read_file(path) == "x"
                assert path in env.glob("**")
            else:
                with pytest.raises(PathNotAllowed):
                    env.write_file(path, "x")
                assert os.listdir(anchor) == []


@settings(max_examples=200, deadline=None)
@given(globs, paths)
def test_all_that_matches_lies_below_the_prefix(glob: list[list[Token]], place: list[str]) -> None:
    parsed, path = Glob(text_of(glob)), "/".join(place)
    if parsed.matches(path):
        assert not parsed.prefix or path == parsed.prefix or path.startswith(parsed.prefix + "/")


@settings(max_examples=400, deadline=None)
@given(st.text("ab./~*?[]!^-{}\\:\0 ", max_size=12))
def test_any_text_is_a_glob_or_one_of_the_two_refusals(text: str) -> None:
    try:
        glob = Glob(text)
    except PathEscape:
        assert text[:1] in ("/", "~", "\\") or text[1:2] == ":" or ".." in text.replace("\\", "")
    except PolicyError:
        pass
    else:
        assert ".." not in glob.prefix.split("/")
        assert not text.startswith(("/", "~"))


@given(st.one_of(st.none(), st.integers(0, 40)), st.lists(st.binary(max_size=50), max_size=20))
def test_the_tail_is_exact_and_the_rest_is_counted(limit: int | None, chunks: list[bytes]) -> None:
    kept = Tail(limit)
    for chunk in chunks:
        kept.feed(chunk)
    whole = b"".join(chunks)
    expected = whole if limit is None or len(whole) <= limit else whole[len(whole) - limit :]
    assert kept.value() == expected
    assert (kept.total, kept.dropped) == (len(whole), len(whole) - len(expected))
