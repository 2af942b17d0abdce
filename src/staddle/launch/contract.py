"""A prepared command, which a backend returns and `launch/` starts; and the command line of our helper.

The helper is inside/__main__.py. This module runs in the caller's process, with its rights.
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
    from collections.abc import Callable, Iterable

    from ..limits.command_limits import CommandLimits
    from ..network.host.gateway_log import GatewayLog


class Launch(Value):
    """A confined command, ready to be started once.

    `status` is the read end of a pipe on which the launcher reports its progress; `failure` turns these bytes
    into a sentence if the command never started. The caller closes the pipe. `relays` means that the started
    process passes signals on to everything it started; `is_monitored`, that it does not, and is not the
    command either. `close` releases our copies of `pass_fds` and other resources for the start: call it once
    the process has started, or will not be started. It never raises. `uid` is the command's user on the host
    if that is not the caller (root's sandbox has an unused id): a pipe for its streams must belong to it, or
    it cannot open /dev/stdout. `here`, if set, starts the command as a child of this process instead of
    running `argv`, for a small single-threaded program of staddle. It first calls its argument in the child,
    and returns the child's pid. `gateway_log`, if there is a network gateway, has its reports: read it while
    the command runs, and finish it at the end. `limited` enforces limits that need more than the command's
    own process; close it at the end. `scratch` are the private directories that the launcher creates and
    removes, the others in the first; if the launcher is killed, the process that killed it removes them.
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


def give_pipes(uid: int | None, descriptors: Iterable[int]) -> None:
    """Let `uid` reopen these pipes, as `echo > /dev/stderr` does.

    A pipe belongs to its creator. Root's sandbox has another id, so it could use its streams but not open
    them by name. Files and terminals keep their owner.
    """
    if uid is None:
        return
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
                os.fchown(descriptor, uid, -1)
        except OSError:
            continue  # closed, or owned by another user


#: The helper's own environment, without the caller's variables, because /proc shows it.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}


def helper_command(role: str, *where: str) -> tuple[str, ...]:
    """Return the helper's command line for a role, with the number of a descriptor or the path of a file."""
    return python("inside/__main__.py", role, *where)


def python(program: str, *words: str) -> tuple[str, ...]:
    """Return the command line that runs a file of this package in an interpreter without site-packages."""
    if not sys.executable:
        raise LaunchFailed(
            "the helper cannot be started",
            why="this Python does not know its own interpreter (sys.executable is empty)",
            fix="run staddle from an ordinary Python",
        )
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # The real interpreter, because a virtual environment's link would make it search for packages.
    return (os.path.realpath(sys.executable), "-I", "-S", os.path.join(package, program), *words)


def helper_launch(spec: ExecSpec, *, relays: bool = True, limited: CommandLimits | None = None) -> Launch:
    """Return the helper, ready to be started once with `spec`, to which this adds `status` and `launcher`.

    Its supervisor enforces `limited`. Takes ownership of the descriptors in `spec.proxy`.
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
