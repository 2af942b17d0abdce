"""A command on a pseudo-terminal: its bytes as a terminal would get them, and the screen that they make."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from staddle.tui.emulator.emulator import Emulator
from tests.support.waiting import PATIENCE


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have ignored it


class PtyScreen:
    """Runs `argv` on a terminal of its own."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, rows: int = 32, cols: int = 120
    ):
        self._leader, follower = os.openpty()
        self._size(rows, cols)
        self.modes = termios.tcgetattr(follower)
        self.raw = b""
        # It answers no question: an answer would be echoed in the midst of what is printed.
        self._emulator = Emulator(rows, cols, lambda data: None)
        self.process = subprocess.Popen(
            argv,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - two system calls
        )
        self._follower = follower

    def _size(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))

    def resize(self, rows: int, cols: int) -> None:
        """Give the terminal another size, and tell the command."""
        self._emulator.resize(rows, cols)
        self._size(rows, cols)

    def type(self, keys: bytes | str) -> None:
        """Type keys."""
        os.write(self._leader, keys.encode() if isinstance(keys, str) else keys)

    def text(self) -> str:
        """What is on the screen now."""
        while select.select([self._leader], [], [], 0)[0]:
            try:
                data = os.read(self._leader, 65536)
            except OSError:
                break
            self.raw += data
            self._emulator.feed(data)
        return self._emulator.text()

    def until(self, *texts: str) -> str:
        """Wait until all of these are on the screen; the screen."""
        end = time.monotonic() + PATIENCE
        while not all(text in (screen := self.text()) for text in texts):
            assert time.monotonic() < end, f"{texts} did not come:\n{self.text()}"
            select.select([self._leader], [], [], 0.1)
        return screen

    def ended(self) -> int:
        """Wait for the end of the command; its status."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text()
            select.select([self._leader], [], [], 0.1)
            self.text()
        self.text()
        return self.process.returncode

    def modes_now(self) -> list[object]:
        """The modes of the terminal."""
        return termios.tcgetattr(self._follower)

    def close(self) -> None:
        """End the command, if it still runs. A second time does nothing."""
        if self._leader < 0:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._leader)
        os.close(self._follower)
        self._leader = -1
