"""The agent's children with their sockets, how they are started, and the terminals of the sandbox.

All code between the agent's fork and the child's exec is here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import fcntl
import os
import select
import struct
import sys
import time

from ...ipc import agent_messages
from ...ipc.wire import EXEC, NotStarted
from ...linux import process
from ...linux.process import exit_status
from ..child import execute as become_program
from ..child import live
from . import loader, process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from .shell_files import ChannelFiles

    #: Confines this process and execs (argv, environment, directory). Raises NotStarted or OSError.
    Become = Callable[[tuple[bytes, ...], tuple[bytes, ...], bytes], NoReturn]

#: Signals that are meant to end a process.
_ENDING = (process.SIGINT, process.SIGTERM, process.SIGKILL)
#: Seconds until a message is sent again that failed because too many descriptors are in flight.
_TOO_MANY = 0.01
#: The most killed processes to report by name.
_MOST_NAMED = 100
_TIOCSPTLCK, _TIOCGPTN, _TIOCSWINSZ = 0x40045431, 0x80045430, 0x5414


class Child:
    """A process that the host program has asked for."""

    def __init__(self, pid: int, socket: QueuedSocket, files: ChannelFiles | None) -> None:
        self.pid, self.socket, self.files = pid, socket, files
        self.ending = process_tree.Ending(pid)
        self.again: tuple[bytes, tuple[bytes, ...], bytes, Become | None] = (b"", (), b"", None)
        self.is_file_server = False  # ours: a swap of trees need not wait for it
        self.is_ours = False  # our own process of a SPAWN_WHOLE, with the program below it
        self.above = 0  # the starter, if it is the parent: orphans of the child are below it
        self.ended = False
        #: Its descendants when all of them got a signal to end.
        self.doomed: dict[int, process_tree.ProcessEntry] = {}
        self.why, self.errno = b"", 0  # the reason, if it was not started

    def signal(self, number: int, *, everything: bool) -> None:
        """Send a signal to the process, if it has not ended, and to its descendants if `everything`."""
        if self.ended:
            return
        more = self._below() if everything or self.is_ours else set()
        if everything and number in _ENDING:
            self.doomed |= process_tree.seen(more)
        # Our own process above the command must not receive the signal.
        process_tree.signal((*(() if self.is_ours else (self.pid,)), *more), number)

    def end(self) -> None:
        """Kill everything below it and what was signalled to end before, because its socket was closed."""
        if not self.ended:
            process_tree.signal((*self._below(), self.pid), process.SIGKILL)
        process_tree.signal(self.doomed, process.SIGKILL, self.doomed)  # they may be orphans by now

    def _below(self) -> set[int]:
        return process_tree.below(self.above or self.pid, process_tree.table()) - {self.pid}


class QueuedSocket:
    """A socket that never blocks: messages without room are kept and sent later."""

    def __init__(self, raw: _socket.socket) -> None:
        raw.setblocking(False)
        self.raw = raw
        self._later: list[tuple[bytes, list[int]]] = []

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message, or keep it with copies of the descriptors."""
        if self._later or not self._sent(data, descriptors):
            self._later.append((data, [os.dup(fd) for fd in descriptors]))

    def flush(self) -> bool:
        """Send as many kept messages as there is room for; return whether any are left."""
        while self._later:
            data, descriptors = self._later[0]
            try:
                if not self._sent(data, descriptors):
                    return True
            except OSError:
                time.sleep(_TOO_MANY)
                return True
            for fd in descriptors:
                os.close(fd)
            del self._later[0]
        return False

    def _sent(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send a message; return whether there was room for it."""
        try:
            agent_messages.send_message(self.raw, data, descriptors)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                raise  # the caller must know that it was not sent: see `sent_at_any_rate`
            # Otherwise it is closed, which the agent learns when it reads.
        return True


def terminal(rows: int, columns: int, user: int) -> tuple[list[int], int]:
    """Open a new terminal of the sandbox; return its master, in a list, and its other side."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        (number,) = struct.unpack("i", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))
        fcntl.ioctl(master, _TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if user >= 0:
            os.chown(f"/dev/pts/{number}", user, -1)
        return [master], os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except BaseException:
        os.close(master)
        raise


def available(fd: int) -> bytes:
    """Read without waiting; empty if there is nothing."""
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def is_starting(pid: int, reports: dict[int, Child]) -> bool:
    """Whether a child has not exec'd yet: its report has neither data nor end of file."""
    for report, child in reports.items():
        if child.pid == pid:
            poll = select.poll()
            poll.register(report, select.POLLIN)
            return not poll.poll(0)
    return False


#: Exit codes as in a shell: missing program, not executable, and our own failure.
NOT_FOUND, NOT_RUNNABLE, NOT_CONFINED = 127, 126, 125
_TIOCSCTTY = 0x540E
#: Standard descriptors are first moved up to here, because they may have each other's numbers.
_ASIDE = 64


class SpawnSpec:
    """A process to start."""

    def __init__(
        self,
        argv: tuple[bytes, ...],
        environment: tuple[bytes, ...],
        directory: bytes,
        stdio: tuple[int, int, int],
        *,
        terminal: bool = False,
        whole: bool = False,
    ) -> None:
        """With `terminal`, its standard input becomes its controlling terminal.

        With `whole`, a process of ours stays above it, and kills what it leaves behind.
        """
        self.whole = whole
        self.argv, self.environment, self.directory = argv, environment, directory
        self.stdio, self.terminal = stdio, terminal


def start_file_server(socket: int, code: int, confine: Callable[[], None], null: int) -> tuple[int, int]:
    """Fork a file server that serves on `socket`, from the modules in `code`; returns as `start`.

    `null` becomes its three standard streams.
    """

    def serve(*_: object) -> NoReturn:
        confine()
        # No process in the sandbox may trace us: we are a fork of the agent, which has more rights.
        process.dumpable(False)
        process.close_from(3, keep=(socket, code))
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # errors instead of our death
            _signal.signal(number, _signal.SIG_IGN)
        load(code)
        sys.modules["staddle.inside.agent.file_server"].serve(_socket.socket(fileno=socket))
        os._exit(1)

    return start(SpawnSpec((), (), b"/", (null, null, null)), serve)


def load(code: int) -> None:
    """Run the modules in a memory file (standalone.code) that are not loaded yet, in this order."""
    import marshal

    data = b""
    while chunk := os.pread(code, 1 << 20, len(data)):
        data += chunk
    os.close(code)
    loader.load(marshal.loads(data)[1])  # noqa: S302 - the host program's own


def start(spec: SpawnSpec, become: Become) -> tuple[int, int]:
    """Fork a child that becomes `spec`; return its pid and a descriptor.

    The descriptor is at end of file once the program runs; otherwise it yields the reason for the failure.
    """
    report, report_to = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pid = os.fork()
    except BaseException:
        os.close(report)
        os.close(report_to)
        raise
    if pid == 0:
        _live(spec, become, report_to)
    os.close(report_to)
    return pid, report


def _live(spec: SpawnSpec, become: Become, report_to: int) -> NoReturn:
    """Be the child: set up its streams and become the program, or report on `report_to` why not."""

    def work() -> NoReturn:
        nonlocal report_to
        os.setsid()
        report_to = fcntl.fcntl(report_to, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
        aside = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for fd in spec.stdio]
        for number, fd in enumerate(aside):
            os.dup2(fd, number)
        if spec.terminal:
            fcntl.ioctl(0, _TIOCSCTTY, 0)
        process.default_signals()
        # Orphans stay below this process, where they are found and killed.
        process.subreaper()
        if spec.whole:
            _watched()
        become(spec.argv, spec.environment, spec.directory)

    live(work, lambda error: report(error, report_to))


def report(error: BaseException, report_to: int) -> int:
    """Report why a child does not become its program; return its exit status."""
    why = str(error) if isinstance(error, NotStarted | OSError) else f"{type(error).__name__}: {error}"
    try:
        os.write(report_to, b"%d %b" % (_errno(error), why.encode("utf-8", "backslashreplace")[:2048]))
    except OSError:
        pass
    return _code(error)


def _watched() -> None:
    """Continue as a child. The parent, which no process inside can signal, waits and kills the rest."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        return
    status = 0
    try:
        process.block_signals(range(1, 65))  # they are for the program
        process.close_from(0)
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                break
        process_tree.end_everything(os.getpid())
    finally:
        os._exit(exit_status(status))


def _errno(error: BaseException) -> int:
    return error.errno or 0 if isinstance(error, NotStarted | OSError) else 0


def _code(error: BaseException) -> int:
    if not isinstance(error, NotStarted) or error.code != EXEC:
        return NOT_CONFINED
    cause = error.__cause__ or FileNotFoundError(errno.ENOENT, "")
    missing = isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENOTDIR)
    return NOT_FOUND if missing else NOT_RUNNABLE


def execute(argv: tuple[bytes, ...], environment: tuple[bytes, ...], directory: bytes) -> NoReturn:
    """Exec the program, with no confinement besides that of this process.

    Without environment and directory, it gets those with which the agent itself was started.
    """
    try:
        os.chdir(directory or b".")
    except OSError as error:
        why = f"{os.fsdecode(directory)!r} cannot be entered: {error.strerror}"
        raise NotStarted(0, why, error.errno) from None
    variables = dict(item.split(b"=", 1) for item in environment) if environment else dict(os.environb)
    become_program(argv, variables)


def end_others(children: dict[int, Child], ours: set[int]) -> tuple[tuple[int, bytes], ...]:
    """Kill everything except `ours`; return pid and name of each that none of the others started.

    Returns when none of them can run any more. The kernel may still free their memory.
    """

    def others() -> set[int]:
        processes = process_tree.table()
        found = process_tree.below(os.getpid(), processes)
        for pid, child in children.items():
            # The table lacks our own processes, and children that have not exec'd yet.
            found |= process_tree.below(pid, processes)
            if not child.is_ours and pid not in processes and _runs(pid):
                found.add(pid)
        found -= ours
        found -= {pid for pid, child in children.items() if child.is_ours}  # they end with their programs
        running = (pid for pid in found if pid in processes and processes[pid].runs)
        return {*running, *found.difference(processes)}

    found = others()
    entries = process_tree.seen(found)
    first = sorted(pid for pid in found if pid not in entries or entries[pid].parent not in found)
    names = tuple((pid, process_tree.name(pid)) for pid in first[:_MOST_NAMED])
    if found:
        process_tree.signal(found, process_tree.SIGSTOP)  # none continues because another has ended
        process_tree.kill_all(others)
    return names


def is_child(pid: int) -> bool:
    """Whether `pid` is our child, which we have not reaped yet."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _runs(pid: int) -> bool:
    """Whether a child of this process has not ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
