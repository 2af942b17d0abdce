"""Every error says what happened, why, and how to fix it: counted in the source, call by call."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from staddle import Sandbox, errors
from staddle.cli import main
from staddle.cli.report import told

SOURCE = Path(errors.__file__).parent
KINDS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.StaddleError)
}
#: Kinds that need no cause, each with the reason.
NO_CAUSE = {"UsageError": "what it says is the mistake on the command line, which is the cause"}

pytestmark = pytest.mark.same_for_everyone


@functools.cache
def constructors() -> list[tuple[str, str, ast.Call]]:
    """(place, kind, call) of every error that the source makes."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in KINDS:
                    found.append((f"{file.relative_to(SOURCE)}:{node.lineno}", name, node))
    return found


def says(call: ast.Call, name: str) -> bool:
    """Whether the call gives `name`, and not as an empty text. `**more` may."""
    for keyword in call.keywords:
        if keyword.arg is None:
            return True
        if keyword.arg == name:
            return not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
    return False


def test_there_are_many_to_count() -> None:
    assert len(constructors()) > 500


@pytest.mark.parametrize("part", ["why", "fix"])
def test_every_error_says_it(part: str) -> None:
    exempt = NO_CAUSE if part == "why" else {}
    missing = [
        f"{place} {kind}: {ast.unparse(call)[:120]}"
        for place, kind, call in constructors()
        if kind not in exempt and not says(call, part)
    ]
    assert not missing, "\n".join((f"{len(missing)} without {part}=", *missing))


def test_exceptions_are_of_kinds_that_exist() -> None:
    assert set(NO_CAUSE) <= KINDS


def test_one_renderer_makes_a_sentence_or_lines() -> None:
    assert errors.rendered("it broke", "it was old", "buy another") == "it broke: it was old; buy another"
    assert errors.rendered("it broke", fix="buy another", lines=True) == "it broke\n  fix: buy another"


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("use mode='overlay', or leave limits.disk out", "use --mode overlay, or leave --disk out"),
        ("choose backend='landlock', which is 'weaker'", "choose --backend landlock, which is 'weaker'"),
        ("use Network.open()", "use --network open"),
        ("use another", "use another"),
    ],
)
def test_the_command_line_says_its_own_options(text: str, spelled: str) -> None:
    error = errors.PolicyError("it is \x1b[31m refused", why="a rule", fix=text)
    assert told(error) == f"it is \\x1b[31m refused\n  cause: a rule\n  fix: {spelled}"


def test_a_line_to_be_pasted_stands_by_itself() -> None:
    error = errors.BackendUnavailable("what", why="why", fix="run this:\nsysctl -w a=1")
    assert told(error) == "what\n  cause: why\n  fix: run this:\n  sysctl -w a=1"


def test_an_error_of_the_system_names_the_file_the_cause_and_a_fix() -> None:
    missing = FileNotFoundError(2, "No such file or directory", "a\x1b[31mb")
    shown = r"'a\\x1b[31mb' cannot be used"
    assert told(missing) == f"{shown}\n  cause: No such file or directory\n  fix: name one that exists"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["doctr"], "did you mean doctor?"),
        (["run", "--disk", "1G", "--", "true"], "add --mode overlay or --keep NAME, or leave --disk out"),
        (["run", "--mode", "ovrlay", "--", "true"], "choose readonly, bind or overlay"),
        (["commit", "no-such-sandbox"], "`staddle ls` lists them; `staddle run --keep NAME` makes one"),
    ],
)
def test_a_mistake_on_the_command_line_has_a_fix(
    words: list[str], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 125
    assert f"  fix: {fix}\n" in capsys.readouterr().err


def test_a_workspace_that_is_the_whole_machine_is_named_so() -> None:
    with pytest.raises(errors.InvalidCall, match="'/' cannot be the workspace"):
        Sandbox("/")
