"""A prepared command: what a backend returns and what `launch/` starts; and the one that is our helper.

The helper is inside/__main__.py. This runs in the caller's process, with its rights.
"""

from __future__ import annotations

import os
import sys

from .._value import Value
from ..errors import LaunchFailed
from ..ipc.exec_spec import ExecSpec, encode
from ..ipc.wire import sentence
from ..linux.fileio import memory_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..limits.command_limits import CommandLimits
    from ..network.host.gateway_log import GatewayLog


class Launch(Value):
    """A confined command, ready to be started once.

    `status` is the read end of a pipe on which the launcher tells how far it came, and
    `failure` turns what was read there into a sentence when the command never started; the
    pipe is the taker's to close. `relays` says that the started process passes signals on
    to everything it started, `is_monitored` that it does not, and is not the command either.
    `close` releases our copies of `pass_fds` and whatever else was kept for the start: call it once the
    process is started, or will not be. It never raises.
    `uid` is who the command will be on the host where that is not the caller (root's sandbox
    has an unused id): a pipe made for its streams must belong to it, or it cannot open /dev/stdout.
    `here`, where there is one, starts the same as a child of this process instead of `argv`:
    for a small program of ours with a single thread. It calls its argument in the child
    before anything else, and returns the child's pid. `gateway_log`, where there is a network gateway,
    is what it tells: to be read while the command runs, and finished at the end. `limited` is what
    holds its limits where those take more than its own process: to be closed at the end. `scratch` are the
    private directories that the launcher makes and removes, the others in the first; if the launcher is
    killed, its killer removes them.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    pass_fds: tuple[int, ...] = ()
    status: int | None = None
    failure: Callable[[bytes], str | None] = lambda _: None
    relays: bool = False
    is_monitored: bool = False
    close: Callable[[], None] = lambda: None
    uid: int | None = None
    here: Callable[[Callable[[], None]], int] | None = None
    gateway_log: GatewayLog | None = None
    limited: CommandLimits | None = None
    scratch: tuple[bytes, ...] = ()


#: The helper itself starts with this and nothing of the caller's: it can be read in /proc.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}


def helper_command(role: str, *where: str) -> tuple[str, ...]:
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


def helper_launch(spec: ExecSpec, *, relays: bool = True, limited: CommandLimits | None = None) -> Launch:
    """The helper, ready to be started once with this specification; `status` and `launcher` are set here.

    `limited` are limits that its supervisor holds. The descriptors of its proxy are taken over.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    kept = [write, *spec.proxy]

    def close() -> None:
        while kept:
            os.close(kept.pop())

    try:
        complete = spec.replace(status=b"%d" % write, launcher=os.getpid())
        if limited is not None and limited.tally >= 0:
            kept.append(tally := os.dup(limited.tally))
            complete = complete.replace(memory=limited.memory, processes=limited.processes, tally=tally)
        kept.append(file := memory_file(encode(complete)))
        argv = helper_command("jail-exec", str(file))
    except BaseException:
        close()
        os.close(read)
        raise
    return Launch(
        argv=argv,
        env=dict(ENVIRONMENT),
        cwd="/",
        pass_fds=tuple(kept),
        status=read,
        failure=sentence,
        relays=relays,
        close=close,
        uid=spec.uid if spec.uid >= 0 else None,
        scratch=spec.scratch,
        limited=limited,
    )
