"""A command on its own pseudo-terminal, for a person who works inside.

The command never gets the user's terminal. It gets a new one, which ends with it. Changes to that terminal
(modes, pasted input, another line discipline) do not reach the user's.
"""

from __future__ import annotations

import os

from ..launch import pty
from ..launch.running import Lifeline, did_not_start, end, never_started, release, start
from ..observe.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ..launch.contract import Launch
    from ..observe.redaction import Secrets


def on_its_own(command: Sequence[str]) -> list[str]:
    """The command as leader of a session, so that Ctrl-C and job control work (util-linux)."""
    return ["setsid", "--ctty", "--wait", *command]


class PtyLaunch:
    """A launch started on its own pseudo-terminal; `cli.terminal` connects the user's terminal to it.

    Create it before blocking signals: the command would inherit the mask. `wait` or `close` ends it.
    """

    def __init__(
        self, launch: Launch, secrets: Secrets | None = None, size: tuple[int, int] = (24, 80)
    ) -> None:
        """`size` are the initial rows and columns."""
        self._launch = launch
        self._redactor = Redactor(() if secrets is None else secrets.spelled)
        self._leader, follower = os.openpty()
        pty.set_size(self._leader, *size)
        self._lifeline = None if launch.relays else Lifeline(launch.status)
        try:
            if launch.uid is not None:
                os.fchown(follower, launch.uid, -1)  # root's sandbox runs under another uid
            self._process = start(
                launch,
                group=None if self._lifeline is None else self._lifeline.group,
                stdin=follower,
                stdout=follower,
                stderr=follower,
            )
        except BaseException:
            self._release()
            raise
        finally:
            os.close(follower)
        os.set_blocking(self._leader, False)

    def terminal(self, *, rows: int, cols: int, term: str) -> Self:
        """Return itself after a resize. `term` was set when the launch was prepared."""
        self.resize(rows, cols)
        return self

    def fileno(self) -> int:
        """The descriptor to poll, for output to read and for room to write input."""
        return self._leader

    def read_some(self) -> bytes | None:
        """The printed bytes; None if there are none yet, empty at the end."""
        return pty.read_redacted(self._leader, self._redactor)

    def write_some(self, data: bytes) -> int:
        """Write as much of `data` as fits, and return the number of bytes."""
        return pty.write_available(self._leader, data)

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal."""
        pty.set_size(self._leader, rows, cols)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status as a shell reports it. Ends the command at the timeout."""
        import subprocess

        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            end(self._process)
            code = self._process.returncode
        failure = never_started(self._launch) if code > 0 else None
        if failure:
            raise did_not_start(failure)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End the command, if it runs, with all its children. A second call does nothing."""
        if self._leader >= 0:
            if self._process.poll() is None:
                end(self._process)
            self._release()

    def _release(self) -> None:
        fd, self._leader = self._leader, -1
        os.close(fd)
        release(self._launch)
        if self._lifeline is not None:
            self._lifeline.close()
