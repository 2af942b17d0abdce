"""What is true of every adapter without its framework: one sentence if it is missing, an extra, a page."""

from __future__ import annotations

import ast
import errno
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from staddle import Policy, Reason, Result
from staddle.adapters._common import CommandEnding, OpenSandboxes, ending, policy_of, seconds

pytestmark = pytest.mark.same_for_everyone

TREE = Path(__file__).parents[3]
ADAPTERS = TREE / "src" / "staddle" / "adapters"
NAMES = sorted(path.stem for path in ADAPTERS.glob("[!_]*.py"))
EXTRAS = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = "\n".join(page.read_text() for page in sorted((TREE / "docs").glob("adapters*.md")))

#: Imports every adapter with no package but the standard library and staddle.
WITHOUT = """
import sys
from staddle.errors import ExtraMissing
for name in sys.argv[1:]:
    try:
        __import__("staddle.adapters." + name)
    except ExtraMissing as error:
        print(name, "|", error.fix)
"""


def declared() -> dict[str, tuple[str, str]]:
    """For each adapter the package and the extra that its `with framework(…)` names."""
    found = {}
    for name in NAMES:
        for node in ast.walk(ast.parse((ADAPTERS / f"{name}.py").read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "framework":
                package, extra = (str(word.value) for word in node.args if isinstance(word, ast.Constant))
                found[name] = (package, extra)
    return found


def test_a_missing_framework_is_one_sentence_that_names_the_extra() -> None:
    words = [sys.executable, "-S", "-c", WITHOUT, *NAMES]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(TREE / "src")}
    )
    printed = dict(line.split(" | ") for line in done.stdout.splitlines())
    assert printed == {name: f"pip install 'staddle[{extra}]'" for name, (_, extra) in declared().items()}


def test_every_adapter_has_an_extra_with_a_range_an_example_and_a_suite() -> None:
    from scripts.test_adapters import SUITES

    suites = {suite.name: suite.extra for suite in SUITES}
    for name, (_, extra) in declared().items():
        assert all(re.search(r">=[\d.]+,<[\d.]+$", item) for item in EXTRAS[extra]), extra
        assert f"staddle[{extra}]" in PAGES, extra
        assert f"```python {name}\n" in PAGES, name
        assert suites[name] == extra
    assert set(declared()) == set(NAMES)
    for suite in SUITES:
        assert suite.tests or (TREE / "tests" / "adapters" / f"suite_{suite.name}.py").exists(), suite.name


# ---------------------------------------------------------------- what they share


def test_a_policy_that_was_given_is_used_unchanged(tmp_path: Path) -> None:
    own = Policy.agent().with_limits(timeout=5)
    assert policy_of(own) is own
    assert policy_of(None).limits.timeout is None
    (tmp_path / "p.toml").write_text('preset = "agent"\n[limits]\ntimeout = 7\n')
    assert policy_of(tmp_path / "p.toml").limits.timeout == 7


def test_no_timeout_leaves_it_to_the_policy() -> None:
    assert (seconds(None), seconds(0), seconds(3)) == ({}, {}, {"timeout": 3})


def result(reason: Reason = Reason.exited, code: int = 0, **more: Any) -> Result:
    from staddle.limits.usage import Usage

    return Result(("x",), code, b"", b"", 0.1, reason, None, False, "/", Usage(0.1), **more)


@pytest.mark.parametrize(
    ("given", "how"),
    [
        (result(), CommandEnding.EXITED),
        (result(code=126), CommandEnding.EXITED),
        (result(Reason.timeout, 124), CommandEnding.TIMEOUT),
        (result(Reason.closed, 137), CommandEnding.CLOSED),
        (result(stdout_bytes_dropped=3), CommandEnding.TRUNCATED),
        (result(Reason.output_limit, 143), CommandEnding.TRUNCATED),
        (result(Reason.not_started, 126, errno=errno.EACCES), CommandEnding.NOT_EXECUTABLE),
        (result(Reason.not_started, 127, errno=errno.ENOENT), CommandEnding.EXITED),
    ],
)
def test_how_a_command_ended(given: Result, how: CommandEnding) -> None:
    assert ending(given) is how


def test_open_sandboxes_are_found_by_id_until_they_end() -> None:
    class Box:
        alive = True

    known, box = OpenSandboxes(), Box()
    name = known.add(box)
    assert known.get(name) is box
    assert known.get("another") is None
    box.alive = False
    assert known.get(name) is None
    assert known.remove(name) is box
    assert list(known) == []
