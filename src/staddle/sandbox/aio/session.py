"""`AsyncSession`: a session for asyncio. Commands take turns, and end before a cancellation propagates."""

from __future__ import annotations

import asyncio

from ...errors import SessionBusy
from ..arguments import with_options_shown
from ..capture import CapturedCommand, captured
from ..execution import drive
from ..stream import Chunks
from .event_loop import advance, in_thread, see_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any, Self, Unpack

    from ...policy.limits import Limits
    from ...shell.shell import Shell
    from ..arguments import RunOptions, StreamOptions
    from ..result import Result
    from ..session import Session, SessionState
    from ..stream import Chunk


class AsyncSession:
    """A shell in a sandbox, as `Session`. It runs one command at a time; a second command waits."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._turn = asyncio.Lock()
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._streaming: Streaming | None = None

    @property
    def name(self) -> str:
        """Name of the session."""
        return self._session.name

    @with_options_shown
    async def run(self, command: str, **options: Unpack[RunOptions]) -> Result:
        """Run `command` in the shell and wait for its end; the options are those of `Session.run`."""
        spec, check = captured(command, self._limits, options, secrets=self._session._secrets)
        hooks, recorder = self._session._hooks, self._session._recorder
        self._session._refuse_closed()
        try:
            if hooks is not None:
                await hooks.begin_awaited(spec, self.name)
            async with _Turn(self):
                if recorder is not None and recorder.pending:
                    await in_thread(recorder.begin)
                self._session._remember(command)
                await _begin(self._session._shell, spec)
                outcome = await see_through(self._session._shell)
        except BaseException as error:
            spec.abandon()
            if hooks is not None:
                hooks.failed(spec, error)
            raise
        result = self._session._result(spec, outcome)
        if recorder is not None and recorder.is_due(result):
            await in_thread(recorder.ended, result)
        if hooks is not None:
            await hooks.end_awaited(spec, result)
        return result.check() if check else result

    @with_options_shown
    def stream(self, command: str, **options: Unpack[StreamOptions]) -> AsyncStream:
        """Run `command` when the iteration begins, and iterate over its output as it arrives."""
        spec = CapturedCommand(
            command, self._limits, streamed=True, secrets=self._session._secrets, **options
        )
        self._session._refuse_closed()
        return AsyncStream(self, spec)

    async def interrupt(self) -> None:
        """End the running command, if any, with the reason `cancelled`."""
        self._session.interrupt()

    async def restart(self) -> None:
        """Start a new shell in its initial state; a running command is ended."""
        await self._end_stream()
        await asyncio.to_thread(self._session.restart)

    @property
    def state(self) -> Coroutine[Any, Any, SessionState]:
        """State of the session: `await session.state`."""
        return self._state()

    async def _exec_context(self) -> SessionState:
        """As `Session._exec_context`."""
        before = self._session._shell.state_before()
        return await self._state() if before is None else self._session._with_history(before)

    async def _state(self) -> SessionState:
        async with _Turn(self):
            return self._session._with_history(await in_thread(self._session._shell.state))

    async def close(self) -> None:
        """End the shell and the processes that it started. A second call does nothing."""
        await self._end_for_good()
        await asyncio.to_thread(self._session.close)

    async def _end_for_good(self) -> None:
        """Refuse further commands, and end an unfinished stream."""
        self._session._refuse_from_now()
        await self._end_stream()

    async def _end_stream(self) -> None:
        if self._streaming is not None:
            await self._streaming.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"


class _Turn:
    """Exclusive use of a session's shell by one task."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def __aenter__(self) -> None:
        session, task = self._session, asyncio.current_task()
        session._session._refuse_closed()
        if task in session._busy:
            raise SessionBusy(
                f"the session {session.name!r} runs a command of this very task",
                why="it would wait for itself",
                fix="read the whole stream or close it first, or use another sb.session()",
            )
        await session._turn.acquire()
        self._task = task
        session._busy.add(task)

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def disown(self) -> None:
        """Allow the task of an abandoned stream to run another command."""
        self._session._busy.discard(self._task)

    def leave(self) -> None:
        """Release the shell to the next task."""
        self._session._busy.discard(self._task)
        self._session._turn.release()


