"""Start a prepared launch and wait for its end."""

from __future__ import annotations

import os
import sys
import time

from ..errors import CommandCancelled, LaunchFailed, PolicyError, resource_fix
from .contract import give_pipes
from .signals import SIGTERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from typing import Any, Literal, Self, TypeAlias, TypeVar

    from ..linux.process_tree import Children
    from ..network.host.gateway_log import GatewayLog
    from ..observe.output import HeadTail, Tail
    from ..observe.redaction import Secrets
    from ..policy.limits import Limits
    from .contract import Launch
    from .launch_server import ServedProcess
    from .subprocesses import Completed

    Kept = TypeVar("Kept", "HeadTail", Tail)
    Popen: TypeAlias = subprocess.Popen[Any] | ServedProcess

#: Attribute of a process with the private directories of its launch.
_SCRATCH = "_staddle_scratch"
#: Seconds between SIGTERM and SIGKILL, for a launcher to end its command.
GRACE = 5.0
#: Arguments that start() sets itself. Overriding one would start something other than prepared.
_OURS = (
    *("args", "env", "cwd", "pass_fds", "close_fds", "preexec_fn", "shell", "executable", "umask"),
    *("start_new_session", "process_group", "user", "group", "extra_groups", "restore_signals"),
)


def start(launch: Launch, *, group: int | None = None, **kwargs: Any) -> subprocess.Popen[Any]:
    """Start `launch` as a Popen. Accepts Popen's arguments, except those that confine the command."""
    try:
        for name in kwargs:
            if name in _OURS:
                raise PolicyError(
                    f"a wrapped command does not take {name}",
                    why="it is part of the confinement",
                    fix="give cwd and env to wrap(), and grant paths in the policy",
                )
        process: subprocess.Popen[Any] = _popen_class(launch)(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            pass_fds=launch.pass_fds,
            process_group=group,
            **kwargs,
        )
        if sys.platform == "linux":
            from ..linux import open_files

            open_files.hand_down(process.pid)
        streams = (process.stdin, process.stdout, process.stderr)
        give_pipes(launch.uid, (0, 1, 2, *(stream.fileno() for stream in streams if stream is not None)))
        vars(process)[_SCRATCH] = launch.scratch
        if launch.limited is not None:
            from weakref import finalize

            finalize(process, launch.limited.leave)
        return process
    except BaseException as error:
        if launch.limited is not None:
            launch.limited.close()
        if isinstance(error, OSError):
            raise not_startable(launch, error) from error
        raise
    finally:
        launch.close()


def _popen_class(launch: Launch) -> type[subprocess.Popen[Any]]:
    if launch.is_monitored:
        from .subprocesses import MonitoredPopen

        return MonitoredPopen
    import subprocess

    return subprocess.Popen


def not_startable(launch: Launch, error: OSError) -> LaunchFailed:
    """Return the error for a launcher that the kernel did not start."""
    why = error.strerror or str(error)
    return LaunchFailed(
        f"{launch.argv[0]!r} could not be started",
        why=why,
        fix=resource_fix(why, "`staddle doctor` tries what this host can do"),
    )


def end(process: Popen) -> None:
    """End the launcher and everything that it started: SIGTERM, a grace period, SIGKILL."""
    import subprocess

    if process.poll() is not None:
        return
    children = _children(process.pid)
    try:
        os.kill(process.pid, SIGTERM)  # the launcher itself, even one that does not relay; it is not reaped
    finally:
        if children is not None and process.returncode is None:  # else it has already exited
            children.go_on()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if children is not None:
        # Usually they exit with it. A child that bwrap had not yet bound to itself does not.
        children.end(GRACE / 2)
    if scratch := vars(process).get(_SCRATCH):
        from ..files import remove_tree

        remove_tree.remove(scratch)  # the process that should remove it may have been killed


def _children(pid: int) -> Children | None:
    if sys.platform != "linux":
        return None
    from ..linux.process_tree import Children

    return Children(pid)


_FROM_POLICY = object()


