"""The commands of `staddle shell` itself: %snapshot, %restore, %reset, %diff, %commit, %help.

They are typed at the prompt, or are lines of standard input. They come from the user's input, never from the
output of a program inside. No shell command begins with a percent sign; a word that is not in the list is
left to bash (`%1` is a job).

The user's bash is a program in the sandbox. Before such a command, and when a kept sandbox ends, its state is
transferred to the sandbox's main session: bash writes it to a file inside, and the session replays it. A new
bash begins with the state of the session.
"""

from __future__ import annotations

import os
import time

from ..display import shown
from ..errors import CommitRefused, InvalidCall, StaddleError
from ..shell.quoting import quoted
from ..shell.state import Dump, SavedShell, question
from .report import told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..layers.changes import Change
    from ..sandbox.sandbox import Sandbox
    from ..sandbox.workspace.snapshot import Snapshot

HELP = """\
%snapshot [LABEL]     remember this moment: files, variables, functions, directory
%restore [LABEL]      go back to it (default: the last one); running processes are killed
%reset                start again: files and shell as at the beginning
%diff [PATH...]       show what has changed in the workspace
%commit [PATH...]     write that to your directory; on a terminal you are asked first
%help                 this list"""
NAMES = ("snapshot", "restore", "reset", "diff", "commit", "help")
#: Seconds that bash may take to write its state, once it is at its prompt.
_PATIENCE = 10.0
#: Settings that depend on a terminal. They are not transferred.
_OF_A_TERMINAL = (b"emacs", b"vi", b"monitor", b"history", b"histexpand")
_VARIABLES = (
    *("TERM", "COLUMNS", "LINES", "SHLVL", "BASH_ENV", "OPTIND", "OPTERR"),
    *("HISTFILE", "HISTSIZE", "HISTFILESIZE", "PS0", "PS1", "PS2", "PROMPT_COMMAND"),
)
_MOST_BYTES = 32 << 20


def is_command(line: str) -> bool:
    """Whether a line is one of the shell's own commands."""
    word = line.split(None, 1)[0] if line.strip() else ""
    return line[:1] == "%" and word[1:] in NAMES


class UserShell:
    """The user's bash: starts it with the main session's state, and transfers its state back."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._secret = os.urandom(8).hex().encode()
        self._name, self._place = f".staddle-{os.urandom(8).hex()}", ""
        self._used = False
        #: Printed by bash on its terminal after it has written its state; terminals ignore it.
        self.mark = b"\x1b]7770;" + os.urandom(8).hex().encode() + b"\x07"

    def prepare(self) -> str:
        """Write the start file of a bash into the sandbox, and return its path."""
        self.forget()
        self._write_question()
        self._sandbox.files.write(f"{self._place}/start", self._start())
        return f"{self._place}/start"

    def _write_question(self) -> None:
        # With Landlock, a private directory replaces /tmp.
        directory = self._sandbox._now().main._exec_context.env.get("TMPDIR") or "/tmp"
        files, self._used, self._place = self._sandbox.files, True, f"{directory}/{self._name}"
        out = quoted(os.fsencode(f"{self._place}/state"))
        text = question(self._secret, b">" + out, b"\\builtin ")
        files.write(f"{self._place}/tell", text, parents=True)
        mark = b"".join(b"\\%03o" % byte for byte in self.mark)
        ask = b"\\builtin . %b\n\\builtin printf %b\n" % (
            quoted(os.fsencode(f"{self._place}/tell")),
            quoted(mark),
        )
        files.write(f"{self._place}/tell-and-mark", ask)

    def _start(self) -> bytes:
        """Return the start file, which restores the main session's state. At exit, bash writes its state."""
        shell = self._sandbox._now().main._shell
        with shell.lock():
            dump = shell.saved().dump
        tell = quoted(b"\\builtin . " + quoted(os.fsencode(f"{self._place}/tell")))
        lines = [
            b"if [[ $- == *i* && -r ~/.bashrc ]]; then . ~/.bashrc; fi",
            *([] if dump is None else [dump.without_names(_VARIABLES).replay(None), *_options(dump)]),
            b"\\unset BASH_ENV",
            b"[[ $(\\builtin trap -p EXIT) ]] || \\builtin trap -- %b EXIT" % tell,
        ]
        return b"\n".join(lines) + b"\n"

    def request(self, *, mark: bool = False) -> bytes:
        """Return the line that makes bash write its state, and then print `mark`."""
        if not self._used:
            self._write_question()
        file = f"{self._place}/{'tell-and-mark' if mark else 'tell'}"
        return b" \\builtin . " + quoted(os.fsencode(file)) + b"\n"

    def take(self, wait: Callable[[], bool] = lambda: False) -> bool:
        """Transfer the state that bash has written to the main session. Returns whether there was one.

        `wait` is called between two checks, and returns whether to check again.
        """
        while (dump := self._told()) is None:
            if not wait():
                return False
        if dump.exit_trap is not None and b"/.staddle-" in dump.exit_trap:
            dump.without_trap(b"EXIT")
        dump = dump.without_options(_OF_A_TERMINAL)
        shell = self._sandbox._now().main._shell
        with shell.lock():
            if (before := shell.saved().dump) is not None:
                dump = dump.with_names_of(before, _VARIABLES)
            shell.become(SavedShell(dump, 0, os.fsencode(dump.state().cwd)))
        return True

    def _told(self) -> Dump | None:
        """Return the dump if bash has written all of it, and remove the file."""
        try:
            data = self._sandbox.files.read_bytes(f"{self._place}/state", limit=_MOST_BYTES)
        except (OSError, StaddleError):
            return None
        found = Dump.find(self._secret, data)
        if found is None:
            return None
        self._remove(f"{self._place}/state")
        try:
            found.state()
        except (ValueError, IndexError):
            return None
        return found

    def forget(self) -> None:
        """Remove our files from the sandbox."""
        if self._used:
            self._remove(self._place)
            self._used = False

    def _remove(self, path: str) -> None:
        try:
            self._sandbox.files.remove(path, recursive=True)
        except (OSError, StaddleError):
            return