class AsyncStream:
    """Iterates with `async for` over the chunks of a command's output; afterwards `result` is set.

    A slow reader slows the command down. Leaving the loop early leaves the command waiting and the session
    busy until `aclose()`, which `async with` calls.
    """

    def __init__(self, session: AsyncSession, spec: CapturedCommand) -> None:
        self._streaming = Streaming(session, spec)

    @property
    def result(self) -> Result | None:
        """Result of the command; None while it runs."""
        return self._streaming.result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._streaming.take()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Interrupt the command, if it still runs, and wait for its end."""
        await self._streaming.close()

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._streaming.forget()


class Streaming:
    """A command that runs as far as its chunks are taken."""

    def __init__(self, session: AsyncSession, spec: CapturedCommand) -> None:
        self._session, self._spec = session, spec
        self._shell, self._hooks = session._session._shell, session._session._hooks
        self._chunks = Chunks(spec)
        self._turn: _Turn | None = None
        self._driving = asyncio.Lock()  # another task may close the session meanwhile
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False
        self.result: Result | None = None

    async def take(self) -> Chunk | None:
        """Return the next chunk; None at the end."""
        if self._loop is None:
            await self._begin()
        while (chunk := self._chunks.take()) is None and not self._over:
            await self._advance()
        return chunk

    async def close(self) -> None:
        """End the command, if it has begun and still runs."""
        if self._turn is None:
            self._over = True
        if not self._over:
            self._shell.interrupt()
            while not self._over:
                await self._advance()
                while self._chunks.take() is not None:
                    pass

    def forget(self) -> None:
        """Close it on its loop, because its reader is gone."""
        if self._loop is not None and not self._over and not self._loop.is_closed():
            if self._turn is not None:
                self._turn.disown()
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.close()))

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        turn = _Turn(self._session)
        try:
            if self._hooks is not None:
                await self._hooks.begin_awaited(self._spec, self._session.name)
            await turn.__aenter__()
            recorder = self._session._session._recorder
            if recorder is not None and recorder.pending:
                await in_thread(recorder.begin)
        except BaseException as error:
            self._fail(error)
            raise
        try:
            self._session._session._remember(str(self._spec.command))
            await _begin(self._shell, self._spec)
        except BaseException as error:
            self._fail(error)
            turn.leave()
            raise
        self._turn = turn
        self._session._streaming = self

    async def _advance(self) -> None:
        async with self._driving:
            if self._over:
                return
            try:
                over = await advance(self._shell, lambda: not self._chunks.empty)
            except asyncio.CancelledError:
                self._finish()
                await self._tell_result()
                raise
            if over:
                self._finish()
                await self._tell_result()

    def _fail(self, error: BaseException) -> None:
        self._over = True
        if self._hooks is not None:
            self._hooks.failed(self._spec, error)

    async def _tell_result(self) -> None:
        recorder = self._session._session._recorder
        if recorder is not None and self.result is not None and recorder.is_due(self.result):
            await in_thread(recorder.ended, self.result)
        if self._hooks is not None and self.result is not None:
            await self._hooks.end_awaited(self._spec, self.result)

    def _finish(self) -> None:
        self._over = True
        turn, self._turn = self._turn, None
        self._session._streaming = None
        try:
            outcome = self._shell.finish()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            if turn is not None:
                turn.leave()
        self._chunks.finish()
        self.result = self._session._session._result(self._spec, outcome)


async def _begin(shell: Shell, spec: CapturedCommand) -> None:
    """Start a command: here, or in a thread if the shell needs a blocking exchange or is replaced."""

    def give_up(_: bool) -> None:
        shell.interrupt()
        drive(shell)

    if not shell.begin(spec, wait=False):
        await in_thread(shell.begin, spec, undo=give_up)
