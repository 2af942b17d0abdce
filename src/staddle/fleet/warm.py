"""Warm sandboxes of a keeper: a `Pool` for each kind of sandbox that was requested more than once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from staddle import Pool, Sandbox, default_policy
from staddle.errors import FleetBusy

#: Kinds of sandboxes to prewarm at a time.
_KINDS = 4


class WarmSandboxes:
    """Hands out sandboxes, immediately if one of that kind is warm. Thread-safe.

    With `gpus`, each sandbox has one of these GPUs for itself, and none is warm.
    """

    def __init__(self, capacity: int, warm: int, gpus: Iterable[str] = ()) -> None:
        self._free = list(gpus)
        self._has_gpus = bool(self._free)
        self._gpu_of: dict[Sandbox, str] = {}
        self._capacity, self._warm = capacity, warm
        self._asked: dict[str, int] = {}
        self._pools: dict[str, Pool] = {}
        self._of: dict[Sandbox, Pool] = {}
        self._lock = threading.Lock()

    def take(self, kind: str, options: dict[str, Any]) -> Sandbox:
        """A sandbox with these options; `kind` names them."""
        if self._has_gpus:
            return self.with_gpu(Sandbox, options)
        pool = self._pool(kind, options)
        if pool is None:
            return Sandbox(**options)
        sandbox = pool.acquire()
        with self._lock:
            self._of[sandbox] = pool
        return sandbox

    def with_gpu(self, make: Callable[..., Sandbox], options: dict[str, Any]) -> Sandbox:
        """A sandbox from `make`, with a GPU that no other sandbox has, if there are any GPUs."""
        if not self._has_gpus:
            return make(**options)
        with self._lock:
            if not self._free:
                raise FleetBusy(
                    "every GPU of this node is in use", why="each sandbox has one", fix="close a sandbox"
                )
            gpu = self._free.pop(0)
        try:
            policy = options.get("policy") or default_policy()
            sandbox = make(**{**options, "policy": policy.with_gpu(gpu)})
        except BaseException:
            self._free.append(gpu)
            raise
        with self._lock:
            self._gpu_of[sandbox] = gpu
        return sandbox

    def _ended(self, sandbox: Sandbox) -> None:
        with self._lock:
            gpu = self._gpu_of.pop(sandbox, None)
            if gpu is not None:
                self._free.append(gpu)

    def give_back(self, sandbox: Sandbox) -> None:
        """Close it."""
        with self._lock:
            pool = self._of.pop(sandbox, None)
        sandbox.close()
        self._ended(sandbox)
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
            self._ended(sandbox)

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
