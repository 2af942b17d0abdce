"""Start a prepared launch and see it through to its end."""

from __future__ import annotations

import os
import sys
import time

from ..errors import CommandCancelled, LaunchFailed, PolicyError, resource_fix
from .output import HeadTail
from .signals import SIGTERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Literal, TypeVar

    from ..linux.process_tree import Children
    from ..network.host.gateway_log import GatewayLog
    from ..policy.limits import Limits
    from .completed import Completed
    from .contract import Launch
    from .output import Tail
    from .redaction import Secrets

    Kept = TypeVar("Kept", HeadTail, Tail)

#: Where a process has the private directories of its launch.
_SCRATCH = "_staddle_scratch"
#: How long a launcher gets to end its command after SIGTERM, before SIGKILL.
GRACE = 5.0
#: What start() decides itself: overriding any of it would start something else than was prepared.
_OURS = (
    *("args", "env", "cwd", "pass_fds", "close_fds", "preexec_fn", "shell", "executable", "umask"),
    *("start_new_session", "process_group", "user", "group", "extra_groups", "restore_signals"),
)


def start(launch: Launch, *, group: int | None = None, **kwargs: Any) -> subprocess.Popen[Any]:
    """Start `launch` as a Popen. Takes what Popen takes, but for what confines the command."""
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
        from .monitored_popen import MonitoredPopen

        return MonitoredPopen
    import subprocess

    return subprocess.Popen


def not_startable(launch: Launch, error: OSError) -> LaunchFailed:
    """The error of a launcher that the kernel did not start."""
    why = error.strerror or str(error)
    return LaunchFailed(
        f"{launch.argv[0]!r} could not be started",
        why=why,
        fix=resource_fix(why, "`staddle doctor` tries what this host can do"),
    )


def give_pipes(uid: int | None, descriptors: Iterable[int]) -> None:
    """Let `uid` open these pipes anew, as `echo > /dev/stderr` does.

    A pipe belongs to its maker. Root's sandbox has another id, and could otherwise use its
    streams but not open them by name. Files and terminals keep their owner.
    """
    if uid is None:
        return
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
                os.fchown(descriptor, uid, -1)
        except OSError:
            continue  # closed, or not ours to give


def end(process: subprocess.Popen[Any]) -> None:
    """End the launcher and with it everything it started: SIGTERM, a grace, SIGKILL."""
    import subprocess

    if process.poll() is not None:
        return
    children = _children(process.pid)
    try:
        subprocess.Popen.send_signal(process, SIGTERM)  # the launcher itself, also one that passes nothing on
    finally:
        if children is not None and process.returncode is None:  # else terminate() found that it has ended
            children.go_on()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if children is not None:
        # Mostly they die of its end, a moment later. One that bwrap had not yet bound to itself does not.
        children.end(GRACE / 2)
    if scratch := vars(process).get(_SCRATCH):
        from ..files import remove_tree

        remove_tree.remove(scratch)  # usually gone; whoever was to remove it may have been killed


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
    """As `subprocess.run`, with the policy's timeout and output bound, and LaunchFailed when nothing ran.

    `cancelled` is asked four times a second; once it says yes everything is ended, and
    CommandCancelled raised. The values of `secrets` are taken out of what is captured, and of what
    goes to our own standard streams, unless those are a terminal.
    """
    import subprocess

    from .completed import Completed

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
    # A launcher that relays signals looks after its own end.
    lifeline = None if launch.relays else Lifeline(launch.status)
    found, used, began = None, None, time.monotonic()
    try:
        process = start(launch, group=None if lifeline is None else lifeline.group, **kwargs)
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
        failure = never_started(launch) if process.returncode > 0 else None
        if launch.limited is not None:
            found = launch.limited.ran_into(process.returncode)
            used = launch.limited.usage(time.monotonic() - began)
    finally:
        if lifeline is not None:
            lifeline.close()
        release(launch)
    if failure and not ending:
        if secrets is not None:
            failure = secrets.text(failure)
        raise LaunchFailed(
            "the command did not start", why=failure, fix="`staddle doctor` tries what this host can do"
        )
    if ending == "cancelled":
        raise CommandCancelled(
            "the command was cancelled", why="a cancellation was requested", fix="run it again"
        )
    stdout, stderr = (_decoded(kept, as_text, encoding, errors) for kept in (out, err))
    if ending:
        raise subprocess.TimeoutExpired(list(launch.argv), seconds or 0.0, output=stdout, stderr=stderr)
    done = Completed(list(launch.argv), process.returncode, stdout, stderr)
    done.reason, done.usage = "exited" if done.returncode >= 0 else "signalled", used
    if found is not None:
        done.reason, done.why = found.limit, found.sentence
    if check:
        done.check_returncode()
    return done


