"""The same, awaited: each call runs in a thread."""

from __future__ import annotations

import asyncio
import inspect

from .commands import CommandHandle, Commands
from .filesystem import Filesystem, WatchHandle
from .pty import Pty, PtyHandle
from .sandbox import E2BSandbox, Pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_WRAPPED = (E2BSandbox, Commands, Filesystem, Pty, CommandHandle, PtyHandle, WatchHandle, Pages)


class Awaited:
    """The methods of an object as coroutines; what is no method stays as it is."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return _wrapped(value)

        async def call(*args: Any, **options: Any) -> Any:
            loop = asyncio.get_running_loop()
            args = tuple(_called_back(loop, each) for each in args)
            options = {name: _called_back(loop, each) for name, each in options.items()}
            return _wrapped(await asyncio.to_thread(value, *args, **options))

        return call


class AwaitedByIdToo:
    """A method of E2BSandbox, awaited: on a sandbox, or on the class with the id of one first."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: AsyncE2BSandbox | None, owner: type) -> Any:
        target = E2BSandbox if instance is None else instance._target

        async def call(*args: Any, **options: Any) -> Any:
            return _wrapped(await asyncio.to_thread(getattr(target, self._name), *args, **options))

        return call


class AsyncE2BSandbox(Awaited):
    """A sandbox, awaited: `await AsyncSandbox.create()`, `await sandbox.commands.run("ls")`."""

    @classmethod
    async def create(cls, *args: Any, **options: Any) -> Self:
        """Open a sandbox."""
        return cls(await asyncio.to_thread(E2BSandbox.create, *args, **options))

    @staticmethod
    def list(*args: Any, **options: Any) -> Any:
        """The sandboxes of this process, as pages."""
        return Awaited(E2BSandbox.list(*args, **options))

    connect, kill, pause, beta_pause = (AwaitedByIdToo() for _ in range(4))
    set_timeout, get_info, create_snapshot, fork = (AwaitedByIdToo() for _ in range(4))
    delete_snapshot = AwaitedByIdToo()

    def get_host(self, port: int) -> str:
        """As E2BSandbox."""
        host: str = self._target.get_host(port)
        return host

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


def _called_back(loop: asyncio.AbstractEventLoop, value: Any) -> Any:
    """A coroutine function as one that a thread can call: it runs on the caller's loop."""
    if not inspect.iscoroutinefunction(value):
        return value
    return lambda *args: asyncio.run_coroutine_threadsafe(value(*args), loop).result()


def _wrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrapped(each) for each in value]
    if isinstance(value, E2BSandbox):
        return AsyncE2BSandbox(value)
    return Awaited(value) if isinstance(value, _WRAPPED) else value
