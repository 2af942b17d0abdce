"""`AsyncSandbox`: the same sandbox, awaited. Commands are driven by the event loop, not by threads.

    async with AsyncSandbox(workspace="project", mode="bind") as sb:
        result = await sb.run("make test")
        async for chunk in sb.stream("make install"):
            print(chunk.text, end="")

Cancelling a task that waits for a command interrupts the command. The cancellation goes on
when the command is over, and the session is as usable as after any other.
"""

from __future__ import annotations

import asyncio

from ..errors import SandboxClosed, SessionBusy, SessionError
from . import calls, opening
from .calls import Call, command_bytes
from .event_loop import advance, in_thread, see_through
from .execution import drive
from .sandbox import Sandbox
from .streaming import Chunks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from os import PathLike
    from typing import Any, Self, Unpack

    from ..backends.base import Enforcement
    from ..events import Event
    from ..policy import Policy
    from ..policy.plan import Plan
    from .asynchronous_processes import AsyncProcess, AsyncTerminal
    from .calls import RunOptions, StreamOptions
    from .processes import Job
    from .result import Result
    from .session import Session, SessionState
    from .shell import Shell
    from .streaming import Chunk


class AsyncSession:
    """A shell in a sandbox, as `Session`. Commands run one at a time: a second one waits for its turn."""

    def __init__(self, session: Session, limits: Any) -> None:
        self._session = session
        self._limits = limits
        self._turn = asyncio.Lock()
        self._busy: set[asyncio.Task[Any] | None] = set()

    @property
    def name(self) -> str:
        """What it was asked for by."""
        return self._session.name

    async def run(self, command: str, **options: Unpack[RunOptions]) -> Result:
        """Run `command` in the shell and wait for its end; the options are those of `Session.run`."""
        text = command_bytes(command)
        call, check = calls.of(command, self._limits, options)
        async with _Turn(self):
            self._session.remember(command)
            try:
                await _begin(self._session.shell, text, call, call)
                outcome = await see_through(self._session.shell)
            except BaseException:
                call.abandon()
                raise
        result = self._session.over(call, outcome)
        return result.check() if check else result

    def stream(self, command: str, **options: Unpack[StreamOptions]) -> AsyncStream:
        """Run `command`, when the iteration begins, and iterate over what it prints as it comes."""
        text = command_bytes(command)
        call = Call(command, self._limits, **options)
        self._session.refuse_closed()
        return AsyncStream(self, text, call)

    async def interrupt(self) -> None:
        """End the command that runs now, if there is one; its reason is `cancelled`."""
        self._session.interrupt()

    async def restart(self) -> None:
        """A new shell as it was at the beginning; a command that runs is ended."""
        await asyncio.to_thread(self._session.restart)

    @property
    def state(self) -> Coroutine[Any, Any, SessionState]:
        """What the session remembers: `await session.state`."""
        return self._state()

    async def _state(self) -> SessionState:
        async with _Turn(self):
            return self._session.remembered(await in_thread(self._session.shell.state))

    async def close(self) -> None:
        """End the shell and what it started. A second time does nothing."""
        await asyncio.to_thread(self._session.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"


class _Turn:
    """The right to use a session's shell, for one task at a time."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def __aenter__(self) -> None:
        session, task = self._session, asyncio.current_task()
        session._session.refuse_closed()
        if task in session._busy:
            raise SessionBusy(
                f"the session {session.name!r} runs a command of this very task",
                why="it would wait for itself",
                fix="read the stream to its end or close it first, or use another sb.session()",
            )
        await session._turn.acquire()
        self._task = task
        session._busy.add(task)

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the next one in."""
        self._session._busy.discard(self._task)
        self._session._turn.release()


class AsyncStream:
    """Iterate with `async for` for the chunks; `result` is there when they are over.

    Who reads slowly slows the command down. Leaving the loop early leaves the command waiting,
    and the session busy, until `aclose()`; `async with` does that.
    """

    def __init__(self, session: AsyncSession, text: bytes, call: Call) -> None:
        self._session, self._text, self._call = session, text, call
        self._shell = session._session.shell
        self._chunks = Chunks(call)
        self._turn: _Turn | None = None
        self._begun = self._over = False
        self.result: Result | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        await self._begin()
        while (chunk := self._chunks.take()) is None:
            if self._over:
                raise StopAsyncIteration
            await self._advance()
        return chunk

    async def aclose(self) -> None:
        """Interrupt the command, if it still runs, and wait for its end."""
        if not self._begun:
            self._begun = self._over = True
        if not self._over:
            self._shell.interrupt()
            while not self._over:
                await self._advance()
                while self._chunks.take() is not None:
                    pass

    close = aclose

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        turn = _Turn(self._session)
        try:
            await turn.__aenter__()
        except BaseException:
            self._over = True
            raise
        self._session._session.remember(str(self._call.command))
        try:
            await _begin(self._shell, self._text, self._call, self._chunks)
        except BaseException:
            self._over = True
            turn.leave()
            raise
        self._turn = turn

    async def _advance(self) -> None:
        try:
            over = await advance(self._shell)
        except asyncio.CancelledError:
            self._finish()
            raise
        if over:
            self._finish()

    def _finish(self) -> None:
        self._over = True
        turn, self._turn = self._turn, None
        try:
            outcome = self._shell.finish()
        finally:
            if turn is not None:
                turn.leave()
        self._chunks.finish()
        self.result = self._session._session.over(self._call, outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncSandbox:
    """A confined place to run commands in, as `Sandbox`, for asyncio.

    Use it with `async with`, or call `close()` in the end. It is opened on first use.
    """

    def __init__(
        self,
        workspace: str | PathLike[str] | None = None,
        policy: Policy | None = None,
        *,
        backend: str = "auto",
        mode: str = "overlay",
        best_effort: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = opening.settings(workspace, policy, backend, mode, best_effort, env)
        self._make: Callable[[], Sandbox] = lambda: Sandbox(
            workspace, policy, backend=backend, mode=mode, best_effort=best_effort, env=env
        )
        self._sandbox: Sandbox | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._sessions: dict[str, AsyncSession] = {}

    # ------------------------------------------------------------ commands

    async def run(self, command: str, **options: Unpack[RunOptions]) -> Result:
        """Run `command` in the sandbox's own session and wait for its end; see `Session.run`."""
        return await (await self._main()).run(command, **options)

    def stream(self, command: str, **options: Unpack[StreamOptions]) -> AsyncStream:
        """Run `command`, when the iteration begins, and iterate over what it prints as it comes."""
        return self._session_of(self._now().main).stream(command, **options)

    async def exec(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> Result:
        """Run a program with exactly these arguments, without a shell; see `Sandbox.exec`."""
        words = calls.arguments(argv)
        call, check = calls.of(words, self.policy.limits, options)
        state = await (await self._main()).state
        execution = await in_thread(self._now().execution, call, words, state)
        try:
            outcome = await see_through(execution)
        except BaseException:
            call.abandon()
            raise
        result = call.result(outcome)
        return result.check() if check else result

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncProcess:
        """Start `command`, shell text or a list of arguments, in the background; see `Sandbox.start`."""
        from .asynchronous_processes import AsyncProcess

        state = await (await self._main()).state
        return AsyncProcess(await in_thread(self._now().background, command, cwd, env, state))

    async def processes(self) -> list[AsyncProcess | Job]:
        """What was started, and the jobs that commands left behind; see `Sandbox.processes`."""
        from .asynchronous_processes import AsyncProcess
        from .processes import Process

        await self._main()
        found = await in_thread(self._now().processes)
        return [AsyncProcess(each) if isinstance(each, Process) else each for each in found]

    async def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        term: str = "xterm-256color",
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncTerminal:
        """A terminal of the sandbox with an interactive shell on it, or the program that `argv` says."""
        from .asynchronous_processes import AsyncTerminal

        state = await (await self._main()).state
        opened = await in_thread(
            lambda: self._now().open_terminal(argv, rows, cols, term=term, cwd=cwd, env=env, state=state)
        )
        return AsyncTerminal(opened)

    async def interrupt(self) -> None:
        """End the commands that run now, in every session; processes in the background go on."""
        self._now().interrupt()

    # ------------------------------------------------------------ the whole

    async def session(self, name: str) -> AsyncSession:
        """The session of that name, made when it is first asked for."""
        await self._main()
        return self._session_of(await in_thread(self._now().session, name))

    async def reset(self) -> None:
        """Begin anew: a fresh sandbox takes the place of this one; see `Sandbox.reset`."""
        await self._main()
        await in_thread(self._now().reset)
        self._sessions.clear()

    async def close(self) -> None:
        """End everything in it. A second time does nothing."""
        async with self._opening:
            self._closed = True
            if self._sandbox is not None:
                await in_thread(self._sandbox.close)

    @property
    def state(self) -> Coroutine[Any, Any, SessionState]:
        """What the sandbox's own session remembers: `await sb.state`."""
        return self._state()

    async def _state(self) -> SessionState:
        return await (await self._main()).state

    @property
    def enforced(self) -> Enforcement:
        """What is really in force, and every gap."""
        return self._there().enforced

    @property
    def policy(self) -> Policy:
        """The policy it was opened with."""
        return self._settings.policy

    @property
    def plan(self) -> Plan:
        """What the policy means on this host."""
        return self._there().plan

    @property
    def alive(self) -> bool:
        """Whether commands can be run in it."""
        return self._sandbox is not None and self._sandbox.alive

    async def violations(self) -> tuple[Event, ...]:
        """Protected names that appeared in what may be written on the host since it was opened."""
        return await in_thread(self._there().violations)

    async def __aenter__(self) -> Self:
        await self._main()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._sandbox)[1:]}" if self._sandbox else "<AsyncSandbox (not open)>"

    # ------------------------------------------------------------ how

    async def _main(self) -> AsyncSession:
        if self._sandbox is None:
            async with self._opening:
                if self._sandbox is None and not self._closed:
                    self._sandbox = await in_thread(self._make, undo=Sandbox.close)
        return self._session_of(self._now().main)

    def _session_of(self, session: Session) -> AsyncSession:
        known = self._sessions.get(session.name)
        if known is None or known._session is not session:
            known = self._sessions[session.name] = AsyncSession(session, self.policy.limits)
        return known

    def _there(self) -> Sandbox:
        if self._sandbox is None:
            raise SessionError("the sandbox is not open yet", fix="use `async with`, or run something first")
        return self._sandbox

    def _now(self) -> Sandbox:
        if self._closed:
            raise SandboxClosed("the sandbox is closed", fix="open another one")
        return self._there()


async def _begin(shell: Shell, text: bytes, call: Call, sinks: Call | Chunks) -> None:
    """Start `text`: here, or in a thread when the shell has to be talked to first, or replaced."""

    def begin(*, wait: bool) -> bool:
        return shell.begin(
            text,
            timeout=call.timeout,
            stdin=call.stdin,
            env=call.env,
            cwd=call.cwd,
            out=sinks.out,
            err=sinks.err,
            wait=wait,
        )

    def give_up(_: bool) -> None:
        shell.interrupt()
        drive(shell)

    if not begin(wait=False):
        await in_thread(lambda: begin(wait=True), undo=give_up)
