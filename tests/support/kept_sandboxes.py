"""For the tests of kept sandboxes: their change lists, and a person who looks at them."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.staddle_command import COMMAND, environment

Run = Callable[..., subprocess.CompletedProcess[str]]


def names(command: Run, *more: str) -> list[str]:
    return command("diff", "fix", "--names", *more).stdout.splitlines()


def at_a_terminal(
    state: Path, place: Path, words: list[str], answer: bytes = b"", **env: str
) -> tuple[str, int]:
    """What somebody at a terminal sees of `staddle WORDS`, and its exit status."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=place,
        env={**environment(), "XDG_STATE_HOME": str(state), "TERM": "xterm", "PAGER": "cat", **env},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    seen, until = b"", time.monotonic() + 60
    try:
        while time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    data = os.read(master, 65536)
                except OSError:
                    break  # nobody has the other end any more
                seen += data
                if answer and b"[y/N] " in seen:
                    os.write(master, answer)
                    answer = b""
        return seen.decode().replace("\r\n", "\n"), process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
