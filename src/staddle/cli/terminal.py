"""Relay between the user's terminal and a shell inside: keys go in, output comes out.

Meanwhile the terminal is in raw mode: Ctrl-C, Ctrl-Z and Ctrl-\\ are bytes, and the terminal inside turns
them into signals for its own foreground job. The modes are restored however the shell ends, and when a signal
ends us. Output is passed on unchanged, so the user's terminal interprets control sequences from inside.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty

from ..launch.foreground import TerminalGuard
from ..launch.signals import SIGHUP, SIGINT, SIGQUIT, SIGTERM, waiting_among_threads
from ..linux.fileio import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ..launch.foreground import Signals
    from ..sandbox.sandbox import Sandbox
    from ..sandbox.terminal import Terminal

    class TypedCommands(Protocol):
        """Commands that run here instead of being typed inside."""

        def takes(self, line: str, terminal: Terminal) -> bool: ...
        def do(self, line: str, terminal: Terminal) -> Terminal: ...


SIGWINCH = 28  # on all systems
SIGCONT, SIGTSTP = (19, 18) if sys.platform == "darwin" else (18, 20)
#: Output of `JOB_CONTROL` when its program was stopped. From anything else inside, it only stops us.
_STOPPED = b"\x1b]7797;stopped\x07"
#: Runs a program as a job, as an interactive shell would, so that it can be stopped with Ctrl-Z.
JOB_CONTROL = (
    *("bash", "--norc", "-i", "-c"),
    r"""exec 3>&2 2> /dev/null; "$@" 2>&3 3>&-; status=$?
    while [[ $(jobs -p) ]]; do
        [[ ! $(jobs -s) ]] || { printf '\e]7797;stopped\a'; kill -STOP $$; }
        fg > /dev/null; status=$?
    done; exit $status""",
    "bash",
)
#: Maximum typed input that may wait for a shell that does not read. Then we stop reading keys.
_TYPED_AHEAD = 65536
#: Seconds for the shell to end after its terminal is hung up.
_LAST_PATIENCE = 5.0


def size_of_this() -> tuple[int, int]:
    """Return rows and columns of the terminal on our standard input."""
    size = os.get_terminal_size(0)
    return size.lines or 24, size.columns or 80


def on_this_terminal(sandbox: Sandbox, seconds: float | None, typed: TypedCommands | None = None) -> int:
    """Run an interactive shell on our standard input and output. Returns its exit status; 124: timeout.

    `typed` runs the commands that are not for the shell.
    """
    with waiting_among_threads((SIGWINCH, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM)) as signals:
        rows, cols = size_of_this()
        terminal = sandbox.terminal(rows=rows, cols=cols, term=os.environ.get("TERM", "dumb"))
        guard = TerminalGuard()
        try:
            modes = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            relay = _Relay(terminal, signals, seconds, typed, modes)
            try:
                return relay.run()
            finally:
                terminal = relay.terminal
        finally:
            guard.close()
            terminal.close()


class TypedLine:
    """The line being typed, as long as it is only text: only the shell knows the effect of other keys."""

    def __init__(self) -> None:
        self._keys: bytes | None = b""  # None: other keys were among them

    def add(self, key: bytes) -> str | None:
        """Add a key. Returns the line if it was Enter and only text was typed."""
        if key in b"\r\n":
            line, self._keys = self._keys, b""
            return None if line is None else line.decode("utf-8", "replace")
        if key in b"\x03\x15":  # Ctrl-C and Ctrl-U clear the line
            self._keys = b""
        elif key in b"\x7f\x08":
            self._keys = None if self._keys is None else self._keys[:-1]
        elif key < b" ":
            self._keys = None
        elif self._keys is not None:
            self._keys += key
        return None


class _Relay:
    def __init__(
        self,
        terminal: Terminal,
        signals: Signals,
        seconds: float | None,
        typed: TypedCommands | None,
        modes: list[Any],
    ) -> None:
        self.terminal, self._modes, self._held = terminal, modes, b""
        self._commands, self._line = typed, TypedLine()
        self._signals = signals
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._typed = b""  # read from the user, not yet read by the shell
        self._listening = True

    def run(self) -> int:
        """Relay until the shell ends, the timeout passes, or a signal ends us."""
        while True:
            poll = select.poll()
            poll.register(self._signals.descriptor, select.POLLIN)
            poll.register(self.terminal.fileno(), select.POLLIN | (select.POLLOUT if self._typed else 0))
            if self._listening and len(self._typed) < _TYPED_AHEAD:
                poll.register(0, select.POLLIN)
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                return 124
            for fd, event in poll.poll(None if left is None else left * 1000 + 1):
                if fd == self._signals.descriptor:
                    for number in self._signals.read():
                        if number not in (SIGWINCH, SIGCONT):
                            return 128 + number
                        if number == SIGCONT:  # we were stopped; others had the terminal
                            tty.setraw(0, termios.TCSADRAIN)
                        self.terminal.resize(*size_of_this())
                elif fd == 0:
                    self._read_keys()
                else:
                    if event & select.POLLOUT:
                        self._typed = self._typed[self.terminal.write_some(self._typed) :]
                    if event & ~select.POLLOUT and not self._show():
                        status = self.terminal.wait(_LAST_PATIENCE)
                        return 128 + SIGHUP if status is None else status

    def _read_keys(self) -> None:
        keys = os.read(0, 4096)
        if keys and self._commands is not None:
            self._follow(keys)
        elif keys:
            self._typed += keys
        else:  # the user's terminal is gone: send the shell an end of file
            self._listening = False
            self._typed += b"\x04"

    def _follow(self, keys: bytes) -> None:
        """Pass keys on, except Enter after a command of ours at the shell's prompt."""
        for at in range(len(keys)):
            key = keys[at : at + 1]
            line = self._line.add(key)
            if line is None or self._commands is None or not self._commands.takes(line, self.terminal):
                self._typed += key
                continue
            self.terminal.write(self._typed)
            self._typed = b""
            self.terminal = self._commands.do(line, self.terminal)

    def _show(self) -> bool:
        """Pass on the shell's output; False at its end."""
        data = self.terminal.read_some()
        if data is None:
            return True
        text = self._held + data
        shown = text.replace(_STOPPED, b"")
        # The beginning of the mark may be at the end of this piece.
        begun = next((n for n in range(len(_STOPPED) - 1, 0, -1) if data and shown.endswith(_STOPPED[:n])), 0)
        self._held = shown[len(shown) - begun :]
        write_all(1, shown[: len(shown) - begun])
        if _STOPPED in text:
            self._stop()
        return bool(data)

    def _stop(self) -> None:
        """Stop with the program inside, and continue with it."""
        raw = termios.tcgetattr(0)
        termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        os.kill(0, SIGTSTP)  # returns when we are continued, or at once if nobody could continue us
        termios.tcsetattr(0, termios.TCSADRAIN, raw)
        self.terminal.resize(*size_of_this())
        self.terminal.signal(SIGCONT)
