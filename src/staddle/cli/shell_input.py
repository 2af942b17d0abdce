"""`staddle shell` with its own commands: at a terminal, or among the lines of standard input."""

from __future__ import annotations

import os
import select
import struct
import termios
import time

from ..display import shown
from ..errors import StaddleError
from ..launch.contract import give_pipes
from ..launch.running import GRACE
from ..launch.signals import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, waiting_among_threads
from ..linux.fileio import write_all
from ..observe.redaction import RedactedStreams
from ..sandbox.spawn import spawn
from .report import say, say_error
from .shell_commands import ShellCommands, UserShell, is_command, patiently

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..ipc.agent_client import SpawnedProcess
    from ..launch.foreground import Signals
    from ..sandbox.sandbox import Sandbox
    from ..sandbox.terminal import Terminal

#: Seconds for bash to echo typed text, and milliseconds without output after which it is finished.
_ECHO, _QUIET = 0.5, 30
#: Maximum of standard input that is read ahead of the shell.
_READ_AHEAD = 65536


class AtTerminal:
    """The user's bash on a terminal, and the commands typed at its prompt."""

    def __init__(self, sandbox: Sandbox, *, stateful: bool) -> None:
        self._sandbox, self._stateful = sandbox, stateful
        self._user = UserShell(sandbox)
        self._commands = ShellCommands(sandbox, self._agrees)

    def terminal(self, *, rows: int, cols: int, term: str) -> Terminal:
        """Start bash on a terminal inside, with the state of the main session if there is any."""
        if not self._stateful:
            return self._sandbox.terminal(rows=rows, cols=cols, term=term)
        argv = [self._sandbox._now().bash, "--rcfile", self._user.prepare(), "-i"]
        return self._sandbox.terminal(argv, rows=rows, cols=cols, term=term, env=_PROMPT)

    def takes(self, line: str, terminal: Terminal) -> bool:
        """Whether this is a command of ours, typed while bash itself has the terminal."""
        return is_command(line) and _is_at_prompt(terminal.fileno())

    def do(self, line: str, terminal: Terminal) -> Terminal:
        """Run the command. Returns the terminal to continue with."""
        self._show_typed(terminal)
        prompt = self._state_given(terminal)
        write_all(1, b"\r\n")
        if prompt is None and self._commands.needs_state(line):
            self._print("the shell does not report its state")
        rows, cols = terminal.rows, terminal.cols
        self._print(self._commands.do(line))
        if not self._commands.replaced:
            write_all(1, prompt or b"")
            return terminal
        self._stateful = True
        terminal.close()
        return self.terminal(rows=rows, cols=cols, term=os.environ.get("TERM", "dumb"))

    def _show_typed(self, terminal: Terminal) -> None:
        """Show the rest of bash's echo of the line, until there is no more output."""
        quiet = select.poll()
        quiet.register(terminal.fileno(), select.POLLIN)
        until = time.monotonic() + _ECHO
        while time.monotonic() < until and quiet.poll(_QUIET) and (data := terminal.read_some()):
            write_all(1, data)

    def _state_given(self, terminal: Terminal) -> bytes | None:
        """Let bash drop the line and transfer its state to the session. Returns its next prompt, or None.

        The shell then prints a mark. Its echo of our request, before the mark, is not shown.
        """
        try:
            # Ctrl-U: bash discards the line that it has read.
            terminal.write(b"\x15" + self._user.request(mark=True).replace(b"\n", b"\r"))
        except (OSError, StaddleError):
            return None
        more, printed = patiently(), bytearray()

        def wait() -> bool:
            printed.extend(terminal.read_some() or b"")
            return more() and terminal.poll() is None

        if not self._user.take(wait):
            return None
        while self._user.mark not in printed and wait():
            pass
        return bytes(printed.partition(self._user.mark)[2])

    def end(self) -> None:
        """Transfer the state of a finished bash to the session."""
        if self._stateful:
            self._user.take()
        self._user.forget()

    def _agrees(self, question: str) -> bool:
        self._print(question, end="")
        termios.tcflush(0, termios.TCIFLUSH)  # input before the question is no answer
        answer = os.read(0, 1)
        self._print(answer.decode("ascii", "replace") if answer.isalnum() else "")
        return answer in (b"y", b"Y")

    def _print(self, text: str, end: str = "\n") -> None:
        # The terminal is raw, so a newline needs a carriage return.
        write_all(1, (text + end).encode("utf-8", "backslashreplace").replace(b"\n", b"\r\n"))


_TIOCGSID = 0x5429  # Linux; the session of a terminal, also from its master
#: The prompt of the shell in `Sandbox.terminal`.
_PROMPT = {"PS1": r"\u@\h:\w\$ "}


def _is_at_prompt(leader: int) -> bool:
    """Whether the first process on the terminal, the shell, is in the foreground."""
    import fcntl

    try:
        session = struct.unpack("i", fcntl.ioctl(leader, _TIOCGSID, b"\0" * 4))[0]
        return bool(os.tcgetpgrp(leader) == session)
    except OSError:
        return False


