"""One bash process, from the host program: its pipes, its files, its socket. It runs one text at a time."""

from __future__ import annotations

import _socket
import os
import select
import time

from ..errors import not_handed_over
from ..ipc import agent_messages
from ..ipc.opened_shell import OpenShellFiles, lost, opened_shell, refused, shell_files
from ..ipc.wire import Malformed, close_all
from ..linux.file_room import FILE_ROOM
from ..linux.fileio import put, resize_pipe, unread_bytes
from ..linux.process import is_stopped, parent_of
from .idle import TO_USE, lost_or_full
from .protocol import ASK_AGAIN, Run, question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ipc.opened_shell import OpenedShell

    Sink = Callable[[bytes], None]

#: Pipes of a command, for `drain`.
OUTPUT, ERRORS = 1, 2

#: Initial pipe size; a command that fills a pipe gets a larger one while it runs.
_PIPE, _LARGE_PIPE = 64 << 10, 256 << 10
#: The most bytes that one call of `step` passes on.
_AT_ONCE = 256 << 10
#: The most bytes of a state dump that are kept.
_LONGEST_DUMP = 32 << 20
#: How often the done pipe is read for output since the last run: a job may print endlessly.
_MOST_NOISE = 16
_TICKS = os.sysconf("SC_CLK_TCK")
#: Seconds for the agent to answer a shell's request, and to finish ending a run. An agent that takes longer
#: has been stopped, or worse.
_PATIENCE, _LAST_PATIENCE = 10.0, 5.0
#: Seconds without an answer after which the agent is checked: a stopped one never answers.
_LOOK = 0.5

#: One descriptor of this process that is always readable, once there is a shell.
_bells: list[int] = []


