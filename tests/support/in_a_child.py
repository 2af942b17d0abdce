"""Run a piece of Python in a process of its own: what it does to itself ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import staddle

SRC = Path(__file__).parents[2] / "src"
#: The staddle that is tried: a copy without one of its protections may be first on the path.
_TRIED = Path(staddle.__file__).parents[1]
ROOT = os.geteuid() == 0


def python(code: str, *, around: list[str] | None = None, timeout: float = 60) -> str:
    """What `code` prints; it has failed when it ends with anything but 0."""
    text = f"import sys; sys.path.insert(0, {str(_TRIED)!r})\nimport errno, os, time\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [*(around or []), sys.executable, "-I", "-c", text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def captured(words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its status; with what it printed, as text."""
    given = {"capture_output": True, "text": True, "timeout": 100, **options}
    return subprocess.run(words, check=False, **given)


def own_processes() -> list[str]:
    """A command that runs another one among processes of its own: kill(-1) hits nobody else."""
    user = [] if ROOT else ["--user", "--map-current-user"]
    return ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc"]