def _buffers(secrets: Secrets | None, kwargs: dict[str, Any], limit: int | None) -> Iterator[HeadTail]:
    """The buffers of standard output and standard error, in this order, if they come to us.

    With secrets they do, unless they are terminals: then they are passed on by a buffer that keeps nothing.
    """
    import subprocess

    if secrets is None or not secrets.values:
        return iter((HeadTail(limit), HeadTail(limit)))
    found: list[HeadTail] = []
    merged = kwargs.get("stderr") == subprocess.STDOUT
    for fd, name in ((1, "stdout"), (2, "stderr")):
        given = kwargs.get(name)
        if given == subprocess.PIPE:
            found.append(secrets.kept(limit))
        elif given is None and not os.isatty(fd) and not (merged and fd == 2):
            from .redaction import RedactedRelay

            kwargs[name] = subprocess.PIPE
            found.append(RedactedRelay(fd, secrets.spelled))
    return iter(found)


def within_lifetime(seconds: float | None, limits: Limits) -> float | None:
    """The timeout of a command whose sandbox lives only as long as itself."""
    if limits.max_lifetime is None:
        return seconds
    return limits.max_lifetime if seconds is None else min(seconds, limits.max_lifetime)


def see_through(
    process: subprocess.Popen[Any],
    data: bytes | None,
    seconds: float | None,
    keep: Callable[[], Kept],
    *,
    cancelled: Callable[[], bool] = lambda: False,
    look_every: float = 0.25,
    gateway_log: GatewayLog | None = None,
) -> tuple[Kept | None, Kept | None, Literal["", "timeout", "cancelled"]]:
    """Feed stdin, collect bounded output, wait. The last value says why it was ended, if it was.

    `foreground.attend` is another loop, on purpose. This one serves a Popen in any thread of any program,
    which has no descriptor of its end to wait on; that one owns the process: it has one thread, waits for
    signals beside descriptors, and loads neither subprocess nor selectors. Only the steps around both,
    above and below here, are the same.

    `keep` makes the buffer of a stream; `cancelled` is asked every `look_every` seconds. `gateway_log` is
    read as it comes.
    """
    import selectors
    import subprocess

    deadline = None if seconds is None else time.monotonic() + seconds
    kept: dict[Any, Kept] = {s: keep() for s in (process.stdout, process.stderr) if s is not None}
    unsent = memoryview(data or b"")
    ended_at: float | None = None
    ending: Literal["", "timeout", "cancelled"] = ""
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        if gateway_log is not None:
            selector.register(gateway_log, selectors.EVENT_READ)
        if process.stdin is not None and data is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            if ended_at is None and process.poll() is not None:
                ended_at = time.monotonic()  # what still holds the pipes gets a moment, not for ever
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
            # Popen has no descriptor to wait on, so a launcher that ends while a stray holds
            # the pipes is noticed by looking every quarter second.
            for key, _ in selector.select(look_every if left is None else min(left, look_every)):
                file: Any = key.fileobj
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
    while not ending:  # it closed its streams and goes on
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


def _send(file: Any, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(file.fileno(), unsent[:65536]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[len(unsent) :]


def never_started(launch: Launch) -> str | None:
    """The launcher's own word that the command never ran, if it said so. To be asked after its end."""
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


def release(launch: Launch) -> None:
    """Close what a launch that was started has left: its status, its gateway's log, its limits."""
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
#: A line says that the launcher has ended. The end of the pipe says that we have: then bwrap, which has a
#: default action for this signal, releases no child any more, and has said (fd 3) which one it released.
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
    """A process group that ends when this process does, however it does.

    bwrap asks the kernel to end the sandbox with its parent only once the sandbox is set up. A
    SIGKILL of ours in the milliseconds before would leave it running. So the launcher joins the
    group of a small shell that does nothing but wait for the other end of a pipe, which only we
    hold: when it closes, the group is killed. A sandbox of bwrap leaves the group for a session of its own
    shortly before it is set up, so the shell kills the child that bwrap named in its status as well.

    `status` is the launch's own, in which bwrap names its child. `group` is the process group to start
    things in; 0, a group of their own, where there is no shell.
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
        """End what is left of the group after the launcher's end, the shell at least."""
        if self.group:
            try:
                os.write(self._held, b"\n")
            except OSError:
                pass  # somebody has killed the shell
            os.close(self._held)
            try:
                os.waitpid(self.group, 0)
            except ChildProcessError:
                pass  # the program around us reaps every child itself
            self.group = 0