def _bell() -> int:
    if not _bells:
        _bells.append(os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    return _bells[0]


class BashProcess:
    """A shell process. Not thread-safe, except for `wake_driver` and `kill`."""

    def __init__(self, opened: OpenedShell) -> None:
        self.pid, self.host_pid = opened.pid, opened.host_pid
        self.ended: int | None = None
        self.used: tuple[int, int, int, int, int, int] | None = None  # in all, once it has ended
        self.why = ""
        self.hello = b""
        self._socket = _socket.socket(fileno=opened.socket)
        self._socket.setblocking(False)
        self._control = opened.control
        self._files: OpenShellFiles | None = None
        self._length = 0
        self._left: set[int] = set()
        #: Whether the next run needs new pipes: a job has the present ones, or may read its input.
        self.stale = False
        self.noise: bytearray | None = None
        self._readable: dict[int, Sink] = {}
        self._run = Run(b"", b"")  # none yet
        self._use(opened.files)
        self.wake()

    # ---------------------------------------------------------------- files

    @property
    def files(self) -> OpenShellFiles:
        """Its files, requested again if they were released."""
        return self._files or self._use_again(agent_messages.ATTACH)

    @property
    def parked(self) -> bool:
        """Whether its files were released."""
        return self._files is None

    def attach(self) -> None:
        """Request its files again, if they were released."""
        if self._files is None:
            self._use_again(agent_messages.ATTACH)

    def _use_again(self, kind: bytes) -> OpenShellFiles:
        with FILE_ROOM.reserve(TO_USE):
            return self._use(self._ask_files(kind))

    def _use(self, files: OpenShellFiles) -> OpenShellFiles:
        try:
            self._epoll = select.epoll()
        except OSError:
            close_all(files.descriptors())
            raise
        self._files = files
        self._length = _LONGEST_DUMP  # contents unknown: treat it as full
        self._bell = _bell()
        self._quick, self._ends = select.poll(), select.poll()
        for fd in (files.done, self._socket.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
            self._quick.register(fd, select.POLLIN)
        for fd in (files.output, files.errors):
            # Edge-triggered: a pipe that was written to and closed stays ready for ever.
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
            self._ends.register(fd, select.POLLIN)
        self._all_ended = [(files.output, select.POLLHUP), (files.errors, select.POLLHUP)]
        return files

    def park(self) -> None:
        """Close all but the socket and the control pipe. Only between runs, when no job holds the pipes."""
        if not self.stale:
            self._drop_files()

    def renew(self) -> None:
        """Replace pipes that were left to background jobs."""
        self._drop_files()
        self._use_again(agent_messages.RENEW)

    def leave(self, stream: str) -> int:
        """Give up one of the pipes; the caller owns it from now on."""
        fd: int = getattr(self.files, stream)
        self._epoll.unregister(fd)
        self._ends.unregister(fd)
        self._left.add(fd)
        self.stale = True
        return fd

    def _drop_files(self) -> None:
        """Close the files, except pipes that were left to background jobs."""
        if self._files is not None:
            self._epoll.close()
            for fd in self._files.descriptors():
                if fd not in self._left:
                    os.close(fd)
        self._files = None
        self._left.clear()
        self.stale = False

    def close(self) -> None:
        """Release the process. If it still runs, it ends with all its children."""
        self._drop_files()
        self._socket.close()
        if self._control >= 0:
            fd, self._control = self._control, -1
            os.close(fd)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `step` has work."""
        return self._epoll.fileno()

    # ---------------------------------------------------------------- the socket

    def wake_driver(self) -> None:
        """Make `step` return at once, now or at its next call. From any thread, without the agent."""
        try:
            self._epoll.register(self._bell, select.EPOLLIN)
        except (OSError, ValueError):
            pass  # already registered, or no run: the files were released

    def kill(self) -> None:
        """End the process and its children, and wake the thread that waits for it. From any thread.

        The descriptors stay open: another thread may be using them.
        """
        try:
            self._socket.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed, or the agent is gone

    def ask_step(self, step: int, began: float, newest_job: int) -> None:
        """Take a step of ending the run that began at `began`."""
        if step == ASK_AGAIN:
            self.write_more(question(self.files.paths, self._run.nonce))
            return
        age = time.monotonic() - began
        since = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age) * _TICKS)
        try:
            agent_messages.send_message(
                self._socket, agent_messages.encode(agent_messages.END_RUN, step, since, newest_job)
            )
        except BlockingIOError:
            pass  # it will be asked again
        except OSError as error:
            raise lost_or_full(error) from None

    def settle(self) -> None:
        """Wait until the agent has handled all requests: a late step would hit the next run."""
        self._ask(agent_messages.PING, agent_messages.PONG, 0, patience=_LAST_PATIENCE)

    def start_another(self) -> BashProcess:
        """Start another shell in the same way."""
        with FILE_ROOM.reserve(TO_USE):
            return BashProcess(opened_shell(self._ask(agent_messages.AGAIN, agent_messages.OPENED)))

    def _ask_files(self, kind: bytes) -> OpenShellFiles:
        message = self._ask(kind, agent_messages.FILES)
        return shell_files(message, message.fields[0], message.descriptors)

    def _ask(
        self, kind: bytes, expected: bytes, *fields: int, patience: float = _PATIENCE
    ) -> agent_messages.Message:
        try:
            agent_messages.send_message(self._socket, agent_messages.encode(kind, *fields))
        except OSError as error:
            raise lost_or_full(error) from None
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0:
            if not poll.poll(min(left, _LOOK) * 1000 + 1) and is_stopped(parent_of(self.host_pid)):
                raise lost("its agent was stopped, and does not answer")
            for message in self._messages():
                if message.kind == expected:
                    return message
                if message.kind == agent_messages.REFUSED:
                    raise refused(message, "the shell could not be used")
                message.close()
        raise lost("its agent does not answer")

    def _messages(self) -> list[agent_messages.Message]:
        """Receive the messages on the socket, and record the end of the process."""
        found: list[agent_messages.Message] = []
        while True:
            try:
                message = agent_messages.receive_message(self._socket)
            except BlockingIOError:
                return found
            except (Malformed, OSError) as error:
                raise lost_or_full(error) from None
            if message is None:
                raise lost()
            if message.kind == agent_messages.ENDED:
                self.ended, self.why = message.fields[0], message.fields[1].decode("utf-8", "replace")
                self.used = message.fields[3]
            found.append(message)
            if message.kind in (agent_messages.FILES, agent_messages.OPENED):
                return found

    # ---------------------------------------------------------------- a run

    def idle(self) -> bool:
        """Process events since the last run. Returns whether the process still exists."""
        done = self.files.done
        for _ in range(_MOST_NOISE):
            ready = self._quick.poll(0)
            if not ready or self.ended is not None:
                break
            for fd, _ in ready:
                if fd == done:
                    self._read_done()
                else:
                    self._messages()
        return self.ended is None

    def _hand_over(self, text: bytes, status: int, give_back: bytes, stdin: bytes | None) -> None:
        """Write the text, the status and the input to the files that the shell reads."""
        files = self._files or self.files
        try:
            before, self._length = self._length, max(self._length, len(text))
            if os.pwrite(files.text, text, 0) < len(text):  # usually in one write
                put(files.text, text)
            if len(text) < before:
                os.ftruncate(files.text, len(text))
            self._length = len(text)
            if status:
                os.pwrite(files.status, b"%-16b %-3d\n" % (give_back, status), 0)
            if stdin is not None:
                os.ftruncate(files.input, 0)
                put(files.input, stdin)
        except OSError as error:
            raise not_handed_over(error, fix="put it into a file") from error

    def begin(  # noqa: PLR0917 - on every command's path
        self,
        run: Run,
        out: Sink,
        err: Sink,
        text: bytes,
        status: int = 0,
        give_back: bytes = b"",
        stdin: bytes | None = None,
        *,
        listen: bool = False,
    ) -> None:
        """Hand `text` over, and drive `run` from now on.

        A `status` becomes `$?` for the text, through the word `give_back` for `return`. With `listen`, the
        shell's own output is kept in `noise`.
        """
        self._hand_over(text, status, give_back, stdin)
        run.begin_at(time.monotonic())  # when the text and its input are there
        self._readable, self._waits_for_room, self._sent = {}, False, 0
        self._grown: set[int] = set()
        self.noise = bytearray() if listen else None
        self._run, self._out, self._err = run, out, err
        if self.ended is None:
            self._write()
        else:
            run.shell_ended(self.ended)

    def wake(self) -> None:
        """Wake the process with an empty line: its first command is about to come."""
        if self._control >= 0 and self.ended is None:
            try:
                os.write(self._control, b"\n")
            except OSError:
                pass  # it is gone or busy

    def has_begun(self, run: Run) -> bool:
        """Whether part of this run may have been written to the shell."""
        return self._run is run

    def say_instead(self, run: Run, lines: bytes) -> bool:
        """Write these lines to a shell that has all of `run`'s lines or none; False if it may have a part."""
        if len(run.unwritten) > select.PIPE_BUF:
            return False
        run.unwritten = memoryview(lines)
        self._write()
        return True

    def wait_briefly(self) -> None:
        """Wait a millisecond for the answer only: output need not wake us before it."""
        # Twice: the first message of a new shell may be its greeting.
        for _ in range(2):
            if self._waits_for_room or self._run.over:
                return
            ready = self._quick.poll(1)
            if not ready:
                return
            self._handle(ready)

    def step(self, timeout: float = 0) -> None:
        """Do the available work, after waiting up to `timeout` seconds (-1: without limit)."""
        run = self._run
        if not run.over:
            self._handle(self._epoll.poll(0 if self._readable else timeout))
        room = _AT_ONCE
        for fd, sink in tuple(self._readable.items()):
            while room > 0:
                data = self._read(fd)
                if not data:  # a short read is not the end: there may be packets (O_DIRECT)
                    del self._readable[fd]
                    break
                room -= len(data)
                sink(data)

    @property
    def pending(self) -> bool:
        """Whether output can be read without waiting."""
        return bool(self._readable)

    def drain(self, streams: int = OUTPUT | ERRORS) -> int:
        """Pass on the rest of these pipes after a run. Returns the pipes that a process still holds."""
        files, held = self._files or self.files, 0
        if self._ends.poll(0) == self._all_ended and not self._grown:
            return 0  # the usual case: they are empty, and no process has them
        if streams & OUTPUT and self._drain(files.output, self._out):
            held |= OUTPUT
        if streams & ERRORS and self._drain(files.errors, self._err):
            held |= ERRORS
        return held

    def _drain(self, fd: int, sink: Sink) -> bool:
        left = _LARGE_PIPE if fd in self._grown else _PIPE
        while left >= 0:  # read beyond the pipe's size and short pieces, as in `step`
            try:
                data = os.read(fd, _PIPE)
            except BlockingIOError:
                break
            if not data:
                if fd in self._grown:
                    resize_pipe(fd, _PIPE)
                return False
            sink(data)
            left -= len(data)
        return True

    def unread(self) -> bool:
        """Whether the shell ended before it read any of the run's lines, which may then run elsewhere."""
        if self._sent == 0:
            return True
        return unread_bytes(self._control) >= self._sent

    def write_more(self, data: bytes) -> None:
        """Write further lines for the run."""
        self._run.unwritten = memoryview(bytes(self._run.unwritten) + data)
        self._write()

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        files, run = self._files or self.files, self._run
        for fd, _ in ready:
            if fd == files.done:
                run.feed(self._read_done(), files.paths)
            elif fd == files.output:
                self._readable[fd] = self._out
            elif fd == files.errors:
                self._readable[fd] = self._err
            elif fd == self._control:
                self._write()
            elif fd == self._bell:
                self._epoll.unregister(fd)
            else:
                self._take_messages()

    def _take_messages(self) -> None:
        files, run = self.files, self._run
        for message in self._messages():
            if message.kind == agent_messages.ENDED:
                # It may have answered just before its end.
                while noise := self._read_done():
                    run.feed(noise, files.paths)
                run.shell_ended(message.fields[0])
            else:
                message.close()

    def _read_done(self) -> bytes:
        try:
            data = os.read((self._files or self.files).done, _PIPE)
        except BlockingIOError:
            return b""
        if self.noise is not None and len(self.noise) < _LONGEST_DUMP:
            self.noise += data
        if not self.hello and (at := data.find(b"/hello.")) >= 0:
            self.hello = data[at + 7 : at + 15].partition(b":")[0]
        return data

    def _read(self, fd: int) -> bytes:
        try:
            data = os.read(fd, _LARGE_PIPE if fd in self._grown else _PIPE)
        except BlockingIOError:
            return b""
        if len(data) == _PIPE and fd not in self._grown:
            self._grown.add(fd)
            resize_pipe(fd, _LARGE_PIPE)
        return data

    def _write(self) -> None:
        run = self._run
        try:
            while run.unwritten:
                count = os.write(self._control, run.unwritten)
                self._sent += count
                run.unwritten = run.unwritten[count:]
        except BlockingIOError:
            if not self._waits_for_room:
                self._waits_for_room = True
                self._epoll.register(self._control, select.EPOLLOUT)
            return
        except BrokenPipeError:
            run.unwritten = run.unwritten[:0]  # it has ended; the agent will report it
        if self._waits_for_room:
            self._waits_for_room = False
            self._epoll.unregister(self._control)
