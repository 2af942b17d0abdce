"""Warm sandboxes of a keeper: a `Pool` for each kind of sandbox that was requested more than once."""

from __future__ import annotations

import threading
from typing import Any

from staddle import Pool, Sandbox

#: Kinds of sandboxes to prewarm at a time.
_KINDS = 4


class WarmSandboxes:
    """Hands out sandboxes, immediately if one of that kind is warm. Thread-safe."""

    def __init__(self, capacity: int, warm: int) -> None:
        self._capacity, self._warm = capacity, warm
        self._asked: dict[str, int] = {}
        self._pools: dict[str, Pool] = {}
        self._of: dict[Sandbox, Pool] = {}
        self._lock = threading.Lock()

    def take(self, kind: str, options: dict[str, Any]) -> Sandbox:
        """A sandbox with these options; `kind` names them."""
        pool = self._pool(kind, options)
        if pool is None:
            return Sandbox(**options)
        sandbox = pool.acquire()
        with self._lock:
            self._of[sandbox] = pool
        return sandbox

    def give_back(self, sandbox: Sandbox) -> None:
        """Close it."""
        with self._lock:
            pool = self._of.pop(sandbox, None)
        sandbox.close()
        if pool is not None:
            pool.release(sandbox)

    def release(self, sandbox: Sandbox) -> None:
        """Close it soon, in the background."""
        with self._lock:
            pool = self._of.pop(sandbox, None)
        if pool is not None:
            pool.release(sandbox)
        else:
            sandbox.close()

    @property
    def count(self) -> int:
        """Number of warm sandboxes."""
        return sum(pool.warm for pool in list(self._pools.values()))

    def close(self) -> None:
        """Close the warm sandboxes, and all that were handed out."""
        with self._lock:
            pools, self._pools, self._warm = list(self._pools.values()), {}, 0
        for pool in pools:
            pool.close()

    def _pool(self, kind: str, options: dict[str, Any]) -> Pool | None:
        with self._lock:
            self._asked[kind] = self._asked.pop(kind, 0) + 1
            while len(self._asked) > 64 * _KINDS:
                del self._asked[next(iter(self._asked))]
            if kind in self._pools:
                self._pools[kind] = self._pools.pop(kind)  # evict the least recently used one
                return self._pools[kind]
            if not self._warm or self._asked[kind] < 2:
                return None
            old = None
            if len(self._pools) >= _KINDS:
                old = next((name for name, pool in self._pools.items() if not pool.in_use), None)
                if old is None:
                    return None
            leaving = self._pools.pop(old) if old is not None else None
            made = self._pools[kind] = Pool(
                self._capacity, minimum=min(self._warm, self._capacity), **options
            )
        if leaving is not None:
            leaving.close()
        return made
