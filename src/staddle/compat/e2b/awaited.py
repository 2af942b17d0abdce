"""The same, awaited: each call runs in a thread."""

from __future__ import annotations

import asyncio
import inspect

from .commands import CommandHandle, Commands
from .filesystem import Filesystem, WatchHandle
from .pty import Pty, PtyHandle
from .sandbox import E2BSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_WRAPPED = (E2BSandbox, Commands, Filesystem, Pty, CommandHandle, PtyHandle, WatchHandle)


class Awaited:
    """The methods of an object as coroutines; what is no method stays as it is."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return _wrapped(value)

        async def call(*args: Any, **options: Any) -> Any:
            return _wrapped(await asyncio.to_thread(value, *args, **options))

        return call


class AsyncE2BSandbox(Awaited):
    """A sandbox, awaited: `await AsyncSandbox.create()`, `await sandbox.commands.run("ls")`."""

    @classmethod
    async def create(cls, *args: Any, **options: Any) -> Self:
        """Open a sandbox."""
        return cls(await asyncio.to_thread(E2BSandbox.create, *args, **options))

    @classmethod
    async def connect(cls, sandbox_id: str, *args: Any, **options: Any) -> Self:
        """The sandbox of that id in this process."""
        return cls(await asyncio.to_thread(E2BSandbox.connect, sandbox_id, *args, **options))

    def get_host(self, port: int) -> str:
        """As E2BSandbox."""
        host: str = self._target.get_host(port)
        return host

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._target.kill)


def _wrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrapped(each) for each in value]
    if isinstance(value, E2BSandbox):
        return AsyncE2BSandbox(value)
    return Awaited(value) if isinstance(value, _WRAPPED) else value
