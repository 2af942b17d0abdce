"""The keeper: a Ray actor, one on each node, that owns the sandboxes of a fleet there.

Only the driver calls its methods: through Ray or, for the frequent ones, through a direct connection
(`channel.py`). They return `("ok", value)` or `("error", exception)`. The keeper and all its sandboxes end
when the driver ends (Ray ends it), when its node ends, or when the driver does not renew the lease in time (a
network split, a dead head).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from socket import socket
from typing import Any

from staddle import Sandbox
from staddle.errors import InvalidCall

from .channel import CommandServer
from .keeper_sandboxes import KeptSandboxes
from .messages import DIRECT, TUNNEL, SandboxSpec, TaskCode, portable, portable_error
from .metrics import KeeperMetrics
from .node_files import NodeFiles
from .warm import WarmSandboxes

Reply = tuple[str, Any]

#: Seconds to close everything after the lease has expired.
_TO_CLOSE = 20.0
#: Methods of a sandbox that the driver may call through Ray; `DIRECT` ones also directly.
_ASKED = DIRECT | {"fork", "merge", "export", "download", "upload", "drop_snapshot"}


class Keeper:
    """All sandboxes of one fleet on one node."""

    def __init__(self, fleet: str, node: str, capacity: int, warm: int, lease: float) -> None:
        self.fleet, self.node, self.capacity, self.lease = fleet, node, capacity, lease
        self.files = NodeFiles()
        self.warm = WarmSandboxes(capacity, warm, _reserved_gpus())
        self.threads = ThreadPoolExecutor(capacity + 32, thread_name_prefix="staddle-keeper")
        self.enders = ThreadPoolExecutor(16, thread_name_prefix="staddle-keeper-end")
        self.metrics = KeeperMetrics(fleet, node)
        self.sandboxes = KeptSandboxes(node, self.files, self.warm, self.metrics)
        self.runner = TaskRunner(self.warm)
        self.renewed = time.monotonic()
        self.began = time.time()
        self._server: CommandServer | None = None
        self._attendant: asyncio.Task[None] | None = None
        # Start now: a dead driver never calls `hello`. In a thread: Ray may block the event loop.
        threading.Thread(target=self._watch_lease, name="staddle-keeper-lease", daemon=True).start()

    # ------------------------------------------------------------ the keeper

    async def hello(self) -> Reply:
        """Start to take calls; return facts about this keeper, and its address."""
        from staddle import __version__

        self.renewed = time.monotonic()
        if self._attendant is None:
            self._attendant = asyncio.ensure_future(self._attend())
            self._listen()
        direct = None if self._server is None else (self._server.address, self._server.token)
        return "ok", {
            "node": self.node,
            "pid": os.getpid(),
            "version": __version__,
            "capacity": self.capacity,
            "direct": direct,
        }

    def _listen(self) -> None:
        """Accept direct connections, unless Ray's are encrypted: ours are not."""
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return
        import ray.util

        try:
            self._server = CommandServer(ray.util.get_node_ip_address(), self._answer)
        except OSError:
            self._server = None  # use Ray for everything

    async def renew(self) -> Reply:
        """Renew the lease; return the counts of this keeper."""
        self.renewed = time.monotonic()
        return "ok", self._counts()

    async def status(self) -> Reply:
        """State of every sandbox of this node. Does not renew the lease, because anybody may call it."""
        rows = {
            name: {"tenant": kept.tenant, "began": kept.began, "commands": kept.commands}
            for name, kept in list(self.sandboxes.all.items())
        }
        return "ok", {**self._counts(), "sandboxes": rows}

    def _counts(self) -> dict[str, Any]:
        return {
            "fleet": self.fleet,
            "node": self.node,
            "pid": os.getpid(),
            "capacity": self.capacity,
            "open": len(self.sandboxes.all),
            "warm": self.warm.count,
            "tasks": self.runner.running,
            "began": self.began,
            "fetched_bytes": self.files.fetched,
            **self.metrics.totals,
        }

    async def stop(self) -> Reply:
        """Close everything. The driver ends the process afterwards."""
        if self._server is not None:
            self._server.close()
        await asyncio.to_thread(self.sandboxes.close_all)
        return "ok", None

    async def _attend(self) -> None:
        """Flush metrics every second."""
        while True:
            await asyncio.sleep(1)
            with suppress(Exception):  # Ray's metrics may fail in any way
                self.metrics.flush(len(self.sandboxes.all), self.warm.count)

    def _watch_lease(self) -> None:
        """End this process when the lease expires: its sandboxes have no user any more."""
        while (left := self.renewed + self.lease - time.monotonic()) > 0:
            time.sleep(min(left, 1))
        # Sandboxes that do not close in time end with this process.
        closing = threading.Thread(target=self.sandboxes.close_all, daemon=True)
        closing.start()
        closing.join(_TO_CLOSE)
        os._exit(0)

    async def _thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *args)

    # ------------------------------------------------------------ calls

    async def ask(self, method: str, args: tuple[Any, ...]) -> Reply:
        """Call a method of the sandboxes, through Ray."""
        # Calls that end something must never wait for a command.
        ends = method == "close" or (method == "call" and args[2] in ("interrupt", "kill"))
        threads = self.enders if ends else self.threads
        reply = asyncio.get_running_loop().run_in_executor(threads, self._reply, _ASKED, method, args)
        return await reply

    def _answer(self, request: bytes) -> tuple[bytes, socket | None]:
        """`ask` over the connection of an authenticated driver; returns the reply and a socket to relay."""
        method, args = pickle.loads(request)  # noqa: S301 - the driver's, who runs code here as well
        kind, value = self._reply(DIRECT | {TUNNEL}, method, args)
        if kind == "ok" and method == TUNNEL:
            return pickle.dumps((kind, None), 5), value
        return pickle.dumps((kind, value), 5), None

    def _reply(self, allowed: frozenset[str], method: str, args: tuple[Any, ...]) -> Reply:
        self.renewed = time.monotonic()
        try:
            if method not in allowed:
                raise InvalidCall(
                    f"a keeper has no {method!r}", why="there is no such call", fix="use the same staddle"
                )
            return "ok", portable(getattr(self.sandboxes, method)(*args))
        except Exception as error:
            return "error", portable_error(error)

    async def stream(
        self, name: str, session: str, command: str, options: dict[str, Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        """Run a command: ("stdout", bytes) and ("stderr", bytes) as it prints, then its reply."""
        self.renewed = time.monotonic()
        stream = None
        try:
            stream = await self._thread(self.sandboxes.stream, name, session, command, options)
            while (chunk := await self._thread(next, stream, None)) is not None:
                yield chunk.stream, chunk.data
            yield "ok", portable(stream.result)
        except Exception as error:
            yield "error", portable_error(error)
        finally:
            if stream is not None and stream.result is None:
                await self._thread(stream.close)

    async def tasks(self, spec: SandboxSpec, code: Any, items: list[Any]) -> Reply:
        """Run tasks one after the other, each in a fresh sandbox; return outcome and seconds of each."""
        self.renewed = time.monotonic()
        try:
            done = await self._thread(self._tasks, spec, code, items)
        except Exception as error:
            return "error", portable_error(error)
        return "ok", done

    def _tasks(self, spec: SandboxSpec, code: Any, items: list[Any]) -> list[tuple[str, Any, float]]:
        done = self.runner.do(spec, self.sandboxes.options(spec), code, items)
        for _, _, seconds in done:
            self.metrics.ran(seconds)
        return done


def _reserved_gpus() -> list[str]:
    """The GPUs that Ray has reserved for this actor. Its numbers are those of NVIDIA's driver."""
    ray = sys.modules.get("ray")  # an actor has it
    return [f"nvidia:{number}" for number in ray.get_gpu_ids()] if ray and ray.is_initialized() else []


class TaskRunner:
    """Runs tasks. Loads the function of a map once."""

    def __init__(self, warm: WarmSandboxes) -> None:
        self._warm = warm
        self._functions: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self.running = 0

    def do(
        self, spec: SandboxSpec, options: dict[str, Any], code: TaskCode, items: list[Any]
    ) -> list[tuple[str, Any, float]]:
        """The outcome ("ok" or "error", value) and the seconds of each item, in order."""
        return [self._one(spec, options, code, item) for item in items]

    def _one(
        self, spec: SandboxSpec, options: dict[str, Any], code: TaskCode, item: Any
    ) -> tuple[str, Any, float]:
        began = time.perf_counter()
        with self._lock:
            self.running += 1
        try:
            sandbox = self._warm.take(spec.key, options)
            try:
                value = self._value(sandbox, code, item)
            finally:
                self._warm.release(sandbox)
            return "ok", portable(value), time.perf_counter() - began
        except Exception as error:
            return (
                "error",
                portable_error(error, foreign=code.function is not None),
                time.perf_counter() - began,
            )
        finally:
            with self._lock:
                self.running -= 1

    def _value(self, sandbox: Sandbox, code: TaskCode, item: Any) -> Any:
        if code.function is None:
            return sandbox.run(
                code.command, **{**code.options, "env": {**code.options.get("env", {}), **item}}
            )
        function = self._functions.get(code.digest)
        if function is None:
            from ray import cloudpickle

            function = self._functions[code.digest] = cloudpickle.loads(code.load())
        value = function(sandbox, item)
        return asyncio.run(value) if inspect.iscoroutine(value) else value
