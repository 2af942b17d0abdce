"""Running one confined command for an agent: bounded time, bounded memory, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess

from ..errors import CommandCancelled, CommandTimeout, LaunchFailed, PolicyError
from ..linux import tree
from ..output import Tail
from ..running import end, never_started, see_through, start
from .contract import CommandResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading

    from ..wrapping import WrappedCommand

#: How often a cancellation is looked for.
_LOOK_EVERY = 0.05


def seconds(timeout: object, from_policy: float | None) -> float | None:
    """The time a command gets: what was asked for, else the policy's."""
    if timeout is None:
        return from_policy
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise PolicyError(f"timeout is {timeout!r}", why="it is not a positive number of seconds")
    return timeout


def run(
    wrapped: WrappedCommand, timeout: float | None, output_limit: int | None, cancel: threading.Event | None
) -> CommandResult:
    """Run it to its end, or to ours. Everything it started is dead when this returns or raises."""
    launch = wrapped.launch()
    try:
        process = start(
            launch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        try:
            out, err, ending = see_through(
                process,
                None,
                timeout,
                lambda: Tail(output_limit),
                cancelled=cancel.is_set if cancel is not None else lambda: False,
                look_every=0.25 if cancel is None else _LOOK_EVERY,
            )
        except BaseException:
            end(process)
            raise
        finally:
            if wrapped.backend == "native":
                _end_session(process.pid)
        failure = never_started(launch, launch.status) if process.returncode > 0 and not ending else None
    finally:
        if launch.status is not None:
            os.close(launch.status)
    if failure:
        raise LaunchFailed("the command did not start", why=failure)
    result = _result(process.returncode, out, err, wrapped)
    if ending == "timeout":
        raise CommandTimeout(f"the command was ended after {timeout:g} seconds", result=result)
    if ending == "cancelled":
        raise CommandCancelled("the command was cancelled", result=result)
    return result


def _result(status: int, out: Tail | None, err: Tail | None, wrapped: WrappedCommand) -> CommandResult:
    out, err = out or Tail(0), err or Tail(0)
    return CommandResult(
        stdout=out.value().decode("utf-8", "replace"),
        stderr=err.value().decode("utf-8", "replace"),
        exit_code=status if status >= 0 else 128 - status,
        stdout_truncated=out.dropped > 0,
        stdout_bytes_dropped=out.dropped,
        stderr_truncated=err.dropped > 0,
        stderr_bytes_dropped=err.dropped,
        violations=wrapped.violations(),
    )


def _end_session(session: int) -> None:
    """Without confinement nothing ends what the command left behind but a look for its session.

    Bounded: what forks faster than we look is not ended. Confining backends have no such limit.
    """
    for _ in range(100):
        left = [pid for pid in _processes() if _session(pid) == session]
        if not left:
            return
        for pid in left:
            tree.send(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _session(pid: int) -> int:
    """The session of a living process, else 0. The name in parentheses may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[3])
    except (OSError, IndexError, ValueError):
        return 0
