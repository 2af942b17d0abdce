"""Commands bounded by writable_paths with Landlock alone, for code that starts them itself.

    argv = wrap_bash_command(["bash", "-c", "make"], "/src/project", ["build/**"])
    subprocess.run(argv)

The command line goes through a small program of ours that confines itself and becomes the
command; `run_jail_exec` is that program. What may be written is in its arguments and not in
its environment, so the command inherits nothing that shows or widens it. Variables and directory
are those that the caller starts it with.
"""

from __future__ import annotations

import os
import sys

from ..display import shown
from ..errors import CommandNotFound, LandlockUnavailable, PolicyError, StaddleError
from ..launch.foreground import attend
from ..linux import landlock
from ..linux.fileio import current_directory
from ..linux.openat2 import open_without_symlinks
from .local import LocalEnvironment
from .writable_paths import parse_globs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..files.beneath import AnyPath
    from ..wrapping import WrappedCommand
    from .command_confinement import CommandConfinement
    from .command_layer import CommandLayer

#: Truncating and moving between directories are held from here on (Linux 6.2).
OLDEST_ABI = 3
ARGUMENTS, CONFINEMENT, EXEC = 2, 3, 4
#: Variables of the caller that are not passed on: the home and the temporary directory inside are private.
_PRIVATE = frozenset(("HOME", "LOGNAME", "OLDPWD", "PWD", "TEMP", "TMP", "TMPDIR", "USER"))


def probe_landlock() -> None:
    """LandlockUnavailable unless this kernel's Landlock can hold writable_paths. Changes nothing."""
    abi = landlock.abi()
    if abi < OLDEST_ABI:
        raise LandlockUnavailable(
            "Landlock cannot enforce writable_paths here",
            why=landlock.why_not() or f"it is version {abi} and version {OLDEST_ABI} is needed",
            fix="use Linux 6.2 or newer with Landlock switched on, or another backend",
        )
    if (error := _openat2_unavailable()) is not None:
        raise error


def wrap_bash_command(cmd: Sequence[str], anchor: AnyPath, writable_paths: Iterable[str]) -> list[str]:
    """The argument list that runs `cmd` bounded by the globs below `anchor`; refuses bad globs now."""
    if isinstance(cmd, str | bytes) or not cmd:
        raise PolicyError(
            "a command is a list of arguments",
            fix=f'wrong: {cmd!r}  right: ["bash", "-c", "..."]',
            why="splitting a text would be guessing",
        )
    globs = parse_globs(writable_paths).globs
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    # A glob that reads like the separator is spelled so that it does not.
    words = [f"./{glob.text}" if glob.text == "--" else glob.text for glob in globs]
    return [
        sys.executable,
        "-I",
        "-S",
        program,
        "--",
        os.path.abspath(os.fsdecode(anchor)),
        *words,
        "--",
        *cmd,
    ]


def run_jail_exec(args: Sequence[str]) -> int:
    """Become the command of `-- ANCHOR GLOB... -- COMMAND ARG...`, confined. Returns only when that fails.

    2: the arguments make no sense; 3: it could not be confined; 4: it could not be started. Where the command
    works in a copy (root in a container), this process stays until its end, writes back what the globs
    match, and returns its exit status.
    """
    try:
        anchor, globs, command = _parsed(list(args))
        environment = LocalEnvironment(anchor, globs, backend="landlock")
    except PolicyError as error:
        return _said(error, ARGUMENTS)
    except OSError as error:
        unavailable = _openat2_unavailable()
        return _said(error, ARGUMENTS) if unavailable is None else _said(unavailable, CONFINEMENT)
    try:
        probe_landlock()
        confined, root = environment._confinement, environment._root
        wrapped, copy = confined.prepared(root, command, _variables(), current_directory())
    except CommandNotFound as error:
        return _said(error, EXEC)
    except (StaddleError, OSError) as error:
        return _said(error, CONFINEMENT)
    if copy is not None:
        return _attended(wrapped, copy, confined)
    launch = wrapped.launch()
    try:
        for fd in launch.pass_fds:
            os.set_inheritable(fd, True)
        if launch.status is not None:
            # Never read: the helper's exit status has the same information.
            os.set_inheritable(launch.status, True)
        os.chdir(launch.cwd)
        os.execve(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - this is what we are for
    except OSError as error:
        return _said(error, EXEC)


def _attended(wrapped: WrappedCommand, copy: CommandLayer, confined: CommandConfinement) -> int:
    """Run it on our own streams, and take over the changes that the globs match; its exit status."""
    try:
        outcome = attend(wrapped.launch())
        for event in confined.take_over(copy):
            sys.stderr.write(f"staddle: {shown(event.what)}: {shown(event.rule)}\n")
        return outcome.status
    except (StaddleError, OSError) as error:
        return _said(error, CONFINEMENT)
    finally:
        copy.close()
        confined.close()


def _openat2_unavailable() -> LandlockUnavailable | None:
    """The error of a host on which no path can be opened safely."""
    try:
        os.close(open_without_symlinks("/", os.O_PATH))
    except OSError as error:
        return LandlockUnavailable(
            "paths cannot be opened safely here",
            why=f"the call openat2 fails ({error.strerror}): the kernel is old, or a filter hides it",
            fix="use Linux 5.6 or newer, and a container whose filter knows openat2",
        )
    return None


def _variables() -> dict[str, str]:
    """The caller's variables, but for the private ones."""
    return {name: value for name, value in os.environ.items() if name and name not in _PRIVATE}


def _parsed(args: list[str]) -> tuple[str, list[str], list[str]]:
    if args[:1] != ["--"] or "--" not in args[2:]:
        raise PolicyError(
            "usage: -- ANCHOR GLOB... -- COMMAND ARG...",
            why="there are not two `--` among the arguments",
            fix="leave the command line as wrap_bash_command() made it",
        )
    cut = args.index("--", 2)
    if not args[cut + 1 :]:
        raise PolicyError(
            "there is no command after the second --", why="nothing could be started", fix="give a command"
        )
    return args[1], args[2:cut], args[cut + 1 :]


def _said(error: Exception, code: int) -> int:
    sys.stderr.write(f"staddle: {shown(str(error))}\n")
    return code
