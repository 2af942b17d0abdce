"""Processes and terminals of a sandbox, for asyncio."""

from __future__ import annotations

import asyncio
import os
import time

from ...errors import WaitTimeout
from ...launch.signals import SIGKILL
from ..arguments import input_bytes, patience
from .event_loop import in_thread, readable, writable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeVar

    T = TypeVar("T")

    from ..processes import Output, Process
    from ..terminal import Terminal

#: Seconds that a thread waits at a time.
_SLICE = 0.2


class AsyncProcess:
    """A background program in a sandbox, as `Process`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid, self.command = process.pid, process.command
        self._stdin = asyncio.Lock()

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self._process.running

    def poll(self) -> int | None:
        """Return its exit code, 128+N for signal N; None while it runs."""
        return self._process.poll()

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Returns its exit code, or None if it still runs after `timeout` seconds."""
        return await _ended(self._process, timeout)

    def output(self, offset: int | None = None) -> Output:
        """Return its output so far; see `Process.output`."""
        return self._process.output(offset)

    @property
    def timed_out(self) -> bool:
        """Whether its timeout ended it."""
        return self._process.timed_out

    async def wait_for_output(self, timeout: float | None = None, *, offset: int = 0) -> Output:
        """Wait for output after `offset` and return it; see `Process.wait_for_output`."""
        until = _until(timeout)
        while True:
            found = await in_thread(lambda: self._process.wait_for_output(_SLICE, offset=offset))
            is_over = self._process._transcript.closed
            if found or is_over or (until is not None and time.monotonic() >= until):
                return found

    async def wait_for_text(self, text: str, timeout: float | None = None) -> Output:
        """Wait until `text` is in its output, and return the output. Raises WaitTimeout otherwise."""
        return await self._in_slices(lambda left: self._process.wait_for_text(text, left), timeout)

    async def wait_for_port(self, port: int, timeout: float | None = None) -> None:
        """Wait until a server inside listens on `port` of its loopback. Raises WaitTimeout otherwise."""
        await self._in_slices(lambda left: self._process.wait_for_port(port, left), timeout)

    async def _in_slices(self, wait: Callable[[float], T], timeout: float | None) -> T:
        """Wait in a thread for short periods, so that a cancelled task ends soon."""
        until = _until(timeout)
        while True:
            left = _SLICE if until is None else max(0.0, min(_SLICE, until - time.monotonic()))
            try:
                return await in_thread(wait, left)
            except WaitTimeout:
                if not self.running or (until is not None and time.monotonic() >= until):
                    raise

    async def send_stdin(self, data: bytes | str) -> None:
        """Write to its standard input. Waits while it does not read; raises BrokenPipeError after its end."""
        rest = memoryview(input_bytes(data))
        async with self._stdin:
            while rest:
                sent = self._process.send_some(rest)
                rest = rest[sent:]
                if not sent:
                    await writable(self._process.stdin_fileno())

    def close_stdin(self) -> None:
        """Close its standard input. A second call does nothing."""
        self._process.close_stdin()

    def kill(self, signal: int = SIGKILL) -> None:
        """Send a signal to it and all processes that it started."""
        self._process.kill(signal)

    def __repr__(self) -> str:
        return f"<Async{repr(self._process)[1:]}"


class AsyncTerminal:
    """A terminal of the sandbox with a program on it, as `Terminal`. One task reads, one writes."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.pid = terminal.pid

    async def read(self, timeout: float | None = None) -> bytes:
        """Wait for output and return it; empty after the timeout, or when it is `at_end`."""
        limit = patience(timeout)
        until = None if limit is None else time.monotonic() + limit
        while (data := self._terminal.read_some()) is None:
            if not await readable(self._terminal.fileno(), until):
                return b""
        return data

    @property
    def at_end(self) -> bool:
        """Whether `read` reached the end: no program has the terminal open."""
        return self._terminal.at_end

    async def write(self, data: bytes | str) -> None:
        """Type `data`. Waits while the program does not read."""
        rest = memoryview(input_bytes(data))
        while rest:
            sent = self._terminal.write_some(rest)
            rest = rest[sent:]
            if not sent:
                await writable(self._terminal.fileno())

    def resize(self, rows: int, cols: int) -> None:
        """Set the size; programs in the foreground get SIGWINCH."""
        self._terminal.resize(rows, cols)

    def poll(self) -> int | None:
        """Return the program's exit code, 128+N for signal N; None while it runs."""
        return self._terminal.poll()

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the program's end. Returns its exit code, or None after `timeout` seconds."""
        return await _ended(self._terminal, timeout)

    def signal(self, number: int) -> None:
        """Send the program a signal, unless it has ended."""
        self._terminal.signal(number)

    def kill(self) -> None:
        """Kill the program and all processes that it started."""
        self._terminal.kill()

    async def close(self) -> None:
        """Send the program SIGHUP, and kill it if it does not exit. A second call does nothing."""
        await asyncio.to_thread(self._terminal.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _until(timeout: float | None) -> float | None:
    limit = patience(timeout)
    return None if limit is None else time.monotonic() + limit


async def _ended(what: Process | Terminal, timeout: float | None) -> int | None:
    until = _until(timeout)
    while (code := what.poll()) is None:
        now = time.monotonic()
        if until is not None and now >= until:
            return None
        # A duplicate: several tasks may wait, and a loop allows one reader per descriptor. One second at a
        # time: only one task reads the end, and the agent may keep the socket open.
        copy = os.dup(what.end_fileno())
        try:
            await readable(copy, now + 1 if until is None else min(until, now + 1))
        finally:
            os.close(copy)
    return code
