"""Options are read up to `--` or the first other word, whole, and never guessed."""

from __future__ import annotations

import pytest

from staddle.cli.options import Option, parse
from staddle.errors import UsageError

TABLE = (
    Option("read", "PATH", many=True),
    Option("timeout", "SECONDS"),
    Option("json"),
    Option("command", "SCRIPT", short="c"),
)


def said(*words: str) -> tuple[dict[str, list[str]], tuple[str, ...], bool]:
    parsed = parse(words, TABLE, "run")
    return parsed.options, parsed.words, parsed.dashed


def test_both_spellings_of_a_value() -> None:
    assert said("--timeout", "5") == said("--timeout=5") == ({"timeout": ["5"]}, (), False)


def test_the_wrapped_commands_flags_are_its_own() -> None:
    assert said("--json", "--", "grep", "-c", "--json", "--", "x") == (
        {"json": [""]},
        ("grep", "-c", "--json", "--", "x"),
        True,
    )


def test_the_first_other_word_ends_the_options() -> None:
    assert said("script.sh", "--timeout", "5", "-c") == ({}, ("script.sh", "--timeout", "5", "-c"), False)


def test_a_value_may_look_like_anything() -> None:
    assert said("-c", "--", "--read", "-x", "--read=--json")[0] == {
        "command": ["--"],
        "read": ["-x", "--json"],
    }


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
