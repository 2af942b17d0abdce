"""Relay between the user's terminal and a shell inside: keys go in, output comes out.

Meanwhile the terminal is in raw mode: Ctrl-C, Ctrl-Z and Ctrl-\\ are bytes, and the terminal
inside makes signals of them, for its own foreground job. Its modes are restored however the
shell ends, and when a signal ends us. The output is passed on as the program inside wrote it,
control sequences included, and the user's terminal acts on those.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty

from ..launch.signals import SIGHUP, SIGINT, SIGQUIT, SIGTERM, waiting_among_threads
from ..launch.terminal_guard import TerminalGuard
from ..linux.fileio import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..launch.foreground import Signals
    from ..sandbox.sandbox import Sandbox
    from ..sandbox.terminal import Terminal


SIGWINCH = 28  # everywhere
SIGCONT = 19 if sys.platform == "darwin" else 18
#: How much that was typed may wait for a shell that does not read. Then typing waits.
_TYPED_AHEAD = 65536
#: The terminal inside is hung up: how long its shell may take to end.
_LAST_PATIENCE = 5.0


def on_this_terminal(sandbox: Sandbox, seconds: float | None) -> int:
    """An interactive shell on our standard input and output. Its exit status; 124 when the time was up."""
    with waiting_among_threads((SIGWINCH, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM)) as signals:
        size = os.get_terminal_size(0)
        terminal = sandbox.terminal(
            rows=size.lines or 24, cols=size.columns or 80, term=os.environ.get("TERM", "dumb")
        )
        guard = TerminalGuard()
        try:
            tty.setraw(0, termios.TCSADRAIN)
            return _Relay(terminal, signals, seconds).run()
        finally:
            guard.close()
            terminal.close()


class _Relay:
    def __init__(self, terminal: Terminal, signals: Signals, seconds: float | None) -> None:
        self._terminal = terminal
        self._signals = signals
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._typed = b""  # read from the user, not yet taken by the shell
        self._listening = True

    def run(self) -> int:
        """Relay until the shell ends, the time is up, or a signal asks us to end."""
        while True:
            poll = select.poll()
            poll.register(self._signals.descriptor, select.POLLIN)
            poll.register(self._terminal.fileno(), select.POLLIN | (select.POLLOUT if self._typed else 0))
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
                        if number == SIGCONT:  # we were stopped, and another program had the terminal
                            tty.setraw(0, termios.TCSADRAIN)
                        size = os.get_terminal_size(0)
                        self._terminal.resize(size.lines or 24, size.columns or 80)
                elif fd == 0:
                    self._read_keys()
                else:
                    if event & select.POLLOUT:
                        self._typed = self._typed[self._terminal.write_some(self._typed) :]
                    if event & ~select.POLLOUT and not self._show():
                        status = self._terminal.wait(_LAST_PATIENCE)
                        return 128 + SIGHUP if status is None else status

    def _read_keys(self) -> None:
        keys = os.read(0, 4096)
        if keys:
            self._typed += keys
        else:  # the user's terminal is gone: the shell hears what it would have heard from its own
            self._listening = False
            self._typed += b"\x04"

    def _show(self) -> bool:
        """Pass on what the shell prints; False when it is over."""
        data = self._terminal.read_some()
        if data is None:
            return True
        write_all(1, data)
        return bool(data)
