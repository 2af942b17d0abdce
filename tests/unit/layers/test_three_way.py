"""Trees become one, path by path. The sides are plain directories here; the kernel tests have layers."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staddle.layers.differences import Selection
from staddle.layers.merge import flatten
from staddle.layers.merged_view import LayerView
from staddle.layers.three_way import Clash, OpenSides, ThreeWay, Version, write_layer

Entry = bytes | dict[str, Any] | tuple[Any, ...]


def link(target: str) -> tuple[str, str]:
    return "link", target


def mode(permissions: int, content: Entry = b"x\n") -> tuple[int, Entry]:
    return permissions, content


def build(at: Path, tree: dict[str, Any]) -> None:
    at.mkdir(exist_ok=True)
    for name, given in tree.items():
        path = at / name
        has_mode = isinstance(given, tuple) and isinstance(given[0], int)
        permissions, entry = given if has_mode else (0o644, given)
        if isinstance(entry, dict):
            build(path, entry)
            path.chmod(0o755 if permissions == 0o644 else permissions)
        elif isinstance(entry, tuple):
            path.symlink_to(entry[1])
        elif entry == b"FIFO":
            os.mkfifo(path)
        else:
            path.write_bytes(entry)
            path.chmod(permissions)


def listed(at: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in sorted(os.scandir(at), key=lambda entry: entry.name):
        status = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            found[entry.name] = link(os.readlink(entry.path))
        elif entry.is_dir():
            found[entry.name] = listed(Path(entry.path))
        else:
            content = Path(entry.path).read_bytes()
            permissions = stat.S_IMODE(status.st_mode)
            found[entry.name] = content if permissions == 0o644 else (permissions, content)
    return found


class Merged:
    """The merge of some trees into `ours`, with base."""

    def __init__(
        self,
        tmp: Path,
        base: dict[str, Any],
        ours: dict[str, Any],
        *theirs: dict[str, Any],
        resolve: Callable[[str, int, Clash], Version | Clash | None] = lambda path, index, clash: clash,
        paths: list[str] | None = None,
    ) -> None:
        views = []
        for index, tree in enumerate((ours, base, *theirs)):
            build(tmp / str(index), tree)
            views.append(LayerView((str(tmp / str(index)),), (), plain=True))
        pairs = [(1, 2 + index) for index in range(len(theirs))]
        with OpenSides(views) as opened:
            work = ThreeWay(opened, pairs, resolve, Selection(paths))
            outcomes = work.run()
            self.conflicts = {path: clash.kind for path, _, clash in work.conflicts}
            self.left_out = work.left_out
            (tmp / "layer").mkdir()
            write_layer(opened, outcomes, str(tmp / "layer"), None)
        (tmp / "result").mkdir()
        flatten([str(tmp / "layer")], str(tmp / "0"), str(tmp / "result"))
        self.tree = listed(tmp / "result")


TEXT = b"1\n2\n3\n4\n5\n"
FIRST, LAST = b"one\n2\n3\n4\n5\n", b"1\n2\n3\n4\nfive\n"
CLEAN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "lines of both": ({"f": TEXT}, {"f": FIRST}, {"f": LAST}, {"f": b"one\n2\n3\n4\nfive\n"}),
    "files of both": ({}, {"a": b"a"}, {"b": b"b"}, {"a": b"a", "b": b"b"}),
    "both delete": ({"f": TEXT}, {}, {}, {}),
    "one deletes": ({"f": TEXT, "g": b""}, {"f": TEXT, "g": b"g"}, {"g": b""}, {"g": b"g"}),
    "both add the same": ({}, {"f": TEXT}, {"f": TEXT}, {"f": TEXT}),
    "the same change": ({"f": TEXT}, {"f": LAST}, {"f": LAST}, {"f": LAST}),
    "binary on one side": ({"f": b"\0a"}, {"f": b"\0a"}, {"f": b"\0b"}, {"f": b"\0b"}),
    "empty becomes text": ({"f": b""}, {"f": b""}, {"f": TEXT}, {"f": TEXT}),
    "mode alone": ({"f": TEXT}, {"f": FIRST}, {"f": mode(0o755, TEXT)}, {"f": mode(0o755, FIRST)}),
    "mode here, text there": ({"f": TEXT}, {"f": mode(0o755, TEXT)}, {"f": LAST}, {"f": mode(0o755, LAST)}),
    "set-ID is not merged": ({"f": TEXT}, {"f": TEXT}, {"f": mode(0o4755, TEXT)}, {"f": mode(0o755, TEXT)}),
    "a link changes": ({"l": link("a")}, {"l": link("a")}, {"l": link("/etc")}, {"l": link("/etc")}),
    "a file becomes a link": ({"f": TEXT}, {"f": TEXT}, {"f": link("g")}, {"f": link("g")}),
    "a file becomes a directory": ({"f": TEXT}, {"f": TEXT}, {"f": {"g": b"g"}}, {"f": {"g": b"g"}}),
    "a directory becomes a file": ({"d": {"f": TEXT}}, {"d": {"f": TEXT}}, {"d": b"d"}, {"d": b"d"}),
    "a directory goes": ({"d": {"f": TEXT}}, {"d": {"f": TEXT}}, {}, {}),
    "a directory stays for a new file": (
        {"d": {"f": TEXT}},
        {"d": {"f": TEXT, "mine": b""}},
        {},
        {"d": {"mine": b""}},
    ),
    "a directory comes back for a new file": (
        {"d": {"f": TEXT}},
        {},
        {"d": {"f": TEXT, "new": b"n"}},
        {"d": {"new": b"n"}},
    ),
    "an empty directory": ({}, {}, {"d": {}}, {"d": {}}),
    "deep": (
        {},
        {"a": {"b": {"x": b"x"}}},
        {"a": {"b": {"c": {"y": b"y"}}}},
        {"a": {"b": {"c": {"y": b"y"}, "x": b"x"}}},
    ),
    "odd names": (
        {},
        {},
        {os.fsdecode(b"\xff\n-"): b"x", "ünï": b"y", "a b": b"z"},
        {os.fsdecode(b"\xff\n-"): b"x", "ünï": b"y", "a b": b"z"},
    ),
    "a huge file on one side": ({}, {}, {"f": b"x" * (9 << 20)}, {"f": b"x" * (9 << 20)}),
    "protected names": ({}, {}, {".git": {"config": b"c"}}, {".git": {"config": b"c"}}),
    "a read-only directory": ({"d": {"f": b"1"}}, {"d": {"f": b"1"}}, {"d": {"f": b"2"}}, {"d": {"f": b"2"}}),
}


@pytest.mark.parametrize("case", CLEAN)
def test_changes_of_both_sides_are_merged(case: str, tmp_path: Path) -> None:
    base, ours, theirs, expected = CLEAN[case]
    merged = Merged(tmp_path, base, ours, theirs)

    assert not merged.conflicts
    assert merged.tree == expected


CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "the same line": ({"f": TEXT}, {"f": FIRST}, {"f": b"uno\n2\n3\n4\n5\n"}, {"f": "content"}),
    "deleted here": ({"f": TEXT}, {}, {"f": FIRST}, {"f": "delete"}),
    "deleted there": ({"f": TEXT}, {"f": FIRST}, {}, {"f": "delete"}),
    "binary": ({"f": b"\0a"}, {"f": b"\0b"}, {"f": b"\0c"}, {"f": "binary"}),
    "text becomes binary": ({"f": TEXT}, {"f": FIRST}, {"f": b"\0"}, {"f": "binary"}),
    "both add": ({}, {"f": TEXT}, {"f": LAST}, {"f": "content"}),
    "both add with another mode": ({}, {"f": TEXT}, {"f": mode(0o755, TEXT)}, {"f": "mode"}),
    "modes": ({"f": TEXT}, {"f": mode(0o600, TEXT)}, {"f": mode(0o755, TEXT)}, {"f": "mode"}),
    "links": ({"l": link("a")}, {"l": link("b")}, {"l": link("c")}, {"l": "content"}),
    "a link and a file": ({"f": TEXT}, {"f": FIRST}, {"f": link("a")}, {"f": "type"}),
    "a file and a directory": ({}, {"f": TEXT}, {"f": {"g": b""}}, {"f": "type"}),
    "a directory and a file": ({}, {"f": {"g": b""}}, {"f": TEXT}, {"f": "type"}),
    "a file where the other adds": ({"d": {}}, {"d": {"mine": b""}}, {"d": b"d"}, {"d": "type"}),
    "a deleted directory with a change": ({"d": {"f": TEXT}}, {"d": {"f": FIRST}}, {}, {"d/f": "delete"}),
    "too large for lines": (
        {"f": b"1\n" * 3_000_000},
        {"f": b"0\n" + b"1\n" * 3_000_000},
        {"f": b"1\n" * 3_000_000 + b"2\n"},
        {"f": "content"},
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_what_both_changed_differently_is_a_conflict(case: str, tmp_path: Path) -> None:
    base, ours, theirs, expected = CONFLICTS[case]

    assert Merged(tmp_path, base, ours, theirs).conflicts == expected


@pytest.mark.parametrize("case", CONFLICTS)
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_conflict_is_resolved_as_one_side_has_it(case: str, side: Any, tmp_path: Path) -> None:
    base, ours, theirs, _ = CONFLICTS[case]
    merged = Merged(tmp_path, base, ours, theirs, resolve=lambda path, index, clash: clash.choice(side))

    assert not merged.conflicts
    assert merged.tree == (ours if side == "ours" else theirs)


def test_several_sides_are_merged_one_after_the_other(tmp_path: Path) -> None:
    merged = Merged(tmp_path, {"f": TEXT}, {"f": TEXT}, {"f": FIRST}, {"f": LAST}, {"f": TEXT, "g": b"g"})

    assert merged.tree == {"f": b"one\n2\n3\n4\nfive\n", "g": b"g"}


def test_pipes_and_devices_are_left_out(tmp_path: Path) -> None:
    merged = Merged(tmp_path, {}, {}, {"p": b"FIFO", "f": b"f"})

    assert (merged.tree, merged.left_out) == ({"f": b"f"}, ["p"])


def test_paths_limit_the_merge_and_bring_their_parents(tmp_path: Path) -> None:
    theirs = {"a": b"a", "d": {"x": b"x", "y": b"y"}}
    merged = Merged(tmp_path, {}, {}, theirs, paths=["d/x"])

    assert merged.tree == {"d": {"x": b"x"}}


def test_a_link_in_place_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"host\n")
    there = {"d": link(str(tmp_path / "outside"))}
    merged = Merged(tmp_path, {"d": {"f": TEXT}}, {"d": {"f": TEXT}}, there)

    assert merged.tree == there
    assert (tmp_path / "outside" / "f").read_bytes() == b"host\n"
