"""`AsyncPool`: sandboxes opened in advance, for asyncio.

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
    """Holds at most `size` sandboxes, as `Pool`, for asyncio. The arguments are those of Pool."""

    def __init__(
        self, size: int, *, minimum: int | None = None, idle: float | None = 300.0, **options: Any
    ) -> None:
        self._pool = Pool(size, minimum=minimum, idle=idle, **options)

    async def acquire(self, timeout: float | None = None) -> AsyncSandbox:
        """Take an unused sandbox. Waits at most `timeout` seconds for one to become free."""
        return _awaited(await in_thread(self._pool.acquire, timeout, undo=self._pool.release))

    async def release(self, sandbox: AsyncSandbox) -> None:
        """Return a sandbox to the pool, which closes it; a fresh one replaces it."""
        await in_thread(self._pool.release, sandbox._there())

    def sandbox(self, timeout: float | None = None) -> AsyncBorrowed:
        """Return a context manager that acquires a sandbox and releases it at the end of the block."""
        return AsyncBorrowed(self, timeout)

    async def close(self) -> None:
        """Close all sandboxes of the pool, including those in use. A second call does nothing."""
        await in_thread(self._pool.close)

    @property
    def warm(self) -> int:
        """Number of sandboxes ready to be taken."""
        return self._pool.warm

    @property
    def in_use(self) -> int:
        """Number of sandboxes that are taken."""
        return self._pool.in_use

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._pool)[1:]}"


class AsyncBorrowed:
    """A sandbox of a pool for the duration of an `async with` block."""

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
