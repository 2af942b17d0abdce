"""`AsyncSandbox`: the sandbox for asyncio. The event loop drives its commands, without threads.

    async with AsyncSandbox(workspace="project", mode="bind") as sb:
        result = await sb.run("make test")
        async for chunk in sb.stream("make install"):
            print(chunk.text, end="")

Cancelling a task that waits for a command interrupts the command. The cancellation propagates after the
command's end, and the session stays usable.
"""

from __future__ import annotations

import asyncio
from inspect import isawaitable

from ...errors import InvalidCall, SandboxClosed, SessionError
from ...faces import FilesNames, Forwarded, SandboxNames, same_arguments
from ...layers.review import Review
from ...shell.idle import TO_OPEN
from .. import arguments, spawn
from ..capture import captured, command_bytes
from ..files import Files
from ..history.past import PastFiles
from ..open import settings as sandbox_settings
from ..sandbox import Sandbox
from ..workspace.snapshot import loaded
from .event_loop import InThreads, OnTheLoop, first_alone, in_thread, room_for, see_through
from .session import AsyncSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
    from os import PathLike
    from socket import socket
    from typing import IO, Any, Literal, Self, Unpack

    from ...command_rules.rules import CommandRules
    from ...enforcement import Enforcement
    from ...environment.aio import AsyncLocalEnvironment
    from ...events import Event
    from ...layers.review import ApprovalOptions, Committed
    from ...limits.usage import Usage
    from ...policy import Policy
    from ...policy.plan import Plan
    from ..arguments import CommandVariables, RunOptions, StartOptions, StreamOptions, User
    from ..files import AnyPath
    from ..history.point import HistoryPoint
    from ..merging import BestOf, ForkAttempt, Merge, OnMergeConflict, Test
    from ..open.as_root import Account
    from ..open_sandbox import OpenSandbox
    from ..processes import Job
    from ..result import Result
    from ..session import Session, SessionState
    from ..workspace.snapshot import Snapshot
    from .processes import AsyncProcess, AsyncTerminal
    from .session import AsyncStream


def _close(made: IO[bytes] | socket) -> None:
    made.close()


