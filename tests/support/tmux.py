"""Programs on a real terminal: tmux, driven with send-keys and read with capture-pane."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.staddle_command import environment
from tests.support.waiting import PATIENCE, until


class Tmux:
    """A tmux server of its own with one window."""

    def __init__(
        self,
        directory: Path,
        command: list[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self._socket = str(directory / "tmux")
        known = environment() if env is None else env
        self._env = {k: v for k, v in known.items() if k != "TMUX"} | {"TERM": "xterm-256color"}
        self._cwd = cwd
        line = f"{shlex.join(command)}; echo ended with $?; sleep 1000"
        self("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "32", line)

    def __call__(self, *words: str) -> str:
        argv = ["tmux", "-S", self._socket, *words]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, env=self._env, cwd=self._cwd)
        return done.stdout

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names, or texts."""
        for key in keys:
            self("send-keys", key)

    def screen(self) -> str:
        """What is on the screen."""
        return self("capture-pane", "-p")

    def until(self, *texts: str, patience: float = PATIENCE) -> None:
        """Wait until all of these are on the screen."""
        found = until(lambda: all(text in self.screen() for text in texts), patience)
        assert found, f"{texts}:\n{self.screen()}"
