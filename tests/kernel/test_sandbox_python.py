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


def test_lines_of_a_notebook_run_programs(sb: Sandbox) -> None:
    code = """
words = 'two words'
text = '''
!not a command
'''
!echo '{words}' $words $HOME | tr a-z A-Z; \\
   echo more
for number in range(2):
    !echo {number}
names = !printf 'a\\nb'
(text.strip(), names)
"""
    got = sb.python(code)
    assert got.stdout == "TWO WORDS TWO WORDS /HOME/USER\nmore\n0\n1\n", got
    assert got.text == "('!not a command', ['a', 'b'])"
    assert sb.python("!awk 'BEGIN {print}'; exit 3\n_exit_code").text == "3"
    assert sb.python("%%bash\nx=1\necho $x").stdout == "1\n"
    assert sb.python("%%bash\nexit 3").error["name"] == "CalledProcessError"  # type: ignore[index]
    stopped = sb.python("!sleep 1000 | cat", timeout=1, session="stopped")
    assert (stopped.timed_out, stopped.lost) == (True, False)
    assert not [each for each in sb.ps() if "sleep" in each.command]


def test_magics_of_a_notebook(sb: Sandbox) -> None:
    assert sb.python("%cd /tmp\n%env PLACE=here\n%pwd").text == "'/tmp'"
    assert sb.python("!echo $PLACE $PWD").stdout == "here /tmp\n"
    assert sb.python("%matplotlib inline\n%env PLACE").text == "'here'"
    assert "per loop" in sb.python("%timeit sum(range(3))").stdout
    assert sb.python("%pip --version").stdout.startswith("pip ")
    for unknown in ("%nosuch x", "%%html\n<b>", "%matplotlib qt"):
        error = sb.python(unknown).error
        assert error is not None
        assert error["name"] == "MagicError"
    assert "use %cd, %env" in sb.python("%nosuch").error["value"]  # type: ignore[index]
    wrong = sb.python("x = (1\ny = 2")
    assert wrong.error is not None
    assert wrong.error["name"] == "SyntaxError"


def test_a_package_that_a_cell_installs_can_be_imported(sb: Sandbox) -> None:
    project = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    backend = """
import zipfile
def build_wheel(directory, *_, **__):
    name = "greeter-1.0-py3-none-any.whl"
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        wheel.writestr("greeter.py", "word = 'hello'")
        about = "greeter-1.0.dist-info/"
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: greeter\\nVersion: 1.0\\n")
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(about + "RECORD", "")
    return name
"""
    sb.files.write("/tmp/greeter/pyproject.toml", project, parents=True)
    sb.files.write("/tmp/greeter/backend.py", backend)
    sb.python("1", session="installing")  # the directory of the user's packages does not exist yet
    got = sb.python(
        "%pip install -q --no-index --no-build-isolation /tmp/greeter\nimport greeter; greeter.word",
        session="installing",
    )
    assert got.text == "'hello'", got


def test_cells_can_await(sb: Sandbox) -> None:
    begin = "import asyncio\nfound = []\nasync def later(): await asyncio.sleep(0.01); found.append(1)"
    assert sb.python(begin + "\ntask = asyncio.ensure_future(later()); await asyncio.sleep(0)").ok
    assert sb.python("await task\nfound").text == "[1]"  # the loop is that of the cell before
    assert sb.python("[x async for x in (y async for y in agen())]").error is not None
    failed = sb.python("await asyncio.sleep(0)\n1 / 0")
    assert failed.error is not None
    assert "run_until_complete" not in failed.error["traceback"]
    stopped = sb.python("await asyncio.sleep(1000)", timeout=1)
    assert (stopped.timed_out, stopped.lost) == (True, False)
    assert sb.python("await asyncio.sleep(0, 'after')").text == "'after'"


def test_what_is_no_code_is_refused(sb: Sandbox) -> None:
    with pytest.raises(InvalidCall):
        sb.python(3)  # type: ignore[arg-type]


def test_a_session_has_a_program_and_a_directory_and_a_cell_its_variables(sb: Sandbox) -> None:
    sb.run("printf '#!/bin/bash\\nexport MINE=1; exec python3 \"$@\"' > /tmp/mine; chmod +x /tmp/mine")
    show = "import os; os.getcwd(), os.environ.get('MINE'), os.environ.get('ONCE')"
    first = sb.python(show, session="mine", program="/tmp/mine", cwd="/tmp", env={"ONCE": "2"})
    assert first.text == "('/tmp', '1', '2')"
    assert sb.python(show, session="mine").text == "('/tmp', '1', None)"
    with pytest.raises(InvalidCall, match="program"):
        sb.python("1", session="other", program=3)  # type: ignore[arg-type]


def test_it_is_awaited_too() -> None:
    async def work() -> str | None:
        async with AsyncSandbox() as sandbox:
            await sandbox.python("x = 1")
            return (await sandbox.python("x + 1")).text

    assert asyncio.run(work()) == "2"
