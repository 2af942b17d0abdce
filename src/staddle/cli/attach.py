"""`staddle attach ID`: a terminal of a server's sandbox, on this terminal; and `staddle run --in ID`."""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
import termios
import threading
import tty

from ..errors import UsageError
from ..launch.foreground import TerminalGuard
from ..launch.signals import SIGHUP, SIGINT, SIGQUIT, SIGTERM, waiting_among_threads
from ..linux.fileio import write_all
from .options import HELP, Option, help_rows, parse, parse_among
from .ps import SERVER, running_client
from .report import say
from .terminal import SIGWINCH, size_of_this

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..server.client import ServerSandbox, ServerTerminal

#: Ctrl-P Ctrl-Q detaches, as with containers. A Ctrl-P that is followed by another key is passed on.
_DETACH = b"\x10\x11"
_OPTIONS = (
    Option("new", "", "open a new terminal, even if one is open"),
    Option("terminal", "TID", "attach to this terminal (default: the newest, or a new one)"),
    SERVER,
    HELP,
)
_HELP = """\
Attach this terminal to a sandbox of a server. Ctrl-P Ctrl-Q detaches; what runs goes on.

usage: staddle attach [options] ID

ID is an id or a name from `staddle ps`. The exit status is the shell's; 0 after detaching.

{options}
"""
_RUN = (
    Option("in", "ID", "the sandbox: an id or a name from `staddle ps`"),
    Option("command", "SCRIPT", "run this line of shell", short="c"),
    Option("session", "NAME", "run it in this session (default: main)"),
    Option("timeout", "SECONDS", "end it after this time, or none (default: the policy's)"),
    Option("cwd", "DIR", "run it in this directory inside"),
    Option("stdin", "", "read standard input to its end, and give it to the command"),
    SERVER,
    HELP,
)
_RUN_HELP = """\
Run a command in a sandbox of a server. Its output is passed through; the exit status is its own.

usage: staddle run --in ID [options] -- COMMAND [ARGUMENTS]
       staddle run --in ID [options] -c 'SCRIPT'

It runs in the session's shell: a `cd` or a variable stays for the next command. Ctrl-C ends it.

{options}
"""


def main(words: Sequence[str]) -> int:
    """Attach until the shell ends, or the user detaches."""
    parsed = parse_among(words, _OPTIONS, "attach")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if len(parsed.words) != 1:
        raise UsageError("staddle attach needs one id", fix="see `staddle ps`")
    if not all(map(os.isatty, range(2))):
        raise UsageError("staddle attach needs a terminal", fix="use `staddle run --in ID -- COMMAND`")
    sandbox = running_client(parsed).get(parsed.words[0])
    return _Attachment(_terminal(sandbox, parsed.one("terminal"), new=parsed.on("new"))).run()


def _terminal(sandbox: ServerSandbox, wanted: str | None, *, new: bool) -> ServerTerminal:
    found = [each for each in sandbox.terminals() if wanted in (None, each.id)]
    if wanted is not None and not found:
        raise UsageError(f"the sandbox has no terminal {wanted!r}", fix="see `staddle ps ID`")
    if found and not new:
        return found[-1]
    rows, cols = size_of_this()
    return sandbox.terminal(rows=rows, cols=cols, term=os.environ.get("TERM", "dumb"))


class _Attachment:
    """The relay: this thread passes keys on, another one shows output."""

    def __init__(self, terminal: ServerTerminal) -> None:
        self._socket, self._messages = terminal.attach()
        self._status: int | None = 0
        self._ended, self._ending = os.pipe()
        self._held = b""

    def run(self) -> int:
        """Relay; return the exit status."""
        with waiting_among_threads((SIGWINCH, SIGHUP, SIGINT, SIGQUIT, SIGTERM)) as signals:
            guard = TerminalGuard()
            modes = termios.tcgetattr(0)
            try:
                tty.setraw(0, termios.TCSADRAIN)
                self._resize()
                threading.Thread(target=self._show, daemon=True).start()
                return self._relay(signals)
            finally:
                termios.tcsetattr(0, termios.TCSADRAIN, modes)
                guard.close()
                self._socket.close()

    def _relay(self, signals: object) -> int:
        from ..server.websocket import BINARY, CLOSE

        descriptor: int = signals.descriptor  # type: ignore[attr-defined]
        while True:
            ready, _, _ = select.select((0, descriptor, self._ended), (), ())
            if self._ended in ready:
                return 128 + SIGHUP if self._status is None else self._status
            if descriptor in ready:
                for number in signals.read():  # type: ignore[attr-defined]
                    if number != SIGWINCH:
                        return 128 + int(number)
                    self._resize()
            if 0 in ready:
                keys = self._held + os.read(0, 4096)
                if keys == self._held or _DETACH in keys:
                    self._messages.send(BINARY, keys.partition(_DETACH)[0])
                    self._messages.send(CLOSE, b"\x03\xe8")
                    say("detached\r")
                    return 0
                self._held = _DETACH[:1] if keys.endswith(_DETACH[:1]) else b""
                self._messages.send(BINARY, keys[: len(keys) - len(self._held)])

    def _resize(self) -> None:
        from ..server.websocket import TEXT

        rows, cols = size_of_this()
        self._messages.send(TEXT, json.dumps({"rows": rows, "cols": cols}).encode())

    def _show(self) -> None:
        from ..server.websocket import BINARY, WebSocketError

        try:
            while (message := self._messages.message()) is not None:
                kind, data = message
                if kind == BINARY:
                    write_all(1, data)
                elif "exit_code" in (said := json.loads(data)):
                    self._status = said["exit_code"]
        except (WebSocketError, OSError, ValueError):
            self._status = None
        finally:
            os.close(self._ending)


def run_in(words: Sequence[str]) -> int:
    """Run a command in a sandbox of a server."""
    parsed = parse(words, _RUN, "run --in")
    if parsed.on("help"):
        print(_RUN_HELP.format(options=help_rows(_RUN)), end="")
        return 0
    script = parsed.one("command")
    if (script is None) == (not parsed.words):
        raise UsageError("staddle run --in needs one command", fix="write `-- COMMAND`, or -c 'SCRIPT'")
    sandbox = running_client(parsed).get(parsed.one("in") or "")
    options: dict[str, object] = {}
    if (timeout := parsed.one("timeout")) is not None:
        options["timeout"] = None if timeout == "none" else _seconds(timeout)
    if parsed.on("cwd"):
        options["cwd"] = parsed.one("cwd")
    if parsed.on("stdin"):
        options["stdin"] = sys.stdin.buffer.read()
    where = sandbox.session(parsed.one("session") or "main")
    stream = where.stream(shlex.join(parsed.words) if script is None else script, **options)
    try:
        for chunk in stream:
            write_all(1 if chunk.stream == "stdout" else 2, chunk.data)
    except KeyboardInterrupt:
        stream.close()
    if stream.result is None:
        return 130
    if stream.result.timed_out:
        say(stream.result.why or "its time was up; --timeout gives it more")
        return 124
    return stream.result.exit_code


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--timeout {text!r} is not a number of seconds", fix="write it as in 90") from None
