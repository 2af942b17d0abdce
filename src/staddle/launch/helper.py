"""Starting the helper (inside/__main__.py): this runs in the caller's process, with its rights."""

from __future__ import annotations

import os
import sys

from ..errors import LaunchFailed
from ..ipc.exec_spec import ExecSpec, encode
from ..ipc.status import sentence
from ..linux.fileio import memory_file
from .contract import Launch

#: The helper itself starts with this and nothing of the caller's: it can be read in /proc.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}


def command(role: str, *where: str) -> tuple[str, ...]:
    """The helper's command line in one of its roles, with the number of a descriptor or a file's path."""
    return python("inside/__main__.py", role, *where)


def python(program: str, *words: str) -> tuple[str, ...]:
    """The command line that runs a file of this package in an interpreter without site-packages."""
    if not sys.executable:
        raise LaunchFailed(
            "the helper cannot be started",
            why="this Python does not know its own interpreter (sys.executable is empty)",
            fix="run staddle from an ordinary Python",
        )
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # The real interpreter: a virtual environment's link would only make it look for packages.
    return (os.path.realpath(sys.executable), "-I", "-S", os.path.join(package, program), *words)


def launch(spec: ExecSpec, *, relays: bool = True) -> Launch:
    """The helper, ready to be started once with this specification; `status` and `launcher` are set here."""
    read, write = os.pipe2(os.O_CLOEXEC)
    kept = [write]

    def close() -> None:
        while kept:
            os.close(kept.pop())

    try:
        complete = spec.replace(status=b"%d" % write, launcher=os.getpid())
        kept.append(file := memory_file(encode(complete)))
        argv = command("jail-exec", str(file))
    except BaseException:
        close()
        os.close(read)
        raise
    return Launch(
        argv=argv,
        env=dict(ENVIRONMENT),
        cwd="/",
        pass_fds=(write, file),
        status=read,
        failure=sentence,
        relays=relays,
        close=close,
        uid=spec.uid if spec.uid >= 0 else None,
    )
