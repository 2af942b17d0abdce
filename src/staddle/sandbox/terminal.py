"""A terminal of the sandbox with a program on it, for people and for programs that need one."""

from __future__ import annotations

import os
import select
import time

from .. import check
from ..errors import SandboxClosed
from ..interrupts import unmistakable
from ..launch import pty
from ..launch.signals import SIGHUP, SIGKILL
from ..observe.redaction import Redactor
from .arguments import input_bytes, patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from ..ipc.agent_client import SpawnedProcess
    from ..observe.redaction import Secrets

_LARGEST = 65535
#: The longest single wait in seconds: the kernel takes milliseconds in 31 bits.
_LONGEST = 1e6
#: Seconds for a program to exit after its terminal is closed.
_GRACE = 0.5


@unmistakable(own=("close", "kill"))
class Terminal:
    """The user's side of a pseudo-terminal: data written here is typed there.

    Reads return the program's raw output, including echo and control sequences.
    """

    def __init__(self, spawned: SpawnedProcess, rows: int, cols: int, secrets: Secrets | None = None) -> None:
        self.pid = spawned.pid  # of its program, as seen inside
        self.rows, self.cols = rows, cols
        #: Whether `read` reached the end: no program has the terminal open.
        self.at_end = False
        self._spawned = spawned
        self._master = spawned.master
        self._redactor = Redactor(secrets.spelled) if secrets is not None and secrets.values else None
        os.set_blocking(self._master, False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output, or the program has ended."""
        if self._master < 0:
            raise SandboxClosed(
                "the terminal is closed",
                why="close() was called, on it or on its sandbox",
                fix="open another one",
            )
        return self._master

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._master < 0

    def end_fileno(self) -> int:
        """Return a descriptor that is readable when the program has ended."""
        return self._spawned.fileno()

    def read(self, timeout: float | None = None) -> bytes:
        """Wait for output and return it; empty after the timeout, or when it is `at_end`."""
        limit = patience(timeout)
        until = None if limit is None else time.monotonic() + limit
        while (data := self.read_some()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return b""
            self._await(select.POLLIN, left)
        return data

    def read_some(self) -> bytes | None:
        """Read the available output; None if there is none yet, empty at the end."""
        if self._redactor is None:
            data = pty.read_available(self.fileno())
        else:
            data = pty.read_redacted(self.fileno(), self._redactor)
        self.at_end = data == b""
        return data

    def write(self, data: bytes | str) -> None:
        """Type `data`. Waits while the program does not read."""
        rest = memoryview(input_bytes(data))
        while rest:
            sent = self.write_some(rest)
            rest = rest[sent:]
            if not sent:
                self._await(select.POLLOUT, None)

    def write_some(self, data: bytes | memoryview) -> int:
        """Type as much of `data` as fits. Returns the number of bytes."""
        return pty.write_available(self.fileno(), data)

    def resize(self, rows: int, cols: int) -> None:
        """Set the size; programs in the foreground get SIGWINCH."""
        size(rows, cols)
        self.rows, self.cols = rows, cols
        pty.set_size(self.fileno(), rows, cols)

    @property
    def failure(self) -> str:
        """Reason why its program could not be run; else empty."""
        return self._spawned.failure

    def poll(self) -> int | None:
        """Return the program's exit code, 128+N for signal N; None while it runs."""
        return self._spawned.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the program's end. Returns its exit code, or None after `timeout` seconds."""
        return self._spawned.wait(patience(timeout))

    def signal(self, number: int) -> None:
        """Send the program a signal, unless it has ended."""
        self._spawned.signal(number)

    def kill(self) -> None:
        """Kill the program and all processes that it started."""
        if self.poll() is None:
            self._spawned.signal(SIGKILL, everything=True)

    def close(self) -> None:
        """Send the program SIGHUP, and kill it if it does not exit. A second call does nothing."""
        if self._master < 0:
            return
        master, self._master = self._master, -1
        os.close(master)
        try:
            if self._spawned.poll() is None:
                self._spawned.signal(SIGHUP)
                self._spawned.wait(_GRACE)
        except SandboxClosed:
            pass
        self._spawned.close()

    def _await(self, event: int, left: float | None) -> None:
        waiting = select.poll()
        waiting.register(self.fileno(), event)
        waiting.poll(None if left is None else min(left, _LONGEST) * 1000 + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Terminal {self.cols}x{self.rows}{' (closed)' if self._master < 0 else ''}>"


def size(rows: int, cols: int) -> None:
    """Raise InvalidCall unless a terminal can have this size."""
    for name, value in (("rows", rows), ("cols", cols)):
        check.count(name, value, 1, _LARGEST)
