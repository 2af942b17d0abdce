"""Every example of docs/fleet.md runs as it is written, on a Ray that it starts by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
EXAMPLES = re.findall(r"^```python ray\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("code", EXAMPLES, ids=str)
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code)  # Ray pickles functions of a file by their content
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "staddle",
            "fleet",
            "run",
            "--",
            'echo "got $ITEM"; test "$ITEM" = a',
            "a",
            "b",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("got a\ngot b\n", 1), done.stderr
