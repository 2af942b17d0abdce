"""`sb.python`: an interpreter that keeps its variables, with rich results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from staddle import AsyncSandbox, Sandbox
from staddle.errors import InvalidCall

PICTURE = """
class Picture:
    def _repr_png_(self): return b"\\x89PNG picture"
    def _repr_html_(self): return "<table></table>"
Picture()
"""


@pytest.fixture(scope="module")
def sb() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


def test_variables_stay_and_the_last_value_is_given(sb: Sandbox) -> None:
    assert sb.python("x = 20").text is None
    got = sb.python("import os; print('printed'); os.system('echo by a program'); x + 1")
    assert (got.text, got.ok, got.lost) == ("21", True, False)
    assert "printed\n" in got.stdout
    assert "by a program\n" in got.stdout
    assert str(got).endswith("\n21")
    assert got.as_dict()["stdout"] == got.stdout


def test_another_session_has_other_variables(sb: Sandbox) -> None:
    sb.python("mine = 1")
    got = sb.python("mine", session="b")
    assert not got.ok
    assert got.error is not None
    assert got.error["name"] == "NameError"
    assert "NameError: name 'mine' is not defined" in str(got)


def test_pictures_and_tables_are_given(sb: Sandbox) -> None:
    got = sb.python(PICTURE)
    assert (got.images, got.html) == ([b"\x89PNG picture"], ["<table></table>"])


def test_a_cell_that_takes_too_long_is_interrupted_and_the_variables_stay(sb: Sandbox) -> None:
    sb.python("kept = 5")
    got = sb.python("import time; time.sleep(1000)", timeout=1)
    assert got.timed_out
    assert sb.python("kept").text == "5"


def test_the_end_of_the_interpreter_is_told(sb: Sandbox) -> None:
    sb.python("kept = 5", session="c")
    assert sb.python("import os; os._exit(3)", session="c").lost
    assert sb.python("1", session="c").text == "1"
    sb.snapshot("here")
    sb.restore("here")
    again = sb.python("'kept' in globals()", session="c")
    assert (again.text, again.lost) == ("False", True)


def test_the_language_can_be_named(sb: Sandbox) -> None:
    sb.code("python", "named = 6")
    assert sb.python("named").text == "6"
    with pytest.raises(InvalidCall, match=r"Python only.*sb\.run"):
        sb.code("r", "1")  # type: ignore[arg-type]


def test_what_is_no_code_is_refused(sb: Sandbox) -> None:
    with pytest.raises(InvalidCall):
        sb.python(3)  # type: ignore[arg-type]


def test_it_is_awaited_too() -> None:
    async def work() -> str | None:
        async with AsyncSandbox() as sandbox:
            await sandbox.python("x = 1")
            return (await sandbox.python("x + 1")).text

    assert asyncio.run(work()) == "2"