class InputLines:
    """Standard input, line by line: input for bash, and our commands between it."""

    def __init__(self, *, commands: bool = True) -> None:
        self._data, self._begins, self.is_over = b"", True, False
        self._commands = commands

    def read(self) -> None:
        """Read more input."""
        data = os.read(0, _READ_AHEAD)
        self._data += data
        self.is_over = not data

    def next(self) -> tuple[bytes, str | None]:
        """Return input for bash, and the command after it."""
        given = b""
        while self._data:
            if self._commands and self._begins and self._data[:1] == b"%":
                line, end, rest = self._data.partition(b"\n")
                if not end and not self.is_over:
                    break  # incomplete line
                text = line.decode("utf-8", "surrogateescape").rstrip()
                self._data = rest
                if is_command(text):
                    return given, text
                given += line + end
                continue
            line, end, self._data = self._data.partition(b"\n")
            given += line + end
            self._begins = bool(end)
        return given, None


class FromInput:
    """A bash that reads the lines of our standard input, except our commands."""

    def __init__(
        self, sandbox: Sandbox, seconds: float | None, *, stateful: bool, commands: bool = True
    ) -> None:
        self._sandbox, self._stateful = sandbox, stateful
        self._user, self._commands = UserShell(sandbox), ShellCommands(sandbox)
        self._lines = InputLines(commands=commands)
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._ending = self._timed_out = False
        self._pipe = -1

    def run(self) -> int:
        """Return the exit status of the last bash, or 124 after a timeout."""
        with (
            waiting_among_threads((SIGHUP, SIGINT, SIGQUIT, SIGTERM)) as signals,
            RedactedStreams(self._sandbox._now().secrets) as ours,
        ):
            self._ours = ours
            try:
                shell = self._start()
                waiting, command = b"", None
                while shell.poll() is None:
                    if not waiting and command is None and self._pipe >= 0:
                        waiting, command = self._lines.next()
                        if not waiting and command is None and self._lines.is_over:
                            self._close()
                    if not waiting and command is not None:
                        shell = self._do(command, shell, signals)
                        command = None
                        continue
                    waiting = self._step(shell, signals, waiting, hungry=command is None)
            finally:
                self._close()
        if self._stateful:
            self._user.take()
        self._user.forget()
        if shell.failure:
            say(shown(shell.failure))
        return 124 if self._timed_out else shell.poll() or 0

    def _start(self) -> SpawnedProcess:
        inside = self._sandbox._now()
        env = {"BASH_ENV": self._user.prepare()} if self._stateful else {}
        theirs, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            if inside.hooks is not None:
                inside.hooks.background((inside.bash,), None)
            stdio = (theirs, self._ours.stdout, self._ours.stderr)
            give_pipes(inside.uid, stdio)
            return spawn(inside, [inside.bash], stdio, env)
        finally:
            os.close(theirs)

    def _step(self, shell: SpawnedProcess, signals: Signals, waiting: bytes, *, hungry: bool) -> bytes:
        """Wait for an event and handle it. Returns the input that bash has not read yet."""
        poll = select.poll()
        poll.register(signals.descriptor, select.POLLIN)
        poll.register(shell.fileno(), select.POLLIN)
        if waiting and self._pipe >= 0:
            poll.register(self._pipe, select.POLLOUT)
        elif hungry and self._pipe >= 0 and not self._lines.is_over:
            poll.register(0, select.POLLIN)
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        ready = dict(poll.poll(None if left is None else left * 1000 + 1))
        self._end(shell, signals)
        if 0 in ready:
            self._lines.read()
        if waiting and self._pipe in ready:
            try:
                return waiting[os.write(self._pipe, waiting[: select.PIPE_BUF]) :]
            except BlockingIOError:
                return waiting
            except BrokenPipeError:  # it has stopped reading
                self._close()
                return b""
        return waiting

    def _end(self, shell: SpawnedProcess, signals: Signals) -> None:
        """Forward signals. End the shell after its timeout, and at once after a second signal."""
        for number in signals.read():
            shell.signal(SIGKILL if self._ending else number, everything=True)
            self._ending = True
            if number != SIGINT:
                self._deadline = time.monotonic() + GRACE
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._timed_out = self._timed_out or not self._ending
            shell.signal(SIGKILL if self._ending else SIGTERM, everything=True)
            self._ending, self._deadline = True, time.monotonic() + GRACE

    def _do(self, command: str, shell: SpawnedProcess, signals: Signals) -> SpawnedProcess:
        """Run the command once bash has finished all earlier input. Returns the bash to continue with."""
        try:
            rest = self._user.request()
        except (OSError, StaddleError) as error:
            say_error(error, f"{command}: ")
            return shell
        while rest and shell.poll() is None:
            rest = self._step(shell, signals, rest, hungry=False)

        def wait() -> bool:
            poll = select.poll()
            poll.register(signals.descriptor, select.POLLIN)
            poll.register(shell.fileno(), select.POLLIN)
            poll.poll(20)
            self._end(shell, signals)
            return shell.poll() is None

        if not self._user.take(wait):
            return shell
        told: Any = self._commands.do(command)
        write_all(2 if self._commands.failed else 1, f"{told}\n".encode("utf-8", "backslashreplace"))
        if not self._commands.replaced:
            return shell
        self._close()
        if shell.poll() is None:
            shell.signal(SIGKILL, everything=True)
        self._stateful = True
        return self._start()

    def _close(self) -> None:
        if self._pipe >= 0:
            fd, self._pipe = self._pipe, -1
            os.close(fd)
