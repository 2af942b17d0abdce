"""The tasks of a `map`, as a keeper does them: each in a fresh sandbox, one batch in one thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from staddle import Sandbox

from .messages import SandboxSpec, TaskCode, portable, portable_error
from .warm import WarmSandboxes


class TaskRunner:
    """Does tasks. The function of a map is loaded once."""

    def __init__(self, warm: WarmSandboxes) -> None:
        self._warm = warm
        self._functions: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self.running = 0

    def do(
        self, spec: SandboxSpec, options: dict[str, Any], code: TaskCode, items: list[Any]
    ) -> list[tuple[str, Any, float]]:
        """The outcome ("ok" or "error", value) and the seconds of each item, in their order."""
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
