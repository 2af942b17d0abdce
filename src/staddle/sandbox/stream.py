"""Output of a running command, in order of arrival, no faster than it is read."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial

from .._value import Value
from ..display import whole_characters
from ..interrupts import uninterrupted, unmistaken_method
from .execution import drive, readable, wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Callable, Sized
    from types import TracebackType
    from typing import Literal, Protocol, Self

    from ..shell.command import Outcome
    from ..shell.shell import Shell
    from .capture import CapturedCommand
    from .hooks import Hooks
    from .result import Result

    class PointTaker(Protocol):
        """History of a sandbox, as its commands know it."""

        @property
        def pending(self) -> Sized: ...
        def begin(self) -> None: ...
        def is_due(self, result: Result) -> bool: ...
        def ended(self, result: Result, number: int = 0) -> None: ...


class Chunk(Value):
    """A piece of the output of a command or a process.

    A chunk of `Sandbox.stream` never splits a character. One of `Process.stream` may end anywhere.
    """

    stream: Literal["stdout", "stderr"]
    data: bytes

    @property
    def text(self) -> str:
        """The data as text, with U+FFFD in place of bytes that are not UTF-8."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


class Chunks:
    """Output that was printed but not taken yet."""

    def __init__(self, spec: CapturedCommand) -> None:
        """Receive the output of `spec` as well."""
        self._ready: deque[Chunk] = deque()
        self._held: dict[Literal["stdout", "stderr"], bytes] = {"stdout": b"", "stderr": b""}
        self._spec = spec
        spec.also(partial(self._feed, "stdout"), partial(self._feed, "stderr"))

    def _feed(self, name: Literal["stdout", "stderr"], data: bytes) -> None:
        whole, self._held[name] = whole_characters(self._held[name] + data)
        if whole:
            self._ready.append(Chunk(name, whole))

    def finish(self) -> None:
        """End the stream; an incomplete character at its end is passed on as is."""
        self._spec.flush()
        for name, data in self._held.items():
            if data:
                self._ready.append(Chunk(name, data))
        self._held = {"stdout": b"", "stderr": b""}

    @property
    def empty(self) -> bool:
        """Whether there is no chunk to take."""
        return not self._ready

    def take(self) -> Chunk | None:
        """Return the next chunk, or None."""
        return self._ready.popleft() if self._ready else None


class Stream:
    """Iterates over the chunks of a command's output; afterwards `result` is set.

    The iteration drives the command: a slow reader slows it down, and no output piles up here. Leaving the
    loop early, or `close()`, interrupts the command. Until its end the session is busy.
    """

    #: Called when the command is over; None before and after.
    _over: Callable[[], None] | None = None
    #: Waits for the shell; made when something is waited for.
    _poll: select.poll | None = None

    def __init__(
        self,
        shell: Shell,
        spec: CapturedCommand,
        result: Callable[[CapturedCommand, Outcome], Result],
        over: Callable[[], None],
        hooks: Hooks | None = None,
        *,
        recorder: PointTaker | None = None,
    ) -> None:
        self._hooks, self._recorder = hooks, recorder
        self._driving = threading.Lock()
        self._shell, self._spec, self._resulting = shell, spec, result
        self._result: Result | None = None
        self._is_new = True
        try:
            shell.begin(spec)
            self._over = over
            self._chunks = Chunks(spec)  # only now: the command runs meanwhile, and nothing is read yet
        except BaseException:  # from a signal handler, after the command began
            if shell.runs(spec):
                shell.interrupt()
                drive(shell)
            self._over = None
            raise

    @property
    def result(self) -> Result | None:
        """Result of the command; None while it runs."""
        return self._result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        while (chunk := self._chunks.take()) is None:
            if self._over is None:
                raise StopIteration
            self._advance()
        return chunk

    def close(self) -> None:
        """Interrupt the command, if it still runs, and wait for its end, which frees the session."""
        if self._over is not None:
            self._shell.interrupt()
            while self._over is not None:
                self._advance()
                while self._chunks.take() is not None:
                    pass

    @unmistaken_method
    def _advance(self) -> None:
        with self._driving:  # another thread may close the session meanwhile
            if self._over is None:
                return
            shell, is_new, self._is_new = self._shell, self._is_new, False
            if shell.step(briefly=is_new):
                uninterrupted(self._finish)
                if self._recorder is not None and self._result is not None:
                    self._recorder.ended(self._result, self._spec.number)
                if self._hooks is not None and self._result is not None:
                    self._hooks.end(self._spec, self._result)
            elif self._chunks.empty:
                self._poll = self._poll or readable(shell)
                wait(shell, self._poll)

    def _finish(self) -> None:
        over, self._over = self._over, None
        try:
            outcome = self._shell.finish()
        except BaseException as error:
            self._spec.abandon()
            if self._hooks is not None:
                self._hooks.failed(self._spec, error)
            raise
        finally:
            if over is not None:
                over()
        self._chunks.finish()
        self._result = self._resulting(self._spec, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._over is not None:
            self.close()
