"""The sandboxes of one server, each under an id that tools take as an argument.

A request of the newest protocol revision belongs to no session, so no state is kept per client: whoever may
call the server may use all its sandboxes by id.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from select import PIPE_BUF
from typing import TYPE_CHECKING, Any

from staddle import AsyncSandbox, Network, Policy
from staddle.errors import LayerError

from .error_text import tool_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from staddle import Event, Result, Snapshot

#: The id of the sandbox for calls without one; the first such call opens it.
DEFAULT = "default"
#: Lines in the log of a sandbox, and answers kept for repeated calls.
LOG_LINES = 500
ANSWERS = 64
#: The default tools of a server: few, because a model reads the list with every task.
DEFAULT_TOOLS = frozenset(
    (
        *("bash", "read_file", "write_file", "edit_file", "diff", "commit"),
        *("snapshot", "restore", "history", "undo"),
    )
)
#: Seconds for an idle shell to report its directory.
_SHELL_ANSWERS = 0.5


@dataclass(frozen=True)
class ServerSettings:
    """Options of the sandboxes, the tools, and the tools that need no consent of a person."""

    workspace: str | None = None
    policy: Policy = field(default_factory=Policy.agent)
    mode: str = "overlay"
    backend: str = "auto"
    best_effort: bool = False
    keep: str | None = None
    tools: frozenset[str] = DEFAULT_TOOLS
    #: Tools that run without asking.
    unasked: frozenset[str] = frozenset()
    most_sandboxes: int = 32


class ServedSandbox:
    """One open sandbox, and the objects that tools name: processes, snapshots, allowed hosts."""

    def __init__(self, name: str, sandbox: AsyncSandbox | None = None, parent: str = "") -> None:
        self.id, self.parent, self.opened = name, parent, time.time()
        self._sandbox = sandbox
        #: Reason why it has no history; empty if it has one.
        self.no_history = ""
        self.processes: dict[int, Any] = {}
        self._cwd = ""
        self._typing: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.snapshots: dict[str, Snapshot] = {}
        #: `host:port`, or a host for all of its ports.
        self.allowed: set[str] = set()
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self._answers: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox itself."""
        if self._sandbox is None:
            raise tool_error(
                f"the sandbox {self.id!r} is not open yet",
                why="another request is opening it",
                fix="wait for that one, and try again",
            )
        return self._sandbox

    @sandbox.setter
    def sandbox(self, made: AsyncSandbox) -> None:
        self._sandbox = made

    def may_connect(self, event: Event) -> bool | None:
        """True if a person has allowed this destination, else None: they may still do so.

        Called from threads of the sandbox.
        """
        host = event.what.rpartition(":")[0]
        return event.what in self.allowed or host in self.allowed or None

    def note(self, result: Result) -> None:
        """Write a finished command to the log."""
        command = result.command if isinstance(result.command, str) else " ".join(result.command)
        at = time.strftime("%H:%M:%S")
        self.log.append(f"{at} {result.reason} {result.exit_code} {result.duration:.3f}s {command!r}")
        self.log.extend(f"{at} refused {event.what}: {event.rule}" for event in result.violations)

    async def cwd(self) -> str:
        """The directory of its shell; while that runs a command, the last known one."""
        try:
            async with asyncio.timeout(_SHELL_ANSWERS):
                self._cwd = (await self.sandbox.state).cwd
        except TimeoutError:
            pass
        return self._cwd

    async def type(self, pid: int, data: bytes, seconds: float) -> int:
        """Write to the standard input of a process; return the bytes that it read in this time.

        Writes pieces of the size that a pipe accepts atomically.
        """
        process, sent = self.processes[pid], 0
        try:
            async with asyncio.timeout(seconds), self._typing[pid]:
                while sent < len(data):
                    await process.send_stdin(data[sent : sent + PIPE_BUF])
                    sent = min(sent + PIPE_BUF, len(data))
        except TimeoutError:
            pass
        return sent

    async def once(self, call_id: str | None, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do `work`, or return the result of the call with the same id, waiting for it if it runs."""
        if call_id is None:
            return await work()
        while (known := self._answers.get(call_id)) is not None:
            # Not `await known`: cancelling that call must not cancel this one, which then does the work.
            await asyncio.wait((known,))
            if not known.cancelled():
                return known.result()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[call_id] = answer
        while len(self._answers) > ANSWERS:
            self._answers.popitem(last=False)
        try:
            answer.set_result(await work())
        except BaseException:
            # A failed or cancelled call may be repeated; a waiting one does so.
            self._answers.pop(call_id, None)
            answer.cancel()
            raise
        return answer.result()


class SandboxRegistry:
    """Every open sandbox of a server, by id."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._handles: dict[str, ServedSandbox] = {}
        self._opening = asyncio.Lock()

    def __iter__(self) -> Any:
        return iter(list(self._handles.values()))

    async def get(self, name: str | None) -> ServedSandbox:
        """The sandbox of that id; without an id the default one, which is opened if necessary."""
        if name is None or name == DEFAULT:
            return await self._living(await self.open(DEFAULT))
        return await self._living(self.known(name))

    async def _living(self, handle: ServedSandbox) -> ServedSandbox:
        """The sandbox, unless it has ended by itself. That is reported once, because its state is lost."""
        if handle.sandbox.alive:
            return handle
        await self.close(handle.id)
        raise tool_error(
            f"the sandbox {handle.id!r} has stopped, with its processes and what was not committed",
            why="it was killed, or its policy limits how long it lives or is idle",
            fix="call again for a new one" if handle.id == DEFAULT else "use another one",
        )

    def known(self, name: str) -> ServedSandbox:
        """The open sandbox of that id."""
        found = self._handles.get(name)
        if found is None:
            raise tool_error(
                f"there is no sandbox {name!r}",
                why=f"open are: {', '.join(self._handles) or 'none'}",
                fix="leave `sandbox` out for the default one",
            )
        return found

    async def open(self, name: str | None, *, empty: bool = False) -> ServedSandbox:
        """The open sandbox of that id, or a new one."""
        found = self._handles.get(name) if name else None
        if found is not None:
            return found
        async with self._opening:
            if name and name in self._handles:
                return self._handles[name]
            self._room_for(1)
            settings = self.settings
            handle = ServedSandbox(name or f"sb-{secrets.token_hex(4)}")
            await self._enter(handle, None if empty else settings.workspace)
            self._handles[handle.id] = handle
            return handle

    async def _enter(self, handle: ServedSandbox, workspace: str | None) -> None:
        """Open the sandbox of `handle`: with a history, if its changes are in layers."""
        settings = self.settings
        mode = "overlay" if workspace is None else settings.mode
        if mode != "overlay":
            handle.no_history = f"its mode is {mode}: its changes are in no layer"
        while True:
            handle.sandbox = AsyncSandbox(
                workspace,
                settings.policy,
                mode=mode,  # type: ignore[arg-type]
                backend=settings.backend,  # type: ignore[arg-type]
                best_effort=settings.best_effort,
                keep=settings.keep if handle.id == DEFAULT else None,
                on_connect=handle.may_connect if settings.policy.network != Network.open() else None,
                on_result=handle.note,
                history=not handle.no_history,
            )
            try:
                await handle.sandbox.__aenter__()
                return
            except LayerError as error:
                await handle.sandbox.close()
                if handle.no_history:
                    raise
                handle.no_history = error.why  # a host without layers: it works without a history
            except BaseException:
                await handle.sandbox.close()
                raise

    async def fork(self, handle: ServedSandbox, names: list[str]) -> list[ServedSandbox]:
        """Sandboxes of these ids that continue from here; existing ones are returned."""
        async with self._opening:
            new = [name for name in names if name not in self._handles]
            self._room_for(len(new))
            if new:
                made = await handle.sandbox.fork(len(new))
                for name, sandbox in zip(new, made, strict=True):
                    forked = ServedSandbox(name, sandbox, handle.id)
                    forked.allowed, forked.log = handle.allowed, handle.log  # one `on_connect` serves both
                    forked.snapshots, forked.no_history = dict(handle.snapshots), handle.no_history
                    self._handles[name] = forked
        return [self._handles[name] for name in names]

    async def close(self, name: str) -> bool:
        """Close a sandbox; return whether it was open."""
        handle = self._handles.pop(name, None)
        if handle is not None:
            await handle.sandbox.close()
        return handle is not None

    async def close_all(self) -> None:
        """Close every sandbox."""
        for name in list(self._handles):
            try:
                await self.close(name)
            except Exception:  # noqa: S112 - the others are to be closed as well
                continue

    def _room_for(self, count: int) -> None:
        most = self.settings.most_sandboxes
        if len(self._handles) + count > most:
            raise tool_error(
                f"no more than {most} sandboxes are open at a time",
                why=f"open are: {', '.join(self._handles) or 'none'}; {count} more would be",
                fix="use one of these, or close one that you do not need any more",
            )