def _refuse_other_loops() -> None:
    """Raise InvalidCall unless an asyncio loop runs, as in trio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidCall(
            "AsyncSandbox needs asyncio",
            why="no event loop of asyncio runs here: trio and others are loops of their own",
            fix="use Sandbox in threads, as in `await trio.to_thread.run_sync(sb.run, 'ls')`, "
            "or anyio with its asyncio backend",
        ) from None


async def _tell_refusals(inside: OpenSandbox) -> tuple[Event, ...]:
    """Return the refusals that no result has reported, and pass them to hooks."""
    network, hooks = inside.network, inside.hooks
    found = () if network is None else await in_thread(network.refused, str)
    if hooks is not None:
        await hooks.refused_awaited(found)
    return found


class AsyncSandbox(InThreads, SandboxNames):
    """A confined place to run commands in, as `Sandbox`, for asyncio.

    Use it with `async with`, or call `close()` at the end. The first use opens it. `on_connect` and
    `on_request` may be coroutine functions, which are awaited on the loop that opened the sandbox. Hooks may
    be coroutine functions as well; the task that runs the command awaits them.
    """

    @same_arguments(Sandbox.__init__)
    def __init__(self, workspace: Any = None, policy: Any = None, **options: Any) -> None:
        settings = sandbox_settings.settings(workspace, policy, awaited=True, **options)
        on_connect, on_request = options.get("on_connect"), options.get("on_request")
        decider = None if on_connect is None else OnTheLoop(on_connect, settings.asks)
        requests = None if on_request is None else OnTheLoop(on_request, settings.request_seconds)
        decided = settings.replace(on_connect=decider, on_request=requests)
        self._begin(settings, lambda: Sandbox._of(decided), tuple(filter(None, (decider, requests))))

    def _begin(
        self,
        settings: sandbox_settings.SandboxSettings,
        make: Callable[[], Sandbox],
        deciders: tuple[OnTheLoop, ...] = (),
    ) -> None:
        self._settings, self._make, self._deciders = settings, make, deciders
        self._sandbox: Sandbox | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._sessions: dict[str, AsyncSession] = {}

    # ------------------------------------------------------------ commands

    @arguments.with_options_shown
    async def run(self, command: str, *, user: User = None, **options: Unpack[RunOptions]) -> Result:
        """Run `command` in the main session and wait for its end; see `Sandbox.run`."""
        main = await self._main()
        other = None if user is None else await in_thread(spawn.account, self._inside, user)
        if other is None:
            return await main.run(command, **options)
        command_bytes(command)
        return await self._executed(command, (self._inside.bash, "-c", command), options, other)

    @arguments.with_options_shown
    def stream(self, command: str, *, user: User = None, **options: Unpack[StreamOptions]) -> AsyncStream:
        """Run `command` when the iteration begins, and iterate over its output as it arrives."""
        inside = self._inside
        if (other := spawn.account(inside, user)) is None:
            return self._session_of(inside.main).stream(command, **options)
        single = inside.single_session(other, inside.main._exec_context)
        return self._session_of(single).stream(command, **options)

    @arguments.with_options_shown
    async def exec(self, argv: Sequence[str], *, user: User = None, **options: Unpack[RunOptions]) -> Result:
        """Run a program with exactly these arguments, without a shell; see `Sandbox.exec`."""
        words = arguments.arguments(argv)
        await self._main()
        other = None if user is None else await in_thread(spawn.account, self._inside, user)
        return await self._executed(words, words, options, other)

    async def _executed(
        self,
        command: str | tuple[str, ...],
        argv: tuple[str, ...],
        options: RunOptions,
        other: Account | None,
    ) -> Result:
        spec, check = captured(
            command, self.policy.limits, options, program=True, secrets=self._inside.secrets
        )
        spec.account = other
        context = await (await self._main())._exec_context()
        await in_thread(spawn.check_rules, self._inside, argv)
        hooks, recorder = self._inside.hooks, self._inside.recorder
        try:
            if hooks is not None:
                await hooks.begin_awaited(spec, "")
            if recorder is not None and recorder.pending:
                await in_thread(recorder.begin)
            outcome = await see_through(await in_thread(spawn.execution, self._inside, spec, argv, context))
        except BaseException as error:
            spec.abandon()
            if hooks is not None:
                hooks.failed(spec, error)
            raise
        result = spec.result(outcome)
        if recorder is not None and recorder.is_due(result):
            await in_thread(recorder.ended, result)
        if hooks is not None:
            await hooks.end_awaited(spec, result)
        return result.check() if check else result

    @arguments.with_options_shown
    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | PathLike[str] | None = None,
        env: CommandVariables = None,
        user: User = None,
        **following: Unpack[StartOptions],
    ) -> AsyncProcess:
        """Start `command`, shell text or an argument list, in the background; see `Sandbox.start`."""
        from .processes import AsyncProcess

        context = await (await self._main())._exec_context()
        hooks, shown = self._inside.hooks, arguments.shown(command)
        start = None if hooks is None else await hooks.background_awaited(shown, user)
        return AsyncProcess(
            await in_thread(
                lambda: spawn.background(
                    self._inside, command, cwd, env, context, user=user, start=start, **following
                )
            )
        )

    async def processes(self) -> list[AsyncProcess | Job]:
        """List started processes and jobs that commands left running; see `Sandbox.processes`."""
        from ..processes import Process
        from .processes import AsyncProcess

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
        user: User = None,
    ) -> AsyncTerminal:
        """Open a terminal inside with an interactive shell, or with the program `argv`."""
        from .processes import AsyncTerminal

        context = await (await self._main())._exec_context()
        options: dict[str, Any] = {"term": term, "cwd": cwd, "env": env, "context": context, "user": user}
        if (hooks := self._inside.hooks) is not None:
            words = (self._inside.bash, "-i") if argv is None else arguments.shown(argv)
            options["start"] = await hooks.background_awaited(words, user, "terminal")
        opened = await in_thread(lambda: spawn.open_terminal(self._inside, argv, rows, cols, **options))
        return AsyncTerminal(opened)

    async def interrupt(self) -> None:
        """End the commands that run now, in every session. Background processes continue."""
        self._now().interrupt()

    async def pause(self) -> None:
        """Freeze all its processes until `resume()`. Timeouts of commands keep running."""
        await in_thread(self._now().pause)

    async def resume(self) -> None:
        """Continue all processes after `pause()`."""
        await in_thread(self._now().resume)

    @property
    def usage(self) -> Usage:
        """Resources used by the whole sandbox so far; without cgroups the memory is an estimate."""
        return self._now().usage

    # ------------------------------------------------------------ files, network and changes

    @property
    def files(self) -> AsyncFiles:
        """Files inside, with the rights of the sandbox's own user."""
        return AsyncFiles(self._opened)

    upload_tar = Forwarded(Sandbox.upload_tar)
    download_tar = Forwarded(Sandbox.download_tar)
    connect = Forwarded(Sandbox.connect, undo=_close)
    expose = Forwarded(Sandbox.expose)
    commit = Forwarded(Sandbox.commit)
    snapshot = Forwarded(Sandbox.snapshot)
    snapshots = Forwarded(Sandbox.snapshots)
    restore = Forwarded(Sandbox.restore)
    drift = Forwarded(Sandbox.drift)
    history = Forwarded(Sandbox.history)
    learned = Forwarded(Sandbox.learned)
    undo = Forwarded(Sandbox.undo)
    redo = Forwarded(Sandbox.redo)
    blame = Forwarded(Sandbox.blame)
    bisect = Forwarded(Sandbox.bisect)

    async def at(self, point: HistoryPoint | int) -> AsyncPastFiles:
        """Return the files as they were at a point of `history()`, for reading; see `Sandbox.at`."""
        sandbox = await self._opened()
        return AsyncPastFiles(await in_thread(sandbox.at, point))

    async def environment(
        self,
        writable_paths: Iterable[str] | None = None,
        *,
        path: AnyPath = ".",
        on_unavailable: Literal["refuse", "record"] = "refuse",
        rules: CommandRules | None = None,
        secrets: Iterable[str] = (),
    ) -> AsyncLocalEnvironment:
        """Return an agent's tools for the directory `path`, for asyncio; see `Sandbox.environment`."""
        from ...environment.aio import AsyncLocalEnvironment

        sandbox = await self._opened()
        made = await in_thread(
            lambda: sandbox.environment(
                writable_paths, path=path, on_unavailable=on_unavailable, rules=rules, secrets=secrets
            )
        )
        return AsyncLocalEnvironment(made)

    async def refusals(self) -> tuple[Event, ...]:
        """Return the network's refusals that no result has reported yet."""
        await self._main()
        return await _tell_refusals(self._inside)

    async def review(self, paths: Collection[str] | None = None) -> AsyncReview:
        """Return what `commit` would do; see `Sandbox.review`. Its `commit` is a coroutine."""
        sandbox = await self._opened()
        return AsyncReview.of(await in_thread(sandbox.review, paths), self.commit)

    @classmethod
    async def from_snapshot(
        cls,
        snapshot: Snapshot | str | PathLike[str],
        workspace: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Open a new sandbox from a snapshot, or from a saved snapshot file, with all its sessions."""
        found = loaded(snapshot)
        point = await in_thread(found.__enter__)
        try:
            made = cls(workspace, **options)
            try:
                await in_thread((await made._opened())._go_on, point, options.get("freeze") is not False)
            except BaseException:
                await made.close()
                raise
            return made
        finally:
            found.__exit__(None, None, None)

    async def fork(self, n: int = 1, *, freeze: bool | None = None) -> list[Self]:
        """Open `n` sandboxes that continue from here; see `Sandbox.fork`."""

        def undo(made: list[Sandbox]) -> None:
            for sandbox in made:
                sandbox.close()

        opened = await self._opened()
        made = await in_thread(lambda: opened.fork(n, freeze=freeze), undo=undo)
        return [self._around(sandbox) for sandbox in made]

    async def merge(
        self,
        *forks: AsyncSandbox,
        test: Test | None = None,
        on_conflict: OnMergeConflict = "refuse",
        paths: Collection[str] | None = None,
    ) -> Merge:
        """Merge the work of `forks` into this sandbox; see `Sandbox.merge`. A test may be a coroutine."""
        from ..merging import merge

        into, others = await self._opened(), [await fork._opened() for fork in forks]
        return await in_thread(merge, into, others, self._blocking(test), on_conflict, paths)

    async def best_of(
        self,
        n: int,
        attempt: Callable[[Self, int], Awaitable[object]],
        test: Test,
        *,
        keep: Literal["all", "first"] = "all",
        progress: Callable[[ForkAttempt], object] | None = None,
    ) -> BestOf:
        """Make `n` attempts in forks, as tasks, and merge those that pass the test; see `Sandbox.best_of`."""
        from ..merging import ForkAttempt, changed_by, checked_best_of, chosen, in_fork, is_good

        checked_best_of(attempt, test, keep)
        into, checks = await self._opened(), self._blocking(test)

        async def attempted(fork: Self, index: int) -> ForkAttempt:
            row = ForkAttempt(index, passed=False)
            try:
                await attempt(fork, index)
                inner = await fork._opened()
                row = row.replace(changes=await in_thread(changed_by, inner, into))
                answer = await in_thread(in_fork, inner, checks)
                row = row.replace(passed=is_good(answer), test=answer)
            except Exception as error:
                row = row.replace(error=error)
            if progress is not None:
                progress(row)
            return row

        forks = await self.fork(n)
        tasks = [asyncio.ensure_future(attempted(fork, index)) for index, fork in enumerate(forks)]
        try:
            rows = await asyncio.gather(*tasks)
            opened = [await fork._opened() for fork in forks]
            return await in_thread(chosen, into, opened, rows, checks, keep)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.shield(
                asyncio.gather(*(fork.close() for fork in forks), *tasks, return_exceptions=True)
            )

    def _blocking(self, test: Any) -> Any:
        """Return a test for a thread. A function gets an AsyncSandbox, and is awaited on this loop."""
        if not callable(test):
            return test
        loop = asyncio.get_running_loop()

        async def awaited(trial: Sandbox) -> object:
            answer = test(self._around(trial))
            return await answer if isawaitable(answer) else answer

        return lambda trial: asyncio.run_coroutine_threadsafe(awaited(trial), loop).result()

    # ------------------------------------------------------------ sessions and lifetime

    async def session(self, name: str, *, user: User = None) -> AsyncSession:
        """Return the session with this name; the first call creates it."""
        await self._main()
        return self._session_of(await in_thread(lambda: self._now().session(name, user=user)))

    async def reset(self) -> None:
        """Replace the sandbox with a fresh one; see `Sandbox.reset`."""
        await self._main()
        for session in self._sessions.values():
            await session._end_for_good()
        await in_thread(self._now().reset)
        self._sessions.clear()

    async def close(self) -> None:
        """End the sandbox and all its processes. A second call does nothing."""
        async with self._opening:
            self._closed = True
            for session in self._sessions.values():
                await session._end_for_good()
            if self._sandbox is not None:
                try:
                    if self._sandbox._is_open:
                        await _tell_refusals(self._sandbox._inside)
                finally:
                    await in_thread(self._sandbox.close)

    @property
    def state(self) -> Coroutine[Any, Any, SessionState]:
        """State of the main session: `await sb.state`."""
        return self._state()

    async def _state(self) -> SessionState:
        return await (await self._main()).state

    @property
    def enforced(self) -> Enforcement:
        """Protections in force, and every gap (a part of the policy that is not enforced)."""
        return self._there().enforced

    @property
    def policy(self) -> Policy:
        """Policy that it was opened with."""
        return self._settings.policy

    @property
    def id(self) -> str:
        """Unique identifier of this sandbox."""
        return self._there().id

    @property
    def name(self) -> str:
        """Name given when it was opened; empty if none."""
        return self._settings.name

    @property
    def labels(self) -> dict[str, str]:
        """Labels given when it was opened."""
        return dict(self._settings.labels)

    @property
    def plan(self) -> Plan:
        """Policy, resolved for this host."""
        return self._there().plan

    @property
    def frozen(self) -> bool:
        """Whether its workspace hides later edits on the host."""
        return self._there().frozen

    @property
    def alive(self) -> bool:
        """Whether it can run commands."""
        return self._sandbox is not None and self._sandbox.alive

    async def violations(self) -> tuple[Event, ...]:
        """Protected names that appeared in the host's writable directories since it was opened."""
        return await in_thread(self._there().violations)

    async def __aenter__(self) -> Self:
        await self._main()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._sandbox)[1:]}" if self._sandbox else "<AsyncSandbox (not open)>"

    # ------------------------------------------------------------ internals

    async def _main(self) -> AsyncSession:
        return self._session_of((await self._opened())._now().main)

    async def _opened(self) -> Sandbox:
        if self._sandbox is None:
            _refuse_other_loops()
            async with self._opening:
                if self._sandbox is None and not self._closed:
                    for decider in self._deciders:
                        decider.loop = asyncio.get_running_loop()
                    with await room_for(TO_OPEN):
                        self._sandbox = await in_thread(lambda: first_alone(self._make), undo=Sandbox.close)
        return self._now()

    def _around(self, sandbox: Sandbox) -> Self:
        """Wrap an open sandbox, with this one's settings."""
        made = type(self).__new__(type(self))
        made._begin(self._settings, self._make, self._deciders)
        made._sandbox = sandbox
        return made

    def _session_of(self, session: Session) -> AsyncSession:
        known = self._sessions.get(session.name)
        if known is None or known._session is not session:
            known = self._sessions[session.name] = AsyncSession(session, self.policy.limits)
        return known

    def _there(self) -> Sandbox:
        if self._sandbox is None:
            raise SessionError(
                "the sandbox is not open yet",
                fix="use `async with`, or run something first",
                why="it is opened by the first call that is awaited",
            )
        return self._sandbox

    @property
    def _inside(self) -> OpenSandbox:
        return self._now()._now()

    def _now(self) -> Sandbox:
        if self._closed:
            raise SandboxClosed("the sandbox is closed", fix="open another one", why="close() was called")
        return self._there()


