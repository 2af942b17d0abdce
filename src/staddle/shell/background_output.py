"""Output of background jobs after their command is over.

A job that holds the pipes of its command keeps them, and the next command gets new ones. One thread for all
sandboxes reads the old pipes here, into bounded logs: a pipe without a reader would block the job, a closed
pipe would kill it.
"""

from __future__ import annotations

import _thread
import os
import select
import threading
from collections import deque

from ..background import Worker
from ..observe.output import HeadTail
from ..observe.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..observe.redaction import Secrets

    StreamName = Literal["stdout", "stderr"]

#: Bytes kept of each stream, from its beginning and its end.
KEPT = 256 << 10
_AT_ONCE = 1 << 16
_PIECES = 17  # of that size: more than the largest pipe of an ordinary user


class BackgroundOutput:
    """Output of the background jobs that one command left behind.

    `job` is the newest of them, from `$!` after the command. `open` tells whether one of them may still
    print.
    """

    def __init__(
        self,
        job: int | None,
        command: bytes,
        kept: int | None = KEPT,
        *,
        transcript: Transcript | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        """Prepare logs. A `transcript` gets both streams in order of arrival, with `secrets` redacted."""
        self.job, self.command, self._transcript = job, command, transcript
        self.stdout, self.stderr = HeadTail(kept), HeadTail(kept)
        values = () if secrets is None else secrets.spelled
        self._redactors = (Redactor(values), Redactor(values)) if values else None
        self.open = False
        self._streams: dict[int, HeadTail] = {}
        self._turn = _thread.allocate_lock()

    def follow(self, stdout: int, stderr: int) -> None:
        """Take over these pipes (-1: none), and read them in the background to their end."""
        for fd, log in ((stdout, self.stdout), (stderr, self.stderr)):
            if fd >= 0:
                self._streams[fd] = log
        self.open = bool(self._streams)
        for fd in tuple(self._streams):
            _READER.add(fd, self)

    def catch_up(self) -> None:
        """Read the available output now, without the thread; at most the pipes' contents."""
        for fd in tuple(self._streams):
            for _ in range(_PIECES):
                self.read(fd)

    def texts(self) -> tuple[bytes, bytes]:
        """Return the kept standard output and standard error."""
        with self._turn:
            return self.stdout.value(), self.stderr.value()

    def read(self, fd: int) -> bool:
        """Read the available output. Returns whether more may come. For the reader."""
        with self._turn:
            log = self._streams.get(fd)
            if log is None:
                return False
            try:
                data = os.read(fd, _AT_ONCE)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if data:
                self._take(log, data)
                return True
            return False

    def _take(self, log: HeadTail, data: bytes) -> None:
        """Log the next bytes of a stream; empty data ends it."""
        is_error = log is self.stderr
        if self._redactors is not None:
            redactor = self._redactors[is_error]
            data = redactor.feed(data) if data else redactor.finish()
        if data:
            log.feed(data)
            if self._transcript is not None:
                self._transcript.feed("stderr" if is_error else "stdout", data)

    def end(self, fd: int) -> None:
        """Mark the end of a stream. For the reader."""
        with self._turn:
            log = self._streams.pop(fd, None)
            if log is not None:
                os.close(fd)
                self._take(log, b"")
            self.open = bool(self._streams)
            if not self.open and self._transcript is not None:
                self._transcript.close()

    def close(self) -> None:
        """Stop reading: its sandbox has ended."""
        for fd in tuple(self._streams):
            _READER.drop(fd, self)


class _PipeReader:
    """Reads the pipes of all background jobs in one thread."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._late: dict[int, BackgroundOutput] = {}
        self._turn = _thread.allocate_lock()
        self._worker = Worker(self._read, self._forget)

    def add(self, fd: int, late: BackgroundOutput) -> None:
        """Read from `fd` until no process has its other end open."""
        with self._turn:
            if self._epoll is None:
                self._epoll = select.epoll()
            self._late[fd] = late
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        self._worker.wake()

    def drop(self, fd: int, late: BackgroundOutput) -> None:
        """Stop reading from `fd`, and close it."""
        with self._turn:
            if self._late.get(fd) is not late:
                return
            del self._late[fd]
            if self._epoll is not None:
                # close() would not suffice: the pipe stays open elsewhere, and would be reported for ever.
                try:
                    self._epoll.unregister(fd)
                except OSError:
                    pass
            late.end(fd)

    def _read(self) -> float | None:
        epoll = self._epoll
        if epoll is None:
            return None
        for fd, _ in epoll.poll():
            late = self._late.get(fd)
            if late is None:
                continue
            if not late.read(fd):
                self.drop(fd, late)
                continue
            try:
                epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
            except OSError:
                continue  # closed with its sandbox meanwhile
        return 0.0

    def _forget(self) -> None:
        self._epoll, self._late = None, {}
        self._turn = _thread.allocate_lock()


_READER = _PipeReader()


#: Smaller pieces are joined: each takes some 150 bytes beside its own.
_SMALL = 4096


class Transcript:
    """The last `limit` bytes of both streams, by their offset among all bytes. Thread-safe."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._pieces: deque[tuple[int, StreamName, bytes | bytearray]] = deque()
        self._kept = 0
        self._news = threading.Condition()
        self.end = 0  # number of bytes so far
        self.closed = False  # nothing more comes

    def feed(self, stream: StreamName, data: bytes) -> None:
        """Add the next bytes."""
        with self._news:
            _, last, before = self._pieces[-1] if self._pieces else (0, "", b"")
            if last == stream and isinstance(before, bytearray) and len(before) + len(data) <= _SMALL:
                before.extend(data)
            else:
                small = len(data) <= _SMALL // 2
                self._pieces.append((self.end, stream, bytearray(data) if small else data))
            self.end += len(data)
            self._kept += len(data)
            while self._limit is not None and self._kept > self._limit and len(self._pieces) > 1:
                self._kept -= len(self._pieces.popleft()[2])
            self._news.notify_all()

    def close(self) -> None:
        """Mark the end of the output."""
        with self._news:
            self.closed = True
            self._news.notify_all()

    def since(self, offset: int) -> tuple[list[tuple[StreamName, bytes]], int]:
        """Return the output from `offset` on, and the number of its bytes that are no longer kept."""
        with self._news:
            pieces = self._pieces
            lost = max(0, (pieces[0][0] if pieces else self.end) - offset)
            found = [
                (stream, bytes(data[max(0, offset - start) :]))
                for start, stream, data in pieces
                if start + len(data) > offset
            ]
        return found, lost

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Wait for output after `offset`, or for the end. Returns whether either came in time."""
        with self._news:
            return self._news.wait_for(lambda: self.end > offset or self.closed, timeout)
