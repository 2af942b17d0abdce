"""Every example in the documentation runs as it is written.

A Python example that starts with `# file: NAME` is a file of its page: the later ones find it beside them.
A console example has commands after `$ ` and, below each, exactly what it prints.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def examples() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        language, lines, start = None, [], 0
        files: dict[str, str] = {}
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("```"):
                if language in ("python", "sh", "console"):
                    code = "\n".join(lines)
                    name = f"{page.relative_to(ROOT)}:{start}"
                    found.append(pytest.param(language, code, dict(files), id=name))
                    if named := re.match(r"# file: (\w+\.py)\n", code):
                        files[named[1]] = code
                language = line[3:].strip() if language is None else None
                lines, start = [], number
            elif language is not None:
                lines.append(line)
    return found


@pytest.mark.parametrize(("language", "code", "files"), examples())
def test_example_runs(language: str, code: str, files: dict[str, str], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    if language == "python":
        command = [sys.executable, "-c", code]
    elif language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", code]
    else:
        lines = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
        command = [
            "bash",
            "-c",
            "exec 2>&1\n" + "".join(f"echo '$' {shlex.quote(line)}\n{line}\n" for line in lines) + "true",
        ]
    # The console script stands beside the interpreter of the virtual environment.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert language != "console" or done.stdout.rstrip() == code.rstrip()


def test_there_are_examples_to_run() -> None:
    assert len(examples()) >= 80
