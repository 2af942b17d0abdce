"""Prewarmed sandboxes, awaited.

async with AsyncPool(4, workspace="project") as pool:
    async with pool.sandbox() as sb:
        await sb.run("make test")
"""

from __future__ import annotations

from ..pool import Pool
from .event_loop import in_thread
from .sandbox import AsyncSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from ..sandbox import Sandbox


class AsyncPool:
    """At most `size` sandboxes at a time, as `Pool`, for asyncio. The arguments are those of Pool."""

    def __init__(
        self, size: int, *, minimum: int | None = None, idle: float | None = 300.0, **options: Any
    ) -> None:
        self._pool = Pool(size, minimum=minimum, idle=idle, **options)

    async def acquire(self, timeout: float | None = None) -> AsyncSandbox:
        """Take an unused sandbox. Waits for one to become free, at most `timeout` seconds."""
        return _awaited(await in_thread(self._pool.acquire, timeout, undo=self._pool.release))

    async def release(self, sandbox: AsyncSandbox) -> None:
        """Give it back. It is closed, with all that was left in it; a fresh one takes its place."""
        await in_thread(self._pool.release, sandbox._there())

    def sandbox(self, timeout: float | None = None) -> AsyncBorrowed:
        """One for an `async with` block: acquired at its beginning, released at its end."""
        return AsyncBorrowed(self, timeout)

    async def close(self) -> None:
        """Close every sandbox of the pool, those in use too. A second time does nothing."""
        await in_thread(self._pool.close)

    @property
    def warm(self) -> int:
        """The number of sandboxes that are ready to be taken."""
        return self._pool.warm

    @property
    def in_use(self) -> int:
        """The number of sandboxes that are taken."""
        return self._pool.in_use

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._pool)[1:]}"


class AsyncBorrowed:
    """A sandbox of a pool for the length of an `async with` block."""

    def __init__(self, pool: AsyncPool, timeout: float | None) -> None:
        self._pool, self._timeout = pool, timeout
        self._sandbox: AsyncSandbox | None = None

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._pool.acquire(self._timeout)
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await self._pool.release(self._sandbox)


def _awaited(sandbox: Sandbox) -> AsyncSandbox:
    made = AsyncSandbox.__new__(AsyncSandbox)
    made._begin(sandbox._settings, lambda: sandbox)
    made._sandbox = sandbox
    return made
