"""Processes and terminals of a sandbox, awaited."""

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

#: Seconds that a thread waits at once.
_SLICE = 0.2


class AsyncProcess:
    """A program in the background of a sandbox, as `Process`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid, self.command = process.pid, process.command
        self._stdin = asyncio.Lock()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.running

    def poll(self) -> int | None:
        """Its exit code, 128+N for signal N; None while it runs."""
        return self._process.poll()

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; its exit code, or None when it still runs after `timeout` seconds."""
        return await _ended(self._process, timeout)

    def output(self, offset: int | None = None) -> Output:
        """Its output until now; see `Process.output`."""
        return self._process.output(offset)

    @property
    def timed_out(self) -> bool:
        """Whether it was ended because its time was up."""
        return self._process.timed_out

    async def wait_for_output(self, timeout: float | None = None, *, offset: int = 0) -> Output:
        """Wait until there is output after `offset`, and return that; see `Process.wait_for_output`."""
        until = _until(timeout)
        while True:
            found = await in_thread(lambda: self._process.wait_for_output(_SLICE, offset=offset))
            is_over = self._process._transcript.closed
            if found or is_over or (until is not None and time.monotonic() >= until):
                return found

    async def wait_for_text(self, text: str, timeout: float | None = None) -> Output:
        """Wait until `text` is in its output, and return that. WaitTimeout if it does not come."""
        return await self._in_slices(lambda left: self._process.wait_for_text(text, left), timeout)

    async def wait_for_port(self, port: int, timeout: float | None = None) -> None:
        """Wait until a server inside listens at `port` of its loopback. WaitTimeout if none does."""
        await self._in_slices(lambda left: self._process.wait_for_port(port, left), timeout)

    async def _in_slices(self, wait: Callable[[float], T], timeout: float | None) -> T:
        """Wait a little at a time, in a thread: a task that is cancelled does not wait to the end."""
        until = _until(timeout)
        while True:
            left = _SLICE if until is None else max(0.0, min(_SLICE, until - time.monotonic()))
            try:
                return await in_thread(wait, left)
            except WaitTimeout:
                if not self.running or (until is not None and time.monotonic() >= until):
                    raise

    async def send_stdin(self, data: bytes | str) -> None:
        """Write to its standard input. Waits while it does not read; BrokenPipeError when it has ended."""
        rest = memoryview(input_bytes(data))
        async with self._stdin:
            while rest:
                sent = self._process.send_some(rest)
                rest = rest[sent:]
                if not sent:
                    await writable(self._process.stdin_fileno())

    def close_stdin(self) -> None:
        """The end of its standard input. A second time does nothing."""
        self._process.close_stdin()

    def kill(self, signal: int = SIGKILL) -> None:
        """Send it, and all that it started, a signal."""
        self._process.kill(signal)

    def __repr__(self) -> str:
        return f"<Async{repr(self._process)[1:]}"


class AsyncTerminal:
    """A terminal of the sandbox with a program on it, as `Terminal`. One task reads, one writes."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.pid = terminal.pid

    async def read(self, timeout: float | None = None) -> bytes:
        """Read what was printed since, waiting for some. Empty: none came in time, or it is over."""
        limit = patience(timeout)
        until = None if limit is None else time.monotonic() + limit
        while (data := self._terminal.read_some()) is None:
            if not await readable(self._terminal.fileno(), until):
                return b""
        return data

    @property
    def at_end(self) -> bool:
        """Whether `read` came to the end: no program has the terminal any more."""
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
        """Another size; the programs on it are told."""
        self._terminal.resize(rows, cols)

    def poll(self) -> int | None:
        """The exit code of the program, 128+N for signal N; None while it runs."""
        return self._terminal.poll()

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the program; its exit code, or None when `timeout` seconds were not enough."""
        return await _ended(self._terminal, timeout)

    def kill(self) -> None:
        """Kill the program, with everything it started."""
        self._terminal.kill()

    async def close(self) -> None:
        """Hang up: the program gets a SIGHUP, and is killed if that does not end it. Twice is as once."""
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
        # A copy: two tasks may wait for the same end, and a loop has one reader for a descriptor. A second at
        # a time: only one of them reads the end, and the agent need not close the socket.
        copy = os.dup(what.end_fileno())
        try:
            await readable(copy, now + 1 if until is None else min(until, now + 1))
        finally:
            os.close(copy)
    return code
