"""Options are read up to `--` or the first other word, whole, and never guessed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import staddle.cli
from staddle.cli.options import Option, parse
from staddle.errors import UsageError

TABLE = (
    Option("read", "PATH", many=True),
    Option("timeout", "SECONDS"),
    Option("json"),
    Option("command", "SCRIPT", short="c"),
)


@pytest.mark.parametrize(
    ("line", "options", "words", "dashed"),
    [
        pytest.param("--timeout 5", {"timeout": ["5"]}, "", False, id="a value after a space"),
        pytest.param("--timeout=5", {"timeout": ["5"]}, "", False, id="a value after an equals sign"),
        pytest.param("--json -- a -c --json -- x", {"json": [""]}, "a -c --json -- x", True, id="two dashes"),
        pytest.param("a.sh --timeout 5 -c", {}, "a.sh --timeout 5 -c", False, id="the first other word"),
        pytest.param(
            "-c -- --read -x --read=--json",
            {"command": ["--"], "read": ["-x", "--json"]},
            "",
            False,
            id="a value that looks like an option",
        ),
    ],
)
def test_a_line_is_read_as(line: str, options: dict[str, list[str]], words: str, dashed: bool) -> None:
    parsed = parse(line.split(), TABLE, "run")
    assert (parsed.options, parsed.words, parsed.dashed) == (options, tuple(words.split()), dashed)


@pytest.mark.parametrize(
    "words",
    [
        ["--tim", "5"],
        ["--timeout"],
        ["--json=1"],
        ["--timeout", "1", "--timeout", "2"],
        ["-x"],
        ["--nonsense", "--"],
    ],
)
def test_what_we_do_not_understand_is_an_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(words, TABLE, "run")


def test_a_near_miss_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean --timeout"):
        parse(["--timeot", "5"], TABLE, "run")


# Every option that a command offers does something there: its code looks at it.


PLACE = Path(staddle.cli.__file__).parent
_LOOK = re.compile(r'\.(?:one|on|many)\(\s*"([a-z-]+)"')
#: Looked at in loops, by names in a tuple.
_LOOPS = {
    "options": {"memory", "file-size", "disk", "processes", "open-files", "output-cap"},
    "agent": {"install", "remove", "print", "check", "serve"},
    "fleet": {"concurrency", "retries", "gpus"},
    "jail": {"prepared", "stopped", "failed", "published"},
}
#: Commands, and modules whose options are a table for others.
_TABLES = {"options"}


def modules(name: str) -> set[str]:
    """A module of the command line, and those of it that it imports from."""
    found, todo = set[str](), [name]
    while todo:
        one = todo.pop()
        if one not in found and (PLACE / f"{one}.py").exists():
            found.add(one)
            todo += re.findall(r"from \.([a-z_]+) import", (PLACE / f"{one}.py").read_text())
    return found


def looked_at(name: str) -> set[str]:
    return set(_LOOK.findall((PLACE / f"{name}.py").read_text())) | _LOOPS.get(name, set())


def offered(name: str) -> set[str]:
    module = importlib.import_module(f"staddle.cli.{name}")
    tables = [table for name, table in vars(module).items() if name.endswith("OPTIONS")]
    return {
        option.name
        for table in tables
        if isinstance(table, tuple)
        for option in table
        if isinstance(option, Option)
    }


COMMANDS = sorted(
    path.stem for path in PLACE.glob("*.py") if path.stem not in _TABLES and not path.stem.startswith("_")
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_looked_at(name: str) -> None:
    # These two open sandboxes in other ways than `run` does.
    own = {"mcp": {"mcp", "options"}, "agent": {"agent", "agent_session", "options"}}
    among = own.get(name) or modules(name)
    used = set().union(*(looked_at(each) for each in among))
    assert offered(name) - used - {"help"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_means_one_thing_in_a_command(name: str) -> None:
    """Two tables that are put together may not have options of one name: the first would hide the other."""
    for table in vars(importlib.import_module(f"staddle.cli.{name}")).values():
        if isinstance(table, tuple) and table and isinstance(table[0], Option):
            found = [option.name for option in table if isinstance(option, Option)]
            assert sorted(found) == sorted(set(found))


def test_the_walk_finds_an_option_that_nothing_looks_at() -> None:
    assert "memory" in offered("run")
    assert "keep" in looked_at("agent")
    assert "kept" in modules("run_kept")
