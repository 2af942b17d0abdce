"""Random trees and globs on a real kernel: file tools, shell and definition agree on what may be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import LocalEnvironment
from staddle.environment.globs import Glob
from staddle.errors import PathNotAllowed
from tests.property.reference_globs import Glob as Tokens
from tests.property.reference_globs import globs, reference, text_of

LETTERS = "ab"
paths = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=3)
trees = st.lists(paths, max_size=4)

#: Says of each path whether it may be written, and leaves everything as it was.
ATTEMPTS = """
for path; do
    if [ -e "$path" ]; then
        if true >> "$path"; then printf y; else printf n; fi
    else
        above="$path" made=""
        while above=$(dirname "$above"); [ ! -e "$above" ]; do made="$made $above"; done
        if mkdir -p "$(dirname "$path")" && true > "$path"; then printf y; rm "$path"; else printf n; fi
        for directory in $made; do [ ! -d "$directory" ] || rmdir "$directory"; done
    fi
done 2> /dev/null
"""


def plant(root: str, tree: list[list[str]]) -> None:
    """Each path as a file, unless another one is in its way."""
    for place in tree:
        target = Path(root, *place)
        if target.exists() or any(Path(root, *place[:cut]).is_file() for cut in range(1, len(place))):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("x")


def could_be_a_file(root: str, place: list[str]) -> bool:
    """Whether only the rules speak against it: no directory stands there, and no file above it."""
    target = Path(root, *place)
    return not target.is_dir() and not any(Path(root, *place[:cut]).is_file() for cut in range(1, len(place)))


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
@settings(max_examples=25, deadline=None)
@given(
    several=st.lists(globs(LETTERS), min_size=1, max_size=3),
    tree=trees,
    places=st.lists(paths, min_size=4, max_size=8),
)
def test_file_tools_shell_and_definition_agree(
    backend: str, several: list[Tokens], tree: list[list[str]], places: list[list[str]]
) -> None:
    texts = [text_of(glob) for glob in several]
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as twin:
        plant(work, tree)
        plant(twin, tree)
        made = [glob.prefix for glob in map(Glob, texts) if glob.prefix]
        places = [
            place
            for place in [*places, *tree]
            if could_be_a_file(work, place)
            # A directory that commands may write in is made for them, so no file can be there.
            and (Path(work, *place).exists() or not any(below(prefix, "/".join(place)) for prefix in made))
        ]
        names = ["/".join(place) for place in places]
        expected = [any(reference(glob, place) for glob in several) for place in places]
        assert [writable_by_a_tool(twin, texts, name) for name in names] == expected

        with LocalEnvironment(work, texts, backend=backend) as env:
            before = snapshot(work)
            wider = env.limits()
            result = env.exec_command("sh", ["-c", ATTEMPTS, "sh", *names])
            assert len(result.stdout) == len(names), result
            found = [answer == "y" for answer in result.stdout]
            assert before <= snapshot(work), "a file was lost"
            if not wider:
                assert found == expected
                return
            # The kernel knows no patterns: what is more lies within what was said.
            said = [
                Glob(text).prefix for text in texts if any(f"not only {text!r};" in gap.why for gap in wider)
            ]
            for name, may, should in zip(names, found, expected, strict=True):
                assert may or not should, f"{name} is named, and cannot be written"
                assert should or not may or any(below(name, place) for place in said), name


def writable_by_a_tool(root: str, texts: list[str], name: str) -> bool:
    """Whether write_file takes it; `root` is as it was afterwards."""
    old = Path(root, name).exists()
    before = snapshot(root)
    with LocalEnvironment(root, texts) as env:
        try:
            env.write_file(name, "x")
        except PathNotAllowed:
            assert snapshot(root) == before
            return False
        assert env.read_file(name) == "x"
        if not old:
            env.remove_file(name)
    for directory, _, _ in os.walk(root, topdown=False):
        if not os.listdir(directory) and directory != root:
            os.rmdir(directory)
    assert snapshot(root) == before
    return True


def snapshot(root: str) -> set[str]:
    return {
        os.path.relpath(os.path.join(directory, name), root)
        for directory, _, files in os.walk(root)
        for name in files
    }


def below(name: str, place: str) -> bool:
    return not place or name == place or name.startswith(place + "/")
