"""The life of a child: forked, it becomes a program; its parent waits for it and passes signals on.

All our processes above a command share this: the launchers, PID 1 of a single command, and
the Landlock supervisor. Each runs only with the rights that its caller has left it.
"""

from __future__ import annotations

import errno
import os
import select

from ..ipc.wire import EXEC, NotStarted
from ..linux import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import NoReturn

#: Signals that are meant for the command.
PASSED_ON = (process.SIGHUP, process.SIGINT, process.SIGQUIT, process.SIGTERM)
HANDLED = (*PASSED_ON, process.SIGCHLD)
#: The search path for programs without a PATH.
SEARCH_PATH = b"/usr/bin:/bin"


class Attendant:
    """Waits for `child`. The HANDLED signals, and `more`, must be blocked already.

    With `reaps_all` it also reaps every other child: orphans of the sandbox.
    """

    def __init__(self, child: int, *, more: Iterable[int] = (), reaps_all: bool = False) -> None:
        self._child, self._waited = child, -1 if reaps_all else child
        self._signals = process.signal_descriptor((*HANDLED, *more))
        self._readers: dict[int, Callable[[int], object]] = {}
        self._poll = select.poll()
        self._poll.register(self._signals, select.POLLIN)
        #: Wait status of the child, once it has ended.
        self.status: int | None = None
        self._stopped = False

    def serve(self, fd: int, reader: Callable[[int], object], events: int = select.POLLIN) -> None:
        """Poll `fd` for `events` from now on, and call `reader` with those that occur."""
        self._readers[fd] = reader
        self._poll.register(fd, events)

    def serve_now(self, fd: int) -> None:
        """Call the reader of `fd` at once, if it has one and `fd` is readable."""
        if fd in self._readers:
            ready = select.poll()
            ready.register(fd, select.POLLIN)
            if ready.poll(0):
                self._readers[fd](select.POLLIN)

    def leave(self, fd: int) -> None:
        """Stop polling `fd`."""
        del self._readers[fd]
        self._poll.unregister(fd)

    def stop(self) -> None:
        """Make `run` return although the child has not ended."""
        self._stopped = True

    def run(
        self,
        on_signal: Callable[[int], object],
        patience: Callable[[], float | None] = lambda: None,
    ) -> int | None:
        """Wait until the child has ended, or `stop` was called; return its wait status, or None.

        `on_signal` is called with each signal except SIGCHLD. That happens before the child is reaped, so its
        pid is still its own. `patience` returns the milliseconds of the next wait (None: no limit).
        """
        while not self._stopped:
            for fd, events in self._poll.poll(patience()):
                if fd in self._readers:
                    self._readers[fd](events)
            for number in process.read_signals(self._signals):
                if number != process.SIGCHLD:
                    on_signal(number)
            if self._stopped or self._has_ended():
                break
        return self.status

    def _has_ended(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(self._waited, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == self._child:
                self.status = status
                return True
            if not pid:
                return False


def release_streams() -> None:
    """Replace our standard streams with /dev/null: their readers see the end when the command ends."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


def live(work: Callable[[], int], failed: Callable[[BaseException], int]) -> NoReturn:
    """Run the whole life of a forked process, which never returns into its parent's code.

    It exits with the result of `work`, or of `failed`, which reports the error.
    """
    code = 1
    try:
        try:
            code = work()
        except BaseException as error:
            code = failed(error)
    finally:
        os._exit(code)


def execute(argv: tuple[bytes, ...], environment: Mapping[bytes, bytes]) -> NoReturn:
    """Exec `argv`, found on the PATH of `environment`. Raises NotStarted with the most telling error."""
    failure: OSError | None = None
    for program in places(argv[0], environment.get(b"PATH", SEARCH_PATH)):
        try:
            os.execve(program, argv, environment)  # noqa: S606 - no shell, on purpose
        except OSError as error:
            # Like execvp, prefer the error of a program that may not be run to that of one that is missing.
            if failure is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                failure = error
    why = os.strerror(failure.errno or 0) if failure else "it has no name"
    number = failure.errno if failure else errno.ENOENT
    raise NotStarted(EXEC, f"{os.fsdecode(argv[0])!r} cannot be run: {why}", number) from failure


def spawn(argv: tuple[bytes, ...], environment: Mapping[bytes, bytes], stdio: Sequence[int]) -> int:
    """Start `argv`, found in the same way, as a child in its own session; return its pid.

    The kernel runs the child in our memory until its exec, so nothing is copied or freed. The C library
    leaves its own two signals, 32 and 33, ignored in it, as in any child of system(3). Raises the OSError of
    the last path.
    """
    streams = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)]
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for program in places(argv[0], environment.get(b"PATH", SEARCH_PATH)):
        try:
            os.stat(program)  # a failed child for each path would use up a pid of the sandbox
            return os.posix_spawn(program, argv, environment, file_actions=streams, setsid=True)
        except OSError as error:
            failure = error.with_traceback(None)  # which has this frame, which has the error
    raise failure


def places(name: bytes, path: bytes) -> list[bytes]:
    """Return the paths at which execvp looks for a program called `name`, in order."""
    if not name or b"/" in name:
        return [name] if name else []
    return [os.path.join(directory or b".", name) for directory in path.split(b":")]
