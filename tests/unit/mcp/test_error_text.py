"""Errors of the library, in words that a model can act on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from staddle.errors import StaddleError
from staddle.mcp.error_text import for_model

pytestmark = pytest.mark.same_for_everyone

#: Words of the Python API. `overwrite=true` is an argument of a tool.
PYTHON = re.compile(r"\w\(|\b(?!overwrite=true)[a-z_]+=|\bsb\.|\blimits\.|\bpolicy\.with")


def fixes() -> Iterator[tuple[str, str]]:
    """(place, text) of each `fix=` in the library, with names in place of what is filled in."""
    top = Path(staddle.__file__).parent
    for file in sorted(top.rglob("*.py")):
        if file.relative_to(top).parts[0] in ("mcp", "cli", "tui", "fleet", "jail"):
            continue
        for call in ast.walk(ast.parse(file.read_text())):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "fix":
                    yield f"{file.relative_to(top)}:{call.lineno}", _text(keyword.value)


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "NAME" for part in value.values)
    return ""


def test_no_fix_of_the_library_names_something_that_only_python_has() -> None:
    found = [(place, for_model(StaddleError("it failed", fix=fix))) for place, fix in fixes()]
    assert len(found) > 300
    wrong = [(place, text) for place, text in found if PYTHON.search(text) and "only the user" not in text]
    assert not wrong
    assert any(fix for _, fix in found if "only the user can change this" in fix)


def test_a_fix_that_a_model_can_do_stays() -> None:
    assert for_model(StaddleError("a", why="b", fix="name a file")) == "a: b; name a file"


def test_options_are_spelled_for_the_user() -> None:
    words = for_model(StaddleError("a", fix="give limits.open_files more, or choose mode='bind'"))
    assert words == "a; only the user can change this: give --open-files more, or choose --mode bind"