def complete(
    launch: Launch,
    limits: Limits,
    *,
    input: bytes | str | None = None,
    capture_output: bool = False,
    timeout: object = _FROM_POLICY,
    check: bool = False,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    universal_newlines: bool | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    secrets: Secrets | None = None,
    **kwargs: Any,
) -> Completed:
    """Like `subprocess.run`, with the policy's timeout and output limit. LaunchFailed if nothing ran.

    `cancelled` is called four times a second. Once it returns True, everything is ended and CommandCancelled
    is raised. The values of `secrets` are removed from captured output, and from our own standard streams
    unless these are a terminal.
    """
    import subprocess

    from .subprocesses import Completed

    as_text = bool(text or encoding or errors or universal_newlines)
    seconds = limits.timeout if timeout is _FROM_POLICY else timeout
    if not (seconds is None or isinstance(seconds, int | float)):
        raise TypeError(f"timeout is a number of seconds or None, not {seconds!r}")
    seconds = within_lifetime(seconds, limits)
    if capture_output:
        if "stdout" in kwargs or "stderr" in kwargs:
            raise ValueError("capture_output takes the place of stdout and stderr")
        kwargs["stdout"] = kwargs["stderr"] = subprocess.PIPE
    if input is not None:
        kwargs["stdin"] = subprocess.PIPE
    buffers = _buffers(secrets, kwargs, limits.output)
    # A launcher that relays signals handles its own end.
    lifeline = None if launch.relays else Lifeline(launch.status)
    found, used, began = None, None, time.monotonic()
    try:
        process = started(launch, group=None if lifeline is None else lifeline.group, **kwargs)
        try:
            out, err, ending = see_through(
                process,
                _encoded(input),
                seconds,
                lambda: next(buffers),
                cancelled=cancelled,
                gateway_log=launch.gateway_log,
            )
        except BaseException:
            end(process)
            raise
        status = process.wait()  # it has ended
        failure = never_started(launch) if status > 0 else None
        if launch.limited is not None:
            found = launch.limited.ran_into(status)
            used = launch.limited.usage(time.monotonic() - began)
    finally:
        if lifeline is not None:
            lifeline.close()
        release(launch)
    if failure and not ending:
        raise did_not_start(failure if secrets is None else secrets.text(failure))
    if ending == "cancelled":
        raise CommandCancelled(
            "the command was cancelled", why="a cancellation was requested", fix="run it again"
        )
    stdout, stderr = (_decoded(kept, as_text, encoding, errors) for kept in (out, err))
    if ending:
        raise subprocess.TimeoutExpired(list(launch.argv), seconds or 0.0, output=stdout, stderr=stderr)
    done = Completed(list(launch.argv), status, stdout, stderr)
    done.reason, done.usage = "exited" if done.returncode >= 0 else "signalled", used
    if found is not None:
        done.reason, done.why = found.limit, found.sentence
    if check:
        done.check_returncode()
    return done


def started(launch: Launch, *, group: int | None = None, **streams: Any) -> Popen:
    """Start `launch` through the launch server if that can do it, else as `start` does."""
    if launch.here is None or sys.platform != "linux":
        return start(launch, group=group, **streams)
    from . import launch_server

    try:
        process = launch_server.start(launch, streams)
    except BaseException:
        if launch.limited is not None:
            launch.limited.close()
        launch.close()
        raise
    if process is None:
        return start(launch, group=group, **streams)
    launch.close()
    return process


def _buffers(secrets: Secrets | None, kwargs: dict[str, Any], limit: int | None) -> Iterator[HeadTail]:
    """Return buffers for standard output and standard error, in this order, if they are captured.

    With secrets they are always captured, except terminals. A buffer that keeps nothing then relays them.
    """
    import subprocess

    from ..observe.output import HeadTail

    if secrets is None or not secrets.values:
        return iter((HeadTail(limit), HeadTail(limit)))
    found: list[HeadTail] = []
    merged = kwargs.get("stderr") == subprocess.STDOUT
    for fd, name in ((1, "stdout"), (2, "stderr")):
        given = kwargs.get(name)
        if given == subprocess.PIPE:
            found.append(secrets.kept(limit))
        elif given is None and not os.isatty(fd) and not (merged and fd == 2):
            from ..observe.redaction import RedactedRelay

            kwargs[name] = subprocess.PIPE
            found.append(RedactedRelay(fd, secrets.spelled))
    return iter(found)


def within_lifetime(seconds: float | None, limits: Limits) -> float | None:
    """Return the timeout of a command whose sandbox lives only as long as the command."""
    if limits.max_lifetime is None:
        return seconds
    return limits.max_lifetime if seconds is None else min(seconds, limits.max_lifetime)


def see_through(
    process: Popen,
    data: bytes | None,
    seconds: float | None,
    keep: Callable[[], Kept],
    *,
    cancelled: Callable[[], bool] = lambda: False,
    look_every: float = 0.25,
    gateway_log: GatewayLog | None = None,
) -> tuple[Kept | None, Kept | None, Literal["", "timeout", "cancelled"]]:
    """Feed stdin, collect bounded output, wait. The last value is the reason if the command was ended.

    `foreground.attend` deliberately has its own loop. This loop serves a Popen in any thread of any program.
    The other one owns a process with a single thread, waits for signals and
    descriptors, and loads neither subprocess nor selectors. They share only the steps before and after.

    `keep` creates the buffer of a stream. `cancelled` is called every `look_every` seconds. `gateway_log` is
    read continuously.
    """
    import selectors
    import subprocess

    deadline = None if seconds is None else time.monotonic() + seconds
    kept: dict[Any, Kept] = {s: keep() for s in (process.stdout, process.stderr) if s is not None}
    unsent = memoryview(data or b"")
    ended_at: float | None = None
    ending: Literal["", "timeout", "cancelled"] = ""
    with selectors.DefaultSelector() as selector, _ExitHandle(process.pid) as exit_handle:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        if exit_handle.fd >= 0:
            selector.register(exit_handle.fd, selectors.EVENT_READ)
        if gateway_log is not None:
            selector.register(gateway_log, selectors.EVENT_READ)
        if process.stdin is not None and data is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            if ended_at is None and process.poll() is not None:
                ended_at = time.monotonic()  # leftover processes may use the pipes briefly
                if exit_handle.fd >= 0:
                    selector.unregister(exit_handle.fd)
                    continue
            limit = ended_at + 0.5 if ended_at is not None else deadline
            left = None if limit is None else limit - time.monotonic()
            if ended_at is None and cancelled():
                ending = "cancelled"
                end(process)
                continue
            if left is not None and left <= 0:
                if ended_at is None:
                    ending = "timeout"
                    end(process)
                    continue
                break
            for key, _ in selector.select(look_every if left is None else min(left, look_every)):
                file: Any = key.fileobj
                if file == exit_handle.fd:
                    continue
                if file is gateway_log:
                    if not gateway_log.read():
                        selector.unregister(gateway_log)
                    continue
                if file is process.stdin:
                    unsent = _send(file, unsent)
                    chunk = bytes(unsent[:1])
                else:
                    chunk = os.read(file.fileno(), 65536)
                    kept[file].feed(chunk)
                if not chunk:
                    selector.unregister(file)
                    file.close()
    for stream in (process.stdin, *kept):
        if stream is not None:
            stream.close()
    while not ending:  # it closed its streams, but still runs
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            process.wait(look_every if left is None else min(left, look_every))
            break
        except subprocess.TimeoutExpired:
            if cancelled():
                ending = "cancelled"
            elif deadline is not None and time.monotonic() >= deadline:
                ending = "timeout"
            if ending:
                end(process)
    return kept.get(process.stdout), kept.get(process.stderr), ending


