"""The command line. Each command, or pair of opposite commands, is one file, loaded on demand."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: Exit status if staddle, not the command, failed.
OURS = 125

#: Coding agents that are commands of their own: `staddle claude` is `staddle agent claude`.
AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
_COMMANDS = {
    "claude": "let Claude Code work on a copy of this project, then review what it did",
    "codex": "the same with Codex CLI",
    "gemini": "the same with Gemini CLI",
    "opencode": "the same with opencode",
    "aider": "the same with Aider",
    "review": "commit, keep or discard what an agent has done",
    "allow": "answer a running agent that asks for a host",
    "run": "run a command, a script or a file confined",
    "shell": "work in a confined shell, on this terminal or from a pipe",
    "tui": "see what an agent does in a sandbox, and steer it",
    "diff": "show what a kept sandbox has changed",
    "commit": "write the changes of a kept sandbox to its workspace",
    "discard": "drop changes of a kept sandbox",
    "snapshot": "take a snapshot of a kept sandbox",
    "restore": "restore a snapshot of a kept sandbox",
    "log": "list the points of a kept sandbox: its commands that changed files",
    "show": "show what one of these commands changed",
    "undo": "take back commands in a kept sandbox",
    "bisect": "find the command in a kept sandbox after which a test fails",
    "blame": "show which command wrote each line of a file in a kept sandbox",
    "ls": "list kept sandboxes",
    "rm": "remove kept sandboxes with their changes",
    "cache": "list or clear the package cache of this host",
    "base": "import images as root file systems for sandboxes",
    "fleet": "run commands in sandboxes on the nodes of a Ray cluster",
    "explain": "print what a run would be allowed, line by line, and run nothing",
    "learn": "run a command once, and propose the smallest policy that it needs",
    "audit": "read an audit log, and see whether a line is missing",
    "doctor": "show what this host can enforce, and how to get the rest",
    "serve": "hold sandboxes for other programs, which list, attach and steer them",
    "ps": "list the sandboxes of a server",
    "attach": "work in a sandbox of a server, on this terminal; leave it and come back",
    "logs": "print the output of a sandbox of a server",
    "stop": "close sandboxes of a server, or the server",
    "mcp": "serve sandboxes as tools of the Model Context Protocol",
    "agent": "start a coding agent in another way, or change its settings",
    "jail": "let a coding agent work on a git worktree, and review what it did",
    "docs": "print a page of the documentation",
    "completion": "print a script that completes these commands in bash, zsh or fish",
}

#: Options with which `staddle claude` and its like may need no sandbox on layers.
_OTHERWISE = {"-h", "--help", "--way", "--backend", "--install", "--remove", "--print", "--check", "--serve"}

#: Commands that are functions in the file of another command.
_FILE_OF = {
    "discard": "commit",
    "restore": "snapshot",
    "rm": "ls",
    **dict.fromkeys(("logs", "stop"), "ps"),
    **dict.fromkeys(("log", "show", "undo", "bisect", "blame"), "history"),
}

_HELP = """\
staddle runs an AI agent's commands with access only to what you allow.

usage: staddle COMMAND [options] ...

{commands}

  staddle claude                           Claude Code on a copy of this project, then a review
  staddle run -- pytest -q                 read this directory and your toolchains; no network
  staddle run --write out -- make          the same, and ./out may be written
  staddle run -c 'ls | wc -l'              a line of shell
  staddle shell                            a confined shell for yourself
  staddle run --keep fix -- ./agent        changes go to a layer, kept as `fix`
  staddle diff fix                         show its changes; then `staddle commit fix`
  staddle explain --write out -- make      what that would allow, and why
  staddle learn -- make test               the smallest policy that it needs
  staddle doctor                           what this host can enforce

