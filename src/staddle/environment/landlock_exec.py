"""Confine commands to writable_paths with Landlock alone, for programs that start commands themselves.

    argv = wrap_bash_command(["bash", "-c", "make"], "/src/project", ["build/**"])
    subprocess.run(argv)

The command line first runs a small program of staddle (`run_jail_exec`), which confines itself and then
executes the command. The writable paths are in its arguments, not in its environment, so the command inherits
nothing that shows or widens them. The caller sets the variables and the directory.
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

#: From this version on, Landlock controls truncating and moving between directories (Linux 6.2).
OLDEST_ABI = 3
ARGUMENTS, CONFINEMENT, EXEC = 2, 3, 4
#: Variables of the caller that are not passed: the home and the temporary directory inside are private.
_PRIVATE = frozenset(("HOME", "LOGNAME", "OLDPWD", "PWD", "TEMP", "TMP", "TMPDIR", "USER"))


def probe_landlock() -> None:
    """Raise LandlockUnavailable unless this kernel's Landlock can enforce writable_paths. Changes nothing."""
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
    """Return the argument list that runs `cmd` confined to the globs below `anchor`. Checks the globs."""
    if isinstance(cmd, str | bytes) or not cmd:
        raise PolicyError(
            "a command is a list of arguments",
            fix=f'wrong: {cmd!r}  right: ["bash", "-c", "..."]',
            why="splitting a text would be guessing",
        )
    globs = parse_globs(writable_paths).globs
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    # Spell a glob `--` differently, so that it is not the separator.
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
    """Execute the command in `-- ANCHOR GLOB... -- COMMAND ARG...`, confined. Returns only on failure.

    2: invalid arguments; 3: confinement failed; 4: the command could not be started. If the command works in
    a copy (root in a container), this process waits for its end, writes the changes that match the globs
    back, and returns its exit status.
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
        os.execve(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - without a shell
    except OSError as error:
        return _said(error, EXEC)


def _attended(wrapped: WrappedCommand, copy: CommandLayer, confined: CommandConfinement) -> int:
    """Run it on our own streams, commit the changes that match the globs, and return its exit status."""
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
    """Return the error for a host on which no path can be opened safely."""
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
    """Return the caller's variables, except the private ones."""
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
