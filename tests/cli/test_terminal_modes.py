"""The modes of the user's terminal come back, also when staddle is killed."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import termios
import time
from pathlib import Path

import pytest

from tests.support.staddle_command import COMMAND, environment
from tests.support.waiting import PATIENCE, until

COOKED = termios.ICANON | termios.ECHO
RAW = "stty raw -echo; echo ready; sleep 1000"


class AtTerminal:
    """`sh` on a terminal, with a command that it waits for."""

    def __init__(self, words: list[str], directory: Path) -> None:
        script = f"echo $$; cd {shlex.quote(str(directory))}; {shlex.join(words)}; sleep 1000"
        self.pid, self.leader = pty.fork()
        if self.pid == 0:
            os.execve("/bin/sh", ["sh", "-c", script], environment())  # noqa: S606 - on its terminal

    def heard(self, word: bytes) -> None:
        said, end = b"", time.monotonic() + PATIENCE
        while word not in said:
            assert time.monotonic() < end, said
            if select.select([self.leader], [], [], 1)[0]:
                said += os.read(self.leader, 4096)

    def modes(self) -> int:
        flags: int = termios.tcgetattr(self.leader)[3]
        return flags & COOKED

    def kill_staddle(self) -> None:
        (child,) = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.leader)
        os.waitpid(self.pid, 0)


def first(children: Path) -> str:
    return (children.read_text().split() or ["self"])[0]


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_of_a_command_that_is_killed(backend: str, tmp_path: Path) -> None:
    words = [*COMMAND, "run", "--backend", backend, "--", "sh", "-c", RAW]
    at = AtTerminal(words, tmp_path)
    try:
        assert at.modes() == COOKED
        at.heard(b"ready")
        assert at.modes() == 0
        at.kill_staddle()
        assert until(lambda: at.modes() == COOKED)
    finally:
        at.close()


@pytest.mark.slow
def test_of_a_shell_that_is_killed(tmp_path: Path) -> None:
    at = AtTerminal([*COMMAND, "shell"], tmp_path)
    try:
        assert until(lambda: at.modes() == 0)  # the terminal inside echoes now
        at.kill_staddle()
        assert until(lambda: at.modes() == COOKED)
    finally:
        at.close()


def test_at_the_end_of_a_command_nobody_waits_for_ours_any_more(tmp_path: Path) -> None:
    at = AtTerminal([*COMMAND, "run", "--", "sh", "-c", "stty raw -echo; echo ready"], tmp_path)
    try:
        at.heard(b"ready")
        assert until(lambda: at.modes() == COOKED)
        children = Path(f"/proc/{at.pid}/task/{at.pid}/children")
        assert until(lambda: b"sleep" in Path(f"/proc/{first(children)}/cmdline").read_bytes())
        assert len(children.read_text().split()) == 1
    finally:
        at.close()


def test_modes_of_another_foreground_process_are_left_alone(tmp_path: Path) -> None:
    """A shell with job control takes the terminal back, and edits its line with modes of its own."""
    at = AtTerminal(["sh", "-c", "set -m; " + shlex.join([*COMMAND, "run", "--", "sh", "-c", RAW])], tmp_path)
    try:
        at.heard(b"ready")
        (shell,) = Path(f"/proc/{at.pid}/task/{at.pid}/children").read_text().split()
        (staddle,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        watchers = Path(f"/proc/{staddle}/task/{staddle}/children").read_text().split()
        # As if the shell had taken the terminal back before anybody else looked.
        os.kill(int(staddle), signal.SIGSTOP)
        assert until(lambda: os.tcgetpgrp(at.leader) != int(staddle))
        os.kill(int(staddle), signal.SIGKILL)
        assert until(lambda: not any(Path(f"/proc/{watcher}").exists() for watcher in watchers))
        assert at.modes() == 0
    finally:
        at.close()
