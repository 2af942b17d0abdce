"""The command line as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.waiting import until

SRC = Path(__file__).parents[2] / "src"
COMMAND = [sys.executable, "-m", "staddle"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


def staddle(*words: str | bytes, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run `staddle WORDS` and return what came of it."""
    kwargs.setdefault("text", True)
    kwargs.setdefault("env", environment())
    kwargs.setdefault("stdin", subprocess.DEVNULL if "input" not in kwargs else None)
    if kwargs["stdin"] is None:
        del kwargs["stdin"]
    return subprocess.run([*COMMAND, *words], capture_output=True, timeout=60, check=False, **kwargs)


def is_one_error(stderr: str) -> bool:
    """Whether it is one error of ours: what happened, and its cause and fix on lines of their own."""
    first, *rest = stderr.splitlines()
    begins = [line.partition(":")[0] for line in rest]
    return first.startswith("staddle: ") and begins in (["  cause", "  fix"], ["  fix"])


def start(*words: str, **kwargs: Any) -> subprocess.Popen[str]:
    """Start `staddle WORDS` and leave it running."""
    return subprocess.Popen(
        [*COMMAND, *words],
        text=True,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,
    )


def processes_with(marker: str) -> list[int]:
    """Every process on this machine, in any namespace, that has `marker` among its arguments."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                arguments = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in arguments:
                found.append(int(name))
    return found


def gone(marker: str) -> bool:
    """Whether nothing with `marker` among its arguments is left after a while."""
    return until(lambda: not processes_with(marker))
