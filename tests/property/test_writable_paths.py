"""The matcher against a reference that knows only the definition, and the tail against a slice."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import LocalEnvironment
from staddle.errors import PathEscape, PathNotAllowed, PolicyError
from staddle.files.globs import Glob, GlobSet
from staddle.observe.output import Tail
from tests.property.reference_globs import Glob as Tokens
from tests.property.reference_globs import globs, names, reference, text_of

LETTERS = "ab.\u00e9\udc80"
paths = st.lists(names(LETTERS), min_size=1, max_size=5)
glob_texts = globs(LETTERS)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)  # up to forty pairs each
@given(st.lists(glob_texts, min_size=1, max_size=5), st.lists(paths, min_size=1, max_size=8))
def test_what_matches_is_what_the_definition_says(several: list[Tokens], places: list[list[str]]) -> None:
    parsed = [Glob(text_of(glob)) for glob in several]
    together = GlobSet(parsed)
    for place in places:
        path = "/".join(place)
        expected = [reference(glob, place) for glob in several]
        assert [glob.matches(path) for glob in parsed] == expected
        assert together.matches(path) == any(expected)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(glob_texts, min_size=1, max_size=3), st.lists(paths, min_size=1, max_size=4))
def test_what_the_file_tools_write_is_what_the_definition_says(
    several: list[Tokens], places: list[list[str]]
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


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(glob_texts, paths)
def test_all_that_matches_lies_below_the_prefix(glob: Tokens, place: list[str]) -> None:
    parsed, path = Glob(text_of(glob)), "/".join(place)
    if parsed.matches(path):
        assert not parsed.prefix or path == parsed.prefix or path.startswith(parsed.prefix + "/")


@pytest.mark.slow
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
