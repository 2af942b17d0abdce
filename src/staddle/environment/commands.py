"""Run one confined command for an agent: with bounded time and memory, leaving no process behind."""

from __future__ import annotations

import os
import signal
import subprocess

from .. import check
from .._value import Value
from ..display import shown
from ..errors import CommandCancelled, CommandTimeout, PolicyError
from ..events import Event
from ..launch.running import did_not_start, end, never_started, release, see_through, started
from ..linux import process_tree
from ..linux.process import stat_fields
from ..observe.output import Tail
from ..observe.redaction import RedactedTail
from .interface import CommandResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from ..observe.redaction import Secrets
    from ..wrapping import WrappedCommand

#: Seconds between two checks for a cancellation.
_LOOK_EVERY = 0.05


def seconds(timeout: object, from_policy: float | None) -> float | None:
    """Return the timeout of a command: `timeout`, else the policy's."""
    if timeout is None:
        return from_policy
    fix = "give a number above 0, or None for the policy's"
    return check.seconds("timeout", timeout, fix=fix, error=PolicyError)


def size(limit: object, from_policy: int | None) -> int | None:
    """Return the number of bytes kept of a stream: `limit`, else the policy's."""
    fix = "give a number of bytes, 0 for the policy's"
    return check.count("output_limit", limit, 0, fix=fix, error=PolicyError) or from_policy


def words(argv: Iterable[str | bytes | os.PathLike[str]]) -> list[str]:
    """Return the argument list as text that can be passed to a program."""
    found = [os.fsdecode(word) for word in argv]
    if not found or not found[0]:
        raise PolicyError(
            "the command is empty", why="there would be nothing to run", fix="give at least a program"
        )
    for word in found:
        try:
            os.fsencode(word)
        except UnicodeError:
            raise PolicyError(
                f"the argument {word!r} cannot be passed to a program",
                why="it has a lone surrogate in it, and cannot be encoded as UTF-8",
                fix="pass bytes through os.fsdecode()",
            ) from None
    return found


class CommandBounds(Value):
    """Limits of one command: its timeout, the bytes kept of each stream, and the event that cancels it."""

    timeout: float | None
    output: int | None
    cancel: threading.Event | None


def run(
    wrapped: WrappedCommand,
    bounds: CommandBounds,
    secrets: Secrets,
    afterwards: Callable[[], tuple[Event, ...]] = lambda: (),
) -> CommandResult:
    """Run a command until it exits or we end it. Afterwards all its processes have exited, even on an error.

    `afterwards` is called once they have exited, unless the command never ran; its events are in the result.
    """
    timeout, cancel = bounds.timeout, bounds.cancel

    launch = wrapped.launch()
    try:
        process = started(launch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err, ending = see_through(
                process,
                None,
                timeout,
                lambda: tail(bounds, secrets),
                cancelled=cancel.is_set if cancel is not None else lambda: False,
                look_every=0.25 if cancel is None else _LOOK_EVERY,
                gateway_log=launch.gateway_log,
            )
        except BaseException:
            end(process)
            afterwards()
            raise
        finally:
            if wrapped.backend == "native":
                _end_session(process.pid)
        code = process.wait()  # it has ended
        failure = never_started(launch) if code > 0 and not ending else None
        limit = launch.limited.ran_into(code) if launch.limited is not None else None
    finally:
        release(launch)
    status = code if code >= 0 else 128 - code
    result = result_of(status, out or Tail(0), err or Tail(0))
    if failure:
        # The command never ran, so this is the launcher's own output.
        said = shown(result.stderr.strip()[-500:])
        raise did_not_start(f"{failure}: {said}" if said else failure)
    by_limit = () if limit is None else (Event("violation", limit.limit, limit.sentence),)
    found = (*by_limit, *wrapped.violations(), *afterwards())
    result = result.replace(violations=tuple(secrets.event(event) for event in found))
    return unless_ended(ending, timeout, result)


def unless_ended(reason: str, timeout: float | None, result: CommandResult) -> CommandResult:
    """Return the result of a command, or raise the error for one that we ended, with the result in it."""
    if reason == "timeout":
        raise CommandTimeout(
            f"the command was ended after {timeout:g} seconds",
            result=result,
            why="its time was up",
            fix="give it more with timeout=, or in limits.timeout",
        )
    if reason == "cancelled":
        raise CommandCancelled(
            "the command was cancelled",
            result=result,
            why="its `cancel` event was set",
            fix="run it again with an event that is not set",
        )
    return result


def tail(bounds: CommandBounds, secrets: Secrets) -> Tail:
    """Return a buffer for one stream of a command, without the secrets."""
    return RedactedTail(bounds.output, secrets.spelled) if secrets.values else Tail(bounds.output)


def result_of(exit_code: int, out: Tail, err: Tail, violations: tuple[Event, ...] = ()) -> CommandResult:
    """Return the result of a command that has ended."""
    stdout, stderr = out.value(), err.value()  # first, because it ends the stream before bytes are counted
    return CommandResult(
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        exit_code=exit_code,
        stdout_truncated=out.dropped > 0,
        stdout_bytes_dropped=out.dropped,
        stderr_truncated=err.dropped > 0,
        stderr_bytes_dropped=err.dropped,
        violations=violations,
    )


def _end_session(session: int) -> None:
    """Kill all processes of the session; without confinement there is no other way to find them.

    Bounded: processes that fork faster than we check survive. Confining backends have no such limit.
    """
    for _ in range(100):
        left = [pid for pid in _processes() if _session(pid) == session]
        if not left:
            return
        for pid in left:
            process_tree.send(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _session(pid: int) -> int:
    """Return the session of a living process, else 0."""
    fields = stat_fields(pid)
    return int(fields[3]) if len(fields) > 3 and fields[0] not in (b"Z", b"X") else 0
