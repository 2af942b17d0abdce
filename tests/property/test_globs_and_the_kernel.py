"""Random trees and globs on a real kernel: file tools, shell and definition agree on what may be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle import LocalEnvironment
from staddle.environment import writable_paths
from staddle.environment.writable_paths import parse_globs as parse
from staddle.errors import PathNotAllowed
from staddle.files.globs import Glob
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


@pytest.mark.slow
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


#: Writes or removes each path, whatever it takes.
CHANGES = """
for change; do
    path="${change#?}"
    case "$change" in
        +*) mkdir -p "$(dirname "$path")"; echo new > "$path";;
        -*) rm "$path";;
    esac
done
"""


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    several=st.lists(globs(LETTERS), min_size=1, max_size=3),
    tree=trees,
    places=st.lists(paths, min_size=4, max_size=8),
    choices=st.lists(st.booleans(), min_size=16, max_size=16),
)
def test_in_a_layer_they_leave_the_same(
    several: list[Tokens], tree: list[list[str]], places: list[list[str]], choices: list[bool]
) -> None:
    texts = [text_of(glob) for glob in several]
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as twin:
        plant(work, tree)
        plant(twin, tree)
        names: list[str] = []
        for place in [*places, *tree]:
            name = "/".join(place)
            if could_be_a_file(work, place) and not any(below(name, o) or below(o, name) for o in names):
                names.append(name)
        changes = [
            ("-" if remove and Path(work, name).exists() else "+") + name
            for name, remove in zip(names, choices, strict=False)
        ]
        with LocalEnvironment(work, texts, backend="namespaces") as env:
            assert env.limits() == ()
            in_a_layer = writable_paths.division(env._root, parse(texts))[1]  # or refused at once
            result = env.exec_command("sh", ["-c", CHANGES, "sh", *changes])
            assert result.exit_code == 0 or not in_a_layer, result
            told = {os.path.relpath(event.what, work) for event in result.violations}
        refused = {name for name in names if not any(reference(g, name.split("/")) for g in several)}
        with LocalEnvironment(twin, texts) as env:
            for change in changes:
                try:
                    if change[0] == "-":
                        env.remove_file(change[1:])
                    else:
                        env.write_file(change[1:], "new\n")
                except PathNotAllowed:
                    assert change[1:] in refused
                else:
                    assert change[1:] not in refused
        assert snapshot(work) == snapshot(twin)
        # A glob can also name a directory, which no tool makes for itself; and it needs those above it.
        more = directories(work) - directories(twin)
        named = {name for name in more if any(reference(glob, name.split("/")) for glob in several)}
        assert all(any(below(name, place) for name in named) for place in more)
        # Each by its name; and directories that were made for them, and for nothing that stays.
        assert {name for name in told if name in names} == (refused if in_a_layer else set())
        assert all(any(below(name, place) for name in refused) for place in told)


def directories(root: str) -> set[str]:
    return {os.path.relpath(path, root) for path in Path(root).rglob("*") if path.is_dir()}


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


def snapshot(root: str) -> set[tuple[str, str]]:
    return {
        (os.path.relpath(os.path.join(directory, name), root), Path(directory, name).read_text())
        for directory, _, files in os.walk(root)
        for name in files
    }


def below(name: str, place: str) -> bool:
    return not place or name == place or name.startswith(place + "/")
