"""The keeper: a Ray actor, one on each node, that owns the sandboxes of a fleet there.

Its methods are called by the driver alone. They return `("ok", value)` or `("error", exception)`.
What comes from inside a sandbox is in them as bytes and texts; classes are staddle's own. It ends, with all
its sandboxes, when the driver ends (Ray ends it), when its node ends, and when the driver has not renewed the
lease in time (a network that is split, a head that is dead).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

from staddle import Sandbox, Snapshot
from staddle.errors import InvalidCall, SandboxLost

from .keeper_tasks import TaskRunner
from .messages import ContentRefs, SandboxSpec, portable, portable_error
from .metrics import KeeperMetrics
from .node_files import NodeFiles
from .snapshots import snapshot_content, snapshot_file
from .warm import WarmSandboxes

Reply = tuple[str, Any]

#: Seconds to close everything after the lease has run out.
_TO_CLOSE = 20.0

#: What the driver may call of a sandbox, of one of its sessions, of its files, of a process.
SANDBOX = frozenset(
    (
        "run",
        "exec",
        "interrupt",
        "pause",
        "resume",
        "diff",
        "discard",
        "reset",
        "violations",
        "refusals",
        "events",
        "packages",
    )
)
SESSION = frozenset(("run", "interrupt", "restart", "close"))
FILES = frozenset(
    ("read", "read_bytes", "write", "list", "exists", "stat", "glob", "mkdir", "rename", "remove")
)
PROCESS = frozenset(("poll", "wait", "output", "send_stdin", "close_stdin", "kill"))
PROPERTIES = frozenset(("alive", "enforced", "plan", "policy", "usage", "state"))


def replies(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Reply]]:
    """Return what the method returns or raises as a plain value; every call renews the lease."""

    @wraps(method)
    async def called(self: Keeper, *args: Any, **options: Any) -> Reply:
        if method.__name__ != "status":  # anybody's look does not keep sandboxes alive
            self.renewed = time.monotonic()
        try:
            return "ok", portable(await method(self, *args, **options))
        except Exception as error:
            return "error", portable_error(error)

    return called


class KeptSandbox:
    """A sandbox with what the driver has handles for: its processes and snapshots, by number."""

    def __init__(self, sandbox: Sandbox, tenant: str) -> None:
        self.sandbox, self.tenant = sandbox, tenant
        self.began = time.time()
        self.commands = 0
        self.processes: dict[int, Any] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.last = 0

    def add(self, what: dict[int, Any], value: Any) -> int:
        """Number a process or a snapshot."""
        self.last += 1
        what[self.last] = value
        return self.last


class Keeper:
    """All sandboxes of one fleet on one node."""

    def __init__(self, fleet: str, node: str, capacity: int, warm: int, lease: float) -> None:
        self.fleet, self.node, self.capacity, self.lease = fleet, node, capacity, lease
        self.sandboxes: dict[str, KeptSandbox] = {}
        self.files = NodeFiles()
        self.warm = WarmSandboxes(capacity, warm)
        self.threads = ThreadPoolExecutor(capacity + 32, thread_name_prefix="staddle-keeper")
        self.enders = ThreadPoolExecutor(16, thread_name_prefix="staddle-keeper-end")
        self.metrics = KeeperMetrics(fleet, node)
        self.runner = TaskRunner(self.warm)
        self.renewed = time.monotonic()
        self.began = time.time()
        self._attendant: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ the keeper

    @replies
    async def hello(self) -> dict[str, Any]:
        """Start to look after the lease; what this keeper is."""
        if self._attendant is None:
            self._attendant = asyncio.ensure_future(self._attend())
        from staddle import __version__

        return {"node": self.node, "pid": os.getpid(), "version": __version__, "capacity": self.capacity}

    @replies
    async def renew(self) -> dict[str, Any]:
        """Renew the lease; which of the sandboxes are open."""
        return self._counts()

    @replies
    async def status(self) -> dict[str, Any]:
        """State of every sandbox of this node."""
        rows = {
            name: {"tenant": kept.tenant, "began": kept.began, "commands": kept.commands}
            for name, kept in self.sandboxes.items()
        }
        return {**self._counts(), "sandboxes": rows}

    def _counts(self) -> dict[str, Any]:
        return {
            "fleet": self.fleet,
            "node": self.node,
            "pid": os.getpid(),
            "capacity": self.capacity,
            "open": len(self.sandboxes),
            "warm": self.warm.count,
            "tasks": self.runner.running,
            "began": self.began,
            "fetched_bytes": self.files.fetched,
            **self.metrics.totals,
        }

    @replies
    async def stop(self) -> None:
        """Close everything. The driver ends the process afterwards."""
        await asyncio.to_thread(self._close_all)

    async def _attend(self) -> None:
        """Each second: metrics, and the lease."""
        while time.monotonic() - self.renewed < self.lease:
            await asyncio.sleep(1)
            try:
                self.metrics.flush(len(self.sandboxes), self.warm.count)
            except Exception:  # noqa: S112 - whatever Ray's metrics are up to, the lease is looked after
                continue
        # No driver: nobody can use these sandboxes any more. They end with this process in any case.
        try:
            await asyncio.wait_for(asyncio.to_thread(self._close_all), _TO_CLOSE)
        finally:
            os._exit(0)

    def _close_all(self) -> None:
        kept = list(self.sandboxes.values())
        self.sandboxes.clear()
        for each in kept:
            each.sandbox.close()
        self.warm.close()
        self.files.close()

    async def _thread(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call = partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def _now(self, function: Callable[..., Any], *args: Any) -> Any:
        """The same for what ends something: it never waits for a command."""
        return await asyncio.get_running_loop().run_in_executor(self.enders, partial(function, *args))

    # ------------------------------------------------------------ sandboxes

    @replies
    async def create(self, name: str, spec: SandboxSpec) -> str:
        """Open a sandbox; the backend that confines it."""
        began = time.perf_counter()
        sandbox: Sandbox = await self._thread(self._open, spec)
        self.sandboxes[name] = KeptSandbox(sandbox, spec.tenant)
        self.metrics.created(time.perf_counter() - began)
        return sandbox.enforced.backend

    def _open(self, spec: SandboxSpec) -> Sandbox:
        options = self._options(spec)
        if spec.snapshot is None:
            return self.warm.take(spec.key, options)
        path = snapshot_file(self.files, spec.snapshot)
        try:
            return Sandbox.from_snapshot(path, **options)
        finally:
            os.unlink(path)

    def _options(self, spec: SandboxSpec) -> dict[str, Any]:
        """The options of a Sandbox here, with the paths of what has travelled."""
        options = dict(spec.options)
        if spec.workspace is not None:
            options["workspace"] = self._tree(spec.workspace)
        if spec.base is not None:
            options["base"] = self._tree(spec.base)
        return options

    def _tree(self, sent: ContentRefs) -> str:
        return self.files.tree(sent.digest, sent.manifest, sent.pack)

    @replies
    async def close(self, name: str) -> None:
        """Close a sandbox; one that is not there is closed."""
        kept = self.sandboxes.pop(name, None)
        if kept is not None:
            self.metrics.closed()
            await self._now(self.warm.give_back, kept.sandbox)

    @replies
    async def fork(self, name: str, names: list[str]) -> None:
        """More sandboxes here that continue from one."""
        kept = self._kept(name)
        made = await self._thread(kept.sandbox.fork, len(names))
        for new, sandbox in zip(names, made, strict=True):
            self.sandboxes[new] = KeptSandbox(sandbox, kept.tenant)
            self.metrics.created(0.0)

    def _kept(self, name: str) -> KeptSandbox:
        found = self.sandboxes.get(name)
        if found is None:
            raise SandboxLost(
                f"there is no sandbox {name} on node {self.node[:8]}",
                why="it was closed, or its keeper was restarted",
                fix="create another one",
            )
        return found

    # ------------------------------------------------------------ what is in one

    @replies
    async def run(self, name: str, session: str, command: str, options: dict[str, Any]) -> Any:
        """Run a command in a session: the most frequent call."""
        kept = self._kept(name)
        kept.commands += 1
        where: Any = kept.sandbox if not session else kept.sandbox.session(session)
        result = await self._thread(where.run, command, **options)
        self.metrics.ran(result.duration)
        return result

    @replies
    async def call(
        self, name: str, path: str, method: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Call a method of a sandbox, or of a thing of it: "", "files", "session:NAME", "process:NUMBER"."""
        kept = self._kept(name)
        kind, _, which = path.partition(":")
        allowed = {"": SANDBOX, "files": FILES, "session": SESSION, "process": PROCESS}.get(kind, frozenset())
        if method not in allowed:
            raise InvalidCall(
                f"a sandbox of a fleet has no {method!r} here",
                why="it needs this program's own memory or descriptors",
                fix="use run, exec, start or files",
            )
        target: Any = kept.sandbox
        if kind == "files":
            target = kept.sandbox.files
        elif kind == "session":
            target = kept.sandbox.session(which)
        elif kind == "process":
            target = kept.processes[int(which)]
        if method in ("run", "exec"):
            kept.commands += 1
        if method in ("interrupt", "kill"):
            return await self._now(getattr(target, method), *args)
        return await self._thread(getattr(target, method), *args, **options)

    @replies
    async def look(self, name: str, what: str, session: str = "") -> Any:
        """A property of a sandbox, or the state of a session."""
        kept = self._kept(name)
        if what not in PROPERTIES:
            raise InvalidCall(
                f"a sandbox of a fleet has no {what!r}",
                why="it is not known on that machine",
                fix="`staddle docs fleet` lists what it has",
            )
        return await self._thread(
            lambda: getattr(kept.sandbox.session(session) if session else kept.sandbox, what)
        )

    @replies
    async def text_diff(self, name: str, paths: list[str] | None, limit: int) -> str:
        """The changes as one unified diff of at most `limit` characters; it is the agent's text."""
        kept = self._kept(name)

        def found() -> str:
            text = ""
            for change in kept.sandbox.diff(paths):
                text += change.text_diff()
                if len(text) > limit:
                    return f"{text[:limit]}\n[cut after {limit} characters]\n"
            return text

        return str(await self._thread(found))

    @replies
    async def start(self, name: str, command: Any, options: dict[str, Any]) -> tuple[int, int]:
        """Start a process in the background; its number here, and its pid."""
        kept = self._kept(name)
        process = await self._thread(kept.sandbox.start, command, **options)
        return kept.add(kept.processes, process), process.pid

    @replies
    async def snapshot(self, name: str, label: str) -> tuple[int, str]:
        """Take a snapshot; its number here, and its method."""
        kept = self._kept(name)
        taken: Snapshot = await self._thread(kept.sandbox.snapshot, label)
        return kept.add(kept.snapshots, taken), taken.method

    @replies
    async def restore(self, name: str, number: int) -> None:
        """Go back to a snapshot of this sandbox."""
        kept = self._kept(name)
        await self._thread(kept.sandbox.restore, kept.snapshots[number])

    @replies
    async def drop_snapshot(self, name: str, number: int) -> None:
        """Let a snapshot go."""
        kept = self.sandboxes.get(name)
        taken = None if kept is None else kept.snapshots.pop(number, None)
        if taken is not None:
            await self._thread(taken.close)

    @replies
    async def export(self, name: str, number: int | None) -> tuple[bytes, dict[str, Any]]:
        """A snapshot, or the sandbox as it is now, as content that travels."""
        kept = self._kept(name)
        taken = kept.snapshots[number] if number is not None else None
        return await self._thread(snapshot_content, self.files, kept.sandbox, taken)  # type: ignore[no-any-return]

    @replies
    async def download(self, name: str, path: str, limit: int) -> bytes:
        """A directory of the sandbox as a tar."""
        import io

        kept, out = self._kept(name), io.BytesIO()
        await self._thread(kept.sandbox.download_tar, out, path, limit=limit)
        return out.getvalue()

    @replies
    async def upload(self, name: str, data: bytes, path: str) -> None:
        """Unpack a tar in the sandbox."""
        import io

        await self._thread(self._kept(name).sandbox.upload_tar, io.BytesIO(data), path)

    async def stream(
        self, name: str, session: str, command: str, options: dict[str, Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        """Run a command: ("stdout", bytes) and ("stderr", bytes) as it prints, then its reply."""
        self.renewed = time.monotonic()
        stream = None
        try:
            kept = self._kept(name)
            kept.commands += 1
            where: Any = kept.sandbox.session(session) if session else kept.sandbox
            stream = await self._thread(where.stream, command, **options)
            while (chunk := await self._thread(next, stream, None)) is not None:
                yield chunk.stream, chunk.data
            yield "ok", portable(stream.result)
        except Exception as error:
            yield "error", portable_error(error)
        finally:
            if stream is not None and stream.result is None:
                await self._thread(stream.close)

    # ------------------------------------------------------------ tasks

    async def tasks(self, spec: SandboxSpec, code: Any, items: list[Any]) -> Reply:
        """Do some tasks, each in a fresh sandbox, one after the other; the outcome and seconds of each."""
        self.renewed = time.monotonic()
        try:
            options = await self._thread(self._options, spec)
            done = await self._thread(self.runner.do, spec, options, code, items)
        except Exception as error:
            return "error", portable_error(error)
        for _, _, seconds in done:
            self.metrics.ran(seconds)
        return "ok", done
