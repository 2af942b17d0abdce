"""What the commands for kept sandboxes print: short, and harmless whatever it is about."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from staddle.cli import kept
from staddle.cli.diff import text_of
from staddle.cli.kept import GREEN, Paint
from staddle.cli.options import Option, parse_among
from staddle.display import counted
from staddle.errors import UsageError
from staddle.layers.changes import Change, diff
from staddle.layers.merged_view import LayerView

TABLE = (Option("stat"), Option("how", "HOW"), Option("also", "WHAT", many=True))


def test_options_stand_anywhere_before_two_dashes() -> None:
    parsed = parse_among(["name", "--stat", "path", "--how=x", "--", "--stat"], TABLE, "diff")
    assert parsed.options == {"stat": [""], "how": ["x"]}
    assert parsed.words == ("name", "path", "--stat")
    assert parse_among(["a", "--also", "1", "b", "--also", "2"], TABLE, "diff").many("also") == ["1", "2"]


@pytest.mark.parametrize(
    "words", [["--how", "1", "name", "--how", "2"], ["name", "--nonsense"], ["a", "--how"]]
)
def test_what_is_not_understood_there_is_an_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_among(words, TABLE, "diff")


def test_a_change_is_one_line_whatever_its_name() -> None:
    change = Change("renamed", "/workspace/a\nb", "symlink", target="\x1b[2J", old_path="/workspace/\r")
    assert kept.row(change) == "R /workspace/\\r -> /workspace/a\\nb -> \\x1b[2J"
    assert kept.row(Change("deleted", "/workspace/d", old_type="directory")) == "D /workspace/d/"


def test_no_name_and_no_content_can_forge_a_line_of_a_diff(tmp_path: Path) -> None:
    layer, base = tmp_path / "layer", tmp_path / "base"
    layer.mkdir()
    base.mkdir()
    (layer / "x\n+forged").write_bytes(b"text\x1b]0;t\x07\r\n@@ -1 +1 @@\n\xff\x0cy")
    (change,) = diff(LayerView((str(layer),), (str(base),)), at="/workspace")
    lines = text_of(change).splitlines()
    assert lines == [
        "--- /dev/null",
        "+++ b/workspace/x\\n+forged",
        "@@ -0,0 +1,3 @@",
        "+text\\x1b]0;t\\x07\\r",
        "+@@ -1 +1 @@",
        "+\\xff\\x0cy",
        "\\ No newline at end of file",
    ]


def test_sizes_and_ages_are_for_people() -> None:
    sizes = [kept.human_size(count) for count in (0, 1023, 1024, 1536, 20 << 10, 3 << 30)]
    assert sizes == ["0B", "1023B", "1.0K", "1.5K", "20K", "3.0G"]
    now = time.time()
    assert [kept.age(now - seconds) for seconds in (-5, 90, 7300, 200_000)] == ["0s", "1m", "2h", "2d"]
    assert [counted(count, "path") for count in (0, 1, 2000)] == ["0 paths", "1 path", "2,000 paths"]


def test_there_are_colours_only_where_they_are_wanted() -> None:
    assert Paint(on=True)("+x", GREEN) == "\x1b[32m+x\x1b[0m"
    assert Paint(on=True)(" x", 0) == " x"
    assert Paint(on=False)("+x", GREEN) == "+x"
    assert Paint()("+x", GREEN) == "+x"  # nobody's terminal


def test_paths_are_those_of_the_workspace() -> None:
    assert kept.below([]) is None
    assert kept.below(["src", "/workspace/a/../b", "."]) == ("src", "b", "")
    with pytest.raises(UsageError, match="not in the workspace"):
        kept.below(["../x"])


def test_a_directory_is_within_itself_but_not_within_a_longer_name(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "a").mkdir()
    assert kept.is_within(str(tmp_path / "a"), str(tmp_path / "a"))
    assert kept.is_within(str(tmp_path / "a" / "b"), str(tmp_path / "a"))
    assert not kept.is_within(str(tmp_path / "ab"), str(tmp_path / "a"))
    assert kept.is_within(str(tmp_path), "/")
