"""A sandbox for trio: its calls run in threads. Contains only what the adapters use."""

from __future__ import annotations

import threading
from functools import partial

from staddle import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from staddle import Policy, Result

#: Threads that each wait for a command; trio's own limit of 40 is for short calls.
_THREADS = 1000
_limits: dict[int, Any] = {}


async def in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function in a thread, from trio."""
    import trio

    loop = id(trio.lowlevel.current_trio_token())
    limiter = _limits.get(loop)
    if limiter is None:
        _limits.clear()  # those of finished runs
        limiter = _limits[loop] = trio.CapacityLimiter(_THREADS)
    cancelled = options.pop("cancelled", None)
    try:
        return await trio.to_thread.run_sync(
            partial(call, *args, **options), abandon_on_cancel=cancelled is not None, limiter=limiter
        )
    except trio.Cancelled:
        if cancelled is not None:
            cancelled.set()
        raise


class TrioFiles:
    """The files of a sandbox, awaited."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def as_user(self, user: str | None) -> TrioFiles:
        """The files as seen by another user."""
        return TrioFiles(self._files.as_user(user))

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return partial(in_thread, getattr(self._files, name))


class TrioSandbox:
    """`Sandbox`, awaited in threads. Cancelling a task ends its command."""

    def __init__(self, workspace: Any = None, policy: Policy | None = None, **options: Any) -> None:
        self._open = partial(Sandbox, workspace, policy, **options)
        self._sandbox: Sandbox | None = None

    async def __aenter__(self) -> TrioSandbox:
        self._sandbox = await in_thread(self._open)
        return self

    @property
    def now(self) -> Sandbox:
        """The open sandbox."""
        assert self._sandbox is not None, "enter it first"  # noqa: S101
        return self._sandbox

    @property
    def alive(self) -> bool:
        """Whether it can run commands."""
        return self._sandbox is not None and self._sandbox.alive

    @property
    def policy(self) -> Policy:
        """The policy it was opened with."""
        return self.now.policy

    @property
    def files(self) -> TrioFiles:
        """Its files."""
        return TrioFiles(self.now.files)

    async def exec(self, argv: list[str], **options: Any) -> Result:
        """Run a program; see `Sandbox.exec`."""
        cancel = threading.Event()
        result: Result = await in_thread(self.now.exec, argv, **options, cancel=cancel, cancelled=cancel)
        return result

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return partial(in_thread, getattr(self.now, name))