# A review with a coroutine for `commit`.


class AsyncReview(Review):
    """As `Review`, for an AsyncSandbox."""

    @classmethod
    def of(cls, found: Review, commit: Callable[..., Coroutine[Any, Any, Committed]]) -> Self:
        """Convert a review to one that `commit` writes."""
        made = cls(**{name: getattr(found, name) for name in cls._fields})
        made._set("_commit", commit)
        return made

    async def commit(  # type: ignore[override]
        self, paths: Collection[str] | None = None, **options: Unpack[ApprovalOptions]
    ) -> Committed:
        """Write exactly the reviewed changes, or those at and below `paths`; see `Review.commit`."""
        commit: Callable[..., Coroutine[Any, Any, Committed]] = self.__dict__["_commit"]
        return await commit(paths, review=self, **options)


# Files at a point of the history, for asyncio.


class AsyncPastFiles(InThreads):
    """Files as they were at a point; see `PastFiles`. Each call runs in a thread."""

    def __init__(self, found: PastFiles) -> None:
        self._past, self.point = found, found.point

    async def _opened(self) -> PastFiles:
        return self._past

    read = Forwarded(PastFiles.read)
    read_bytes = Forwarded(PastFiles.read_bytes)
    list = Forwarded(PastFiles.list)
    exists = Forwarded(PastFiles.exists)
    stat = Forwarded(PastFiles.stat)
    glob = Forwarded(PastFiles.glob)
    grep = Forwarded(PastFiles.grep)
    close = Forwarded(PastFiles.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# Files of a sandbox, for asyncio.


class AsyncFiles(InThreads, FilesNames):
    """Files inside, with the rights of the sandbox's own user. Each call runs `Files` in a thread."""

    def __init__(self, sandbox: Callable[[], Coroutine[Any, Any, Sandbox]], user: User = None) -> None:
        self._sandbox, self._user = sandbox, user

    def as_user(self, user: User) -> AsyncFiles:
        """Return the files as another user sees them; see `Files.as_user`."""
        return AsyncFiles(self._sandbox, user)

    async def _opened(self) -> Files:
        files = (await self._sandbox()).files
        return files if self._user is None else await in_thread(files.as_user, self._user)

    open = Forwarded(Files.open, undo=_close)
    write = Forwarded(Files.write)
    upload = Forwarded(Files.upload)
    download = Forwarded(Files.download)
