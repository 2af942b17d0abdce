"""Run a launch in the foreground of the user's terminal: live streams, forwarded signals, exit status.

The launcher has its own process group, so that Ctrl-C reaches only us. We forward it to everything inside.
The command may handle it, and its own exit status is reported.
"""

from __future__ import annotations

import os
import select
import sys
import time

from .._value import Value
from ..linux.fileio import write_all
from .contract import give_pipes
from .running import GRACE, Lifeline, did_not_start, never_started, not_startable, release
from .signals import SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGTERM, SIGXFSZ, waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn, Protocol

    from ..observe.redaction import Redactor, Secrets
    from .contract import Launch

    class Signals(Protocol):
        """A descriptor at which signals arrive, and the signals that did."""

        descriptor: int

        def read(self) -> list[int]: ...


_PASSED_ON = (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
#: Python ignores some of these, and exec keeps that: `yes | head` must end quietly inside.
_TO_DEFAULT = (SIGPIPE, SIGXFSZ, SIGCHLD, *_PASSED_ON)


class ForegroundOutcome(Value):
    """The end of a command: shell-style status, a name of Reason, bytes that the output limit dropped."""

    status: int
    reason: str
    duration: float
    dropped: tuple[int, int] = (0, 0)
    #: A sentence about the limit that made the command fail, or empty.
    why: str = ""


def attend(
    launch: Launch,
    *,
    seconds: float | None = None,
    cap: int | None = None,
    secrets: Secrets | None = None,
    copy: Callable[[bytes], object] | None = None,
) -> ForegroundOutcome:
    """Start `launch` on our own standard streams, and wait for it.

    Raises LaunchFailed if the command never started. The values of `secrets` are removed from streams that
    are not a terminal. `copy` gets all output as well; then no stream is the terminal.
    """
    with waiting((*_PASSED_ON, SIGCHLD)) as signals:
        # A launcher that relays signals handles its own end.
        lifeline = None if launch.relays else Lifeline(launch.status)
        try:
            return _Attended(
                launch, signals, lifeline, seconds, cap, secrets=secrets, copy=copy
            ).see_through()
        finally:
            if lifeline is not None:
                lifeline.close()


class _Attended:
    """One started launch. `running.see_through` explains why this has its own loop."""

    def __init__(
        self,
        launch: Launch,
        signals: Signals,
        lifeline: Lifeline | None,
        seconds: float | None,
        cap: int | None,
        *,
        secrets: Secrets | None,
        copy: Callable[[bytes], object] | None,
    ) -> None:
        self._copy = copy
        self._launch = launch
        self._group = 0 if lifeline is None else lifeline.group
        self._signals = signals
        self._cap = cap
        self._secrets = secrets
        self._redactors: dict[int, Redactor] = {}  # by stream
        self._relayed: dict[int, int] = {}  # our read end: the relayed stream
        self._passed: dict[int, int] = {1: 0, 2: 0}  # bytes of each stream so far
        self._caught: int | None = None
        self._timed_out = False
        self._terminal = TerminalGuard()
        self._began = time.monotonic()
        self._kill_at: float | None = None
        self._deadline = None if seconds is None else self._began + seconds
        try:
            self._pid = self._spawn()
        except BaseException:
            self._restore()
            raise

    def _spawn(self) -> int:
        launch = self._launch
        actions: list[tuple[int, int, int]] = []
        ours: list[int] = []
        for stream in (1, 2):
            if self._secrets is not None and self._secrets.values:
                from ..observe.redaction import Redactor, is_relayed

                if self._copy is not None or is_relayed(stream):
                    self._redactors[stream] = Redactor(self._secrets.spelled)
            if stream in self._redactors or self._cap is not None or self._copy is not None:
                read, write = os.pipe2(os.O_CLOEXEC)
                actions.append((os.POSIX_SPAWN_DUP2, write, stream))
                self._relayed[read] = stream
                ours.append(write)
        give_pipes(launch.uid, (0, 1, 2, *self._relayed))
        os.chdir(launch.cwd)
        try:
            if launch.here is not None and len(os.listdir("/proc/self/task")) == 1:
                return launch.here(as_spawned(self._group, actions))
            for fd in launch.pass_fds:
                os.set_inheritable(fd, True)
            return os.posix_spawn(
                launch.argv[0],
                launch.argv,
                launch.env,
                file_actions=actions,
                setpgroup=self._group,
                setsigmask=(),
                setsigdef=_TO_DEFAULT,
            )
        except OSError as error:
            raise not_startable(launch, error) from error
        finally:
            launch.close()
            for fd in ours:
                os.close(fd)

    def see_through(self) -> ForegroundOutcome:
        found = None
        try:
            status = self._wait()
            code = os.waitstatus_to_exitcode(status)
            failure = never_started(self._launch) if code > 0 else None
            if self._launch.limited is not None:
                found = self._launch.limited.ran_into(code)
        finally:
            self._restore()
        if failure and not self._timed_out and self._caught is None:
            raise did_not_start(failure)
        duration = time.monotonic() - self._began
        cap = self._cap
        dropped = (0, 0) if cap is None else (max(0, self._passed[1] - cap), max(0, self._passed[2] - cap))
        if self._timed_out:
            return ForegroundOutcome(124, "timeout", duration, dropped)
        if code < 0 and self._caught is not None:
            code = -self._caught  # the signal that we received ended it
        shown = code if code >= 0 else 128 - code
        if found is not None:
            return ForegroundOutcome(shown, found.limit, duration, dropped, found.sentence)
        return ForegroundOutcome(shown, "exited" if code >= 0 else "signalled", duration, dropped)

    def _wait(self) -> int:
        poll = select.poll()
        heard = None if self._launch.gateway_log is None else self._launch.gateway_log.fileno()
        for fd in (self._signals.descriptor, heard, *self._relayed):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._drain(poll)
                for stream in self._relayed.values():  # another process still has it open
                    if stream in self._redactors:
                        self._pass_on(stream, self._redactors[stream].finish())
                return status
            for fd, _ in poll.poll(self._patience()):
                if fd == self._signals.descriptor:
                    for number in self._signals.read():
                        self._on_signal(number)
                elif not self._read(fd):
                    poll.unregister(fd)
            self._on_time()

    def _drain(self, poll: select.poll) -> None:
        """Relay output from before the end. A process that keeps a stream open does not delay us."""
        until = time.monotonic() + 0.5
        while self._relayed and time.monotonic() < until:
            ready = [fd for fd, _ in poll.poll(100) if fd in self._relayed]
            for fd in ready:
                if not self._read(fd):
                    poll.unregister(fd)

    def _read(self, fd: int) -> bool:
        gateway_log = self._launch.gateway_log
        if gateway_log is not None and fd == gateway_log.fileno():
            return gateway_log.read()
        data = os.read(fd, 65536)
        stream = self._relayed[fd]
        redactor = self._redactors.get(stream)
        if not data:
            del self._relayed[fd]
            os.close(fd)
            if redactor is not None:
                self._pass_on(stream, redactor.finish())
            return False
        try:
            self._pass_on(stream, data if redactor is None else redactor.feed(data))
        except BrokenPipeError:  # the reader is gone: the command gets SIGPIPE
            del self._relayed[fd]
            os.close(fd)
            return False
        return True

    def _pass_on(self, stream: int, data: bytes) -> None:
        room = len(data) if self._cap is None else max(0, self._cap - self._passed[stream])
        self._passed[stream] += len(data)
        if self._copy is not None:
            self._copy(data)
        write_all(stream, data[:room])

    def _patience(self) -> int | None:
        moments = [moment for moment in (self._deadline, self._kill_at) if moment is not None]
        return max(0, int((min(moments) - time.monotonic()) * 1000) + 1) if moments else None

    def _on_time(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            os.kill(self._pid, SIGKILL)
            self._kill_at = now + GRACE
        elif self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._timed_out = True
            self._end()

    def _on_signal(self, number: int) -> None:
        if number == SIGCHLD:
            return
        if self._caught is not None:  # second signal: end it now
            self._end()
            return
        self._caught = number
        pass_on(self._pid, number, relays=self._launch.relays)
        if number != SIGINT:  # a command may take its time after Ctrl-C
            self._kill_at = time.monotonic() + GRACE

    def _end(self) -> None:
        os.kill(self._pid, SIGTERM)
        self._kill_at = time.monotonic() + GRACE

    def _restore(self) -> None:
        for fd in self._relayed:
            os.close(fd)
        release(self._launch)
        self._terminal.close()  # the command may have changed its modes


def as_spawned(group: int, actions: Sequence[tuple[int, int, int]]) -> Callable[[], None]:
    """Return a function that prepares a forked child like posix_spawn. `actions` are DUP2 only.

    Signals stay blocked, so that an early signal is not lost.
    """

    def prepare() -> None:
        os.setpgid(0, group)
        for _, source, target in actions:
            os.dup2(source, target)

    return prepare


def pass_on(pid: int, number: int, *, relays: bool) -> None:
    """Send a signal to everything that `pid` started; to `pid` itself only if it relays."""
    if relays:
        os.kill(pid, number)
        return
    from ..linux.process_tree import descendants, send

    for child in descendants(pid):
        send(child, number)


# Restore the modes of the user's terminal, however this process ends.
#
# A command, or our own relay, may set the terminal to raw mode without echo. After SIGKILL our process cannot
# restore the modes, so a child does: it waits until we close the other end of a pipe.


class TerminalGuard:
    """Saves the modes of the terminal on descriptor 0. Does nothing if it is not a terminal.

    `last` is written to the terminal if this process is killed, so that it leaves our screen.
    """

    def __init__(self, last: bytes = b"") -> None:
        self._modes: list[Any] | None = None
        self._child, self._held = 0, -1
        if not os.isatty(0):
            return
        import termios

        self._modes = termios.tcgetattr(0)
        if sys.platform == "linux":
            group = os.getpgrp()
            waits, self._held = os.pipe2(os.O_CLOEXEC)
            self._child = os.fork()
            if self._child == 0:
                _wait(waits, group, self._modes, last)
            os.close(waits)

    def close(self) -> None:
        """Restore the modes. Further calls do nothing."""
        if self._modes is None:
            return
        import termios

        modes, self._modes = self._modes, None
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, modes)
        finally:
            if self._child:
                os.write(self._held, b".")
                os.close(self._held)
                try:
                    os.waitpid(self._child, 0)
                except ChildProcessError:
                    pass  # the program around us reaps all children


def _wait(pipe: int, group: int, modes: list[Any], last: bytes) -> NoReturn:
    """Run the child, which exits only after its parent.

    If another process is in the foreground by then, such as a shell that edits its line, it may have set its
    own modes. These are left unchanged.
    """
    try:
        import termios

        from ..linux import process

        process.block_signals(range(1, 65))  # else setting modes stops a background process
        os.setpgid(0, 0)
        process.close_from(1, keep=(pipe,))
        if not os.read(pipe, 1):
            if last:
                os.write(0, last)  # at once: what a shell prints before is on the screen that is left
            if os.tcgetpgrp(0) == group:
                termios.tcsetattr(0, termios.TCSANOW, modes)
    finally:
        os._exit(0)