`staddle COMMAND --help` describes each command, `staddle docs` has the documentation.
"""


#: The status after SIGPIPE: nobody read our output to the end (`staddle diff | grep -q`). Not a failure.
_UNREAD = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; 125 is our own failure."""
    gc.disable()  # too short-lived for garbage collection
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"] and words[1:2] and words[1] in _COMMANDS:
        words = [words[1], "--help"]  # `help run` is `run --help`
    name = words[0] if words else "--help"
    try:
        if name in ("--help", "-h", "help"):
            commands = "\n".join(f"  {command:<10} {text}" for command, text in _COMMANDS.items())
            print(_HELP.format(commands=commands), end="")
            return 0 if words else OURS
        if name in ("--version", "-V"):
            from .. import __version__

            print(f"staddle {__version__}")
            return 0
        if name == "jail-exec":
            return _jail_exec(words[1:])
        if name in AGENTS:
            _begin_sandbox(words[1:])
            words, name = ["agent", *words], "agent"
        if name not in _COMMANDS:
            from ..errors import UsageError

            fix = _meant(name)
            if name == "sessions":
                fix = "`staddle ls` lists kept sandboxes, `staddle rm NAME` removes one"
            raise UsageError(f"staddle has no command {name!r}", fix=fix)
        function = name if name in _FILE_OF else "main"
        file = __import__(f"staddle.cli.{_FILE_OF.get(name, name)}", fromlist=[function])
        status: int = getattr(file, function)(words[1:])
        return status
    except BrokenPipeError:
        # The reader of our output is gone; the interpreter must not report it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _UNREAD
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _complain(error)


def _begin_sandbox(words: Sequence[str]) -> None:
    """Start what a whole agent's sandbox waits for longest, unless an option may say otherwise."""
    own = words[: words.index("--")] if "--" in words else words
    if sys.platform == "linux" and not _OTHERWISE & {word.partition("=")[0] for word in own}:
        from ..forkserver.start import AHEAD
        from ..interrupts import uninterrupted

        uninterrupted(AHEAD.begin)


def _meant(name: str) -> str:
    """Return a fix: the most similar command to an unknown name, or a list of all."""
    from difflib import get_close_matches

    near = get_close_matches(name, _COMMANDS, 1)
    return f"did you mean {near[0]}?" if near else f"choose {', '.join(_COMMANDS)}, or --help"


def command() -> NoReturn:
    """Run `main` as the `staddle` command, and exit without the interpreter's cleanup."""
    _open_standard_streams()
    status = main()
    _leave_nothing()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or _UNREAD  # the reader of our output is gone
    os._exit(status)


def _open_standard_streams() -> None:
    """Open the null device in place of standard streams that our caller closed (`staddle run … >&-`)."""
    try:
        for number in range(3):
            os.fstat(number)
    except OSError:
        from ..linux.open_files import have_standard_streams

        have_standard_streams()
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open until exit
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _leave_nothing() -> None:
    """Wait for layers that are being deleted, and remove cgroups, as atexit handlers would."""
    stores = sys.modules.get("staddle.sandbox.workspace.stores")
    if stores is not None:
        stores.close_stores()
    places = sys.modules.get("staddle.policy.own_places")
    if places is not None:
        places.remove_made()
    cgroups = sys.modules.get("staddle.limits.host_cgroups")
    if cgroups is not None:
        cgroups.close_at_exit()


def _complain(error: Exception) -> int:
    """Print an error in one sentence. For an unexpected one, ask for a bug report."""
    from ..display import shown
    from ..errors import StaddleError

    if isinstance(error, StaddleError | OSError):
        from .report import say_error

        say_error(error)
    elif os.environ.get("STADDLE_DEBUG"):
        raise error
    else:
        sentence = f"{type(error).__name__}: {error}"
        print(
            f"staddle: this is a bug, please report it: {shown(sentence)} (STADDLE_DEBUG=1 shows where)",
            file=sys.stderr,
        )
    return OURS


def _jail_exec(words: list[str]) -> int:
    """Execute the internal launcher, so that its exit codes are ours."""
    from ..launch.contract import helper_command

    argv = helper_command(*words) if len(words) == 1 else helper_command("")
    os.execv(argv[0], argv)  # noqa: S606 - without a shell
