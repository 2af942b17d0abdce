"""One command of a shim: bytes are copied between the agent's streams and the sandbox's.

No descriptor of the host goes inside: a process could reopen it with other rights. The sandbox gets our
pipes, or its own terminal.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import termios
import tty

from .._value import Value
from ..launch.signals import SIGINT, SIGKILL, SIGTERM
from ..linux.syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ipc.agent_client import SpawnedProcess

_PIECE = 64 << 10
#: The signals that end a command whose shim is gone, and the seconds between them.
_LADDER, _GRACE = (SIGINT, SIGTERM, SIGKILL), 0.2
#: Seconds between two checks of the terminal's size.
_RESIZE_EVERY = 0.5


class ShimStreams(Value):
    """Our descriptors for the standard streams of a shim, and one for the answer.

    They are reopened if possible, so that their flags are not shared with the agent.
    """

    stdin: int
    stdout: int
    stderr: int
    reply: int
    shim: int  # a pidfd

    @property
    def on_terminal(self) -> bool:
        """Whether the shim runs on a terminal."""
        return os.isatty(self.stdin) and os.isatty(self.stdout)

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns of the terminal; None if it has no size, or is closed."""
        try:
            size = termios.tcgetwinsize(self.stdin)
        except termios.error:
            return None
        return size if all(size) else None

    @property
    def merged(self) -> bool:
        """Whether standard output and standard error are the same file."""
        return self.stdout == self.stderr

    def close(self) -> None:
        """Close them all."""
        for descriptor in {self.stdin, self.stdout, self.stderr, self.reply, self.shim}:
            os.close(descriptor)


def open_streams(pid: int, numbers: tuple[int, int, int, int]) -> ShimStreams:
    """Open a shim's descriptors with these numbers. OSError if the shim has ended."""
    opened: list[int] = []
    try:
        opened.append(os.pidfd_open(pid))
        stdin, stdout, stderr, reply = (f"/proc/{pid}/fd/{number}" for number in numbers)
        opened.append(_open(stdin, os.O_RDONLY, opened[0]))
        if _is_regular(opened[-1]):
            os.lseek(opened[-1], _position(pid, numbers[0]), os.SEEK_SET)
        opened.append(_open(stdout, os.O_WRONLY, opened[0]))
        same = os.path.samestat(os.stat(stdout), os.stat(stderr))
        opened.append(opened[-1] if same else _open(stderr, os.O_WRONLY, opened[0]))
        opened.append(_open(reply, os.O_WRONLY, opened[0]))
    except BaseException:
        for descriptor in set(opened):
            os.close(descriptor)
        raise
    shim, theirs_in, theirs_out, theirs_err, answer = opened
    return ShimStreams(theirs_in, theirs_out, theirs_err, answer, shim)