def _options(dump: Dump) -> list[bytes]:
    state = dump.state()
    fixed = ("restricted_shell", "login_shell", "onecmd", "noexec", "privileged")
    names = [name for name in state.options if name not in fixed]
    switched = [
        b"\\builtin set -o %b" % name.encode() for name in names if name.encode() not in _OF_A_TERMINAL
    ]
    return switched + [b"\\builtin shopt -s %b" % name.encode() for name in state.shopts if name not in fixed]


class ShellCommands:
    """Runs the commands. `ask` asks the user for confirmation; None: there is no user to ask."""

    def __init__(self, sandbox: Sandbox, ask: Callable[[str], bool] | None = None) -> None:
        self._sandbox, self._ask = sandbox, ask
        self._points: dict[str, Snapshot] = {}
        #: Whether the last command has ended the user's bash, so that another one is needed.
        self.replaced = False
        self.failed = False

    def do(self, line: str) -> str:
        """Run the command. Returns the text for the user; an error is returned as text and sets `failed`."""
        name, *words = line[1:].split()
        self.replaced = self.failed = False
        try:
            return str(getattr(self, f"_{name}")(words))
        except CommitRefused as refused:
            self.failed = True
            items = [f"  {shown(one.path)}: {shown(one.why)}" for one in (*refused.conflicts, *refused.held)]
            return "\n".join(["nothing was written, these need a second look:", *items])
        except (StaddleError, OSError) as error:
            self.failed = True
            return f"staddle: {told(error)}"

    def needs_state(self, line: str) -> bool:
        """Whether the command needs the state of the user's bash."""
        return line.split(maxsplit=1)[0] in ("%snapshot", "%diff", "%commit")

    def _help(self, words: list[str]) -> str:
        return HELP

    def _snapshot(self, words: list[str]) -> str:
        label = " ".join(words) or str(len(self._points) + 1)
        if "/" in label:
            raise InvalidCall(
                f"{label!r} is no label",
                why="it looks like a file, and %snapshot writes none",
                fix="leave the slash out; `staddle snapshot -c SCRIPT --save FILE` writes a file",
            )
        self._points.pop(label, None)
        self._points[label] = self._sandbox.snapshot(label)
        return f"snapshot {shown(label)}"

    def _restore(self, words: list[str]) -> str:
        label = " ".join(words) or next(reversed(self._points), "")
        if label not in self._points:
            known = ", ".join(map(shown, self._points)) or "there is none"
            raise InvalidCall(
                f"there is no snapshot {label!r}", why=known, fix="take one with %snapshot LABEL"
            )
        self.replaced = True
        self._sandbox.restore(self._points[label])
        return f"restored {shown(label)}"

    def _reset(self, words: list[str]) -> str:
        self._sandbox.reset()
        self._points.clear()
        self.replaced = True
        return "everything is as at the start"

    def _changes(self, words: list[str]) -> list[Change]:
        return self._sandbox.diff(words or None)

    def _diff(self, words: list[str]) -> str:
        from .diff import text_of
        from .kept import row

        changes = self._changes(words)
        return "\n".join(f"{row(one)}\n{text_of(one)}".rstrip() for one in changes) or "no changes"

    def _commit(self, words: list[str]) -> str:
        from ..display import counted
        from .kept import row

        review = self._sandbox.review(words or None)
        if not review.changes:
            return "nothing to commit"
        listed = "\n".join(map(row, review.changes))
        if self._ask is not None and not self._ask(f"{listed}\nWrite these to your directory? [y/N] "):
            return "nothing was done"
        done = review.commit()
        return f"{counted(len(done.changes), 'change')} written"


def patiently(seconds: float = _PATIENCE) -> Callable[[], bool]:
    """Return a function that waits between two checks, for as long as bash may take."""
    until = time.monotonic() + seconds

    def wait() -> bool:
        time.sleep(0.01)
        return time.monotonic() < until

    return wait