class _ExitHandle:
    """A pidfd, readable when the process has ended; -1 where there is none, and the caller polls."""

    def __init__(self, pid: int) -> None:
        try:
            self.fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _send(file: Any, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(file.fileno(), unsent[:65536]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[len(unsent) :]


def never_started(launch: Launch) -> str | None:
    """Return the launcher's message that the command never ran, or None. Call it after its end."""
    if launch.status is None:
        return None
    os.set_blocking(launch.status, False)
    said = b""
    try:
        while len(said) < 65536 and (chunk := os.read(launch.status, 65536)):
            said += chunk
    except BlockingIOError:
        pass
    return launch.failure(said)


def did_not_start(failure: str) -> LaunchFailed:
    """Return the error for a launcher's message that the command never ran."""
    return LaunchFailed(
        "the command did not start", why=failure, fix="`staddle doctor` tries what this host can do"
    )


def release(launch: Launch) -> None:
    """Close the remaining resources of a started launch: its status, its gateway's log, its limits."""
    if launch.status is not None:
        os.close(launch.status)
    if launch.gateway_log is not None:
        launch.gateway_log.finish()
    if launch.limited is not None:
        launch.limited.close()


def _encoded(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _decoded(
    kept: HeadTail | None, as_text: bool, encoding: str | None, errors: str | None
) -> bytes | str | None:
    if kept is None or kept.is_relay:
        return None
    data = kept.value()
    return data.decode(encoding or "utf-8", errors or "replace") if as_text else data


_SHELL = "/bin/sh"
#: A line means that the launcher has ended. The end of the pipe means that our process has. Then SIGUSR1 ends
#: bwrap, so that it starts no more child; its status (fd 3) names the child that it started.
_WAIT = """
read line || {
    trap '' USR1
    kill -USR1 0
    child=
    [ ! -f /proc/self/fd/3 ] || while read -r said; do
        case $said in
        *'"exit-code": '*) child= ;;
        *'"child-pid": '*) child=${said#*'"child-pid": '} child=${child%%[!0-9]*} ;;
        esac
    done </proc/self/fd/3
    [ -z "$child" ] || kill -9 "$child"
}
kill -9 0
"""


class Lifeline:
    """A process group that ends with this process, however it ends.

    bwrap asks the kernel to end the sandbox with its parent only once the sandbox is set up. If our process
    were killed in the milliseconds before, the sandbox would stay. So the launcher joins the group of a small
    shell that waits for the other end of a pipe, which only we have: when it closes, the shell kills the
    group. A sandbox of bwrap leaves the group for its own session shortly before it is set up, so the shell
    also kills the child that bwrap named in its status.

    `status` is the launch's own, in which bwrap names its child. `group` is the process group for new
    processes; 0, a group of their own, if there is no shell.
    """

    def __init__(self, status: int | None) -> None:
        self.group = 0
        self._held = -1
        if not os.access(_SHELL, os.X_OK):
            return
        theirs, self._held = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 0), *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2))]
        actions.append((os.POSIX_SPAWN_DUP2, null if status is None else status, 3))
        try:
            self.group = os.posix_spawn(_SHELL, ["sh", "-c", _WAIT], {}, file_actions=actions, setpgroup=0)
        finally:
            os.close(theirs)
            os.close(null)

    def close(self) -> None:
        """End the rest of the group after the launcher, at least the shell."""
        if self.group:
            try:
                os.write(self._held, b"\n")
            except OSError:
                pass  # the shell was killed
            os.close(self._held)
            try:
                os.waitpid(self.group, 0)
            except ChildProcessError:
                pass  # the program around us reaps all children
            self.group = 0