def _open(path: str, mode: int, shim: int) -> int:
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind) or stat.S_ISBLK(kind):
        raise OSError(errno.EINVAL, "a standard stream is a directory or a disk")
    if stat.S_ISCHR(kind) and mode != os.O_RDONLY:
        mode = os.O_RDWR if path.endswith("/0") else mode
    to_file = stat.S_ISREG(kind) and mode == os.O_WRONLY
    if to_file:
        # Share the agent's descriptor and its position, so that the agent's next output follows ours.
        try:
            return _shared(shim, path)
        except OSError:
            pass  # the kernel refuses to share it: append to the file
    try:
        appended = os.O_APPEND if to_file else 0
        return os.open(path, mode | appended | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError:
        return _shared(shim, path)  # another user made the pipe, as in `sudo -u agent … | tee log`


def _shared(shim: int, path: str) -> int:
    """A duplicate of a process's descriptor; it shares its flags with the agent."""
    return call("pidfd_getfd", shim, int(path.rpartition("/")[2]), 0)


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _position(pid: int, number: int) -> int:
    with open(f"/proc/{pid}/fdinfo/{number}") as file:
        return int(file.readline().split()[1])


class StreamFlow:
    """Copies bytes between two descriptors without blocking; buffers at most one piece."""

    def __init__(
        self, source: int, target: int, *, owns_source: bool = False, owns_target: bool = False
    ) -> None:
        self.source, self.target = source, target
        self._owned = [*([source] if owns_source else ()), *([target] if owns_target else ())]
        self._rest = memoryview(b"")
        #: A writable pipe has room for this much; writing more could block.
        self._piece = select.PIPE_BUF if os.get_blocking(target) else _PIECE
        self.open = True

    def interest(self) -> tuple[int, int]:
        """(descriptor, event) to wait for."""
        return (self.target, select.POLLOUT) if self._rest else (self.source, select.POLLIN)

    def step(self) -> bool:
        """Copy what can be copied without blocking; return whether anything was."""
        if not self.open:
            return False
        try:
            if not self._rest:
                data = os.read(self.source, _PIECE)
                if not data:
                    self.close()
                    return False
                self._rest = memoryview(data)
            self._rest = self._rest[os.write(self.target, self._rest[: self._piece]) :]
        except BlockingIOError:
            return False
        except OSError:  # the reader is gone, or the terminal was closed
            self.close()
            return False
        return True

    def is_idle(self) -> bool:
        """Whether there is nothing to copy at this moment."""
        while self.step():
            pass
        return not self._rest

    def close(self) -> None:
        """Close the descriptors it owns, so that the other side sees the end."""
        self.open = False
        while self._owned:
            os.close(self._owned.pop())


class RelayedCommand:
    """A running command of a shim. `done` is called with its status before the shim gets the answer."""

    def __init__(
        self,
        streams: ShimStreams,
        spawned: SpawnedProcess,
        flows: tuple[list[StreamFlow], list[StreamFlow]],
        done: Callable[[int], None],
    ) -> None:
        self._streams, self._spawned, self._done = streams, spawned, done
        self._inputs, self._outputs = flows
        self._answered = self._orphaned = False
        self._size: tuple[int, int] | None = None

    def attend(self) -> None:
        """Relay the command until its end, then its background processes while they print."""
        before = _raw(self._streams) if self._streams.on_terminal else None
        try:
            while self._status() is None or (self._outputs_open() and not self._orphaned):
                self._wait()
            if not self._answered:
                self._answer()
        finally:
            if before is not None:
                _restore(self._streams.stdin, before)
            for flow in (*self._inputs, *self._outputs):
                flow.close()
            if self._spawned.poll() is None:
                self._spawned.signal(SIGKILL, everything=True)
            self._spawned.close()

    def _status(self) -> int | None:
        status = self._spawned.poll()
        if (
            status is not None
            and not self._answered
            and all(flow.is_idle() for flow in self._outputs if flow.open)
        ):
            self._answer()
        return status if self._answered or self._orphaned else None

    def _answer(self) -> None:
        status = self._spawned.poll()
        self._answered = True
        for flow in self._inputs:
            flow.close()
        if self._spawned.failure:
            _write(self._streams.stderr, f"staddle: {self._spawned.failure}\n")
        self._done(125 if status is None else status)
        drained = "" if self._outputs_open() else " drained"
        if not drained and self._streams.on_terminal:
            drained = " drained"
        _write(self._streams.reply, f"{125 if status is None else status}{drained}\n")

    def _outputs_open(self) -> bool:
        return any(flow.open for flow in self._outputs)

    def _wait(self) -> None:
        poll = select.poll()
        if not self._answered:
            poll.register(self._streams.shim, select.POLLIN)
            poll.register(self._spawned.fileno(), select.POLLIN)
        events: dict[int, int] = {}
        flows = [flow for flow in (*self._inputs, *self._outputs) if flow.open]
        for flow in flows:
            descriptor, event = flow.interest()
            events[descriptor] = events.get(descriptor, 0) | event
        for descriptor, event in events.items():
            poll.register(descriptor, event)
        if self._streams.on_terminal:
            self._resize()
        for descriptor, _ in poll.poll(_RESIZE_EVERY * 1000 if self._streams.on_terminal else None):
            if descriptor == self._streams.shim:
                self._orphan()
        for flow in flows:
            flow.step()

    def _orphan(self) -> None:
        """End the command: its shim was killed."""
        self._orphaned = self._answered = True
        for number in _LADDER:
            if self._spawned.poll() is None:
                self._spawned.signal(number, everything=True)
                self._spawned.wait(_GRACE if number != SIGKILL else None)

    def _resize(self) -> None:
        size = self._streams.size
        if size is not None and size != self._size:
            self._size = size
            termios.tcsetwinsize(self._spawned.master, size)


def _raw(streams: ShimStreams) -> list[object] | None:
    """Set the agent's terminal to raw mode; return its previous modes."""
    try:
        before = termios.tcgetattr(streams.stdin)
        tty.setraw(streams.stdin, termios.TCSADRAIN)  # keeps keys typed already
    except termios.error:
        return None
    return before


def _restore(descriptor: int, modes: list[object]) -> None:
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)  # type: ignore[arg-type]
    except termios.error:
        pass  # the terminal is closed


def _write(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode("utf-8", "replace"))
    except OSError:
        pass  # nothing reads there any more
