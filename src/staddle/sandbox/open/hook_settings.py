"""The hooks of a sandbox as its caller gives them, checked; `sandbox.hooks` calls them."""

from __future__ import annotations

import inspect

from ... import check
from ..._value import Value
from ...errors import InvalidCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...events import Event
    from ...launch.audit import AuditTarget


class CommandStart(Value):
    """A command that is about to start: its number in the sandbox, and what the caller asked for."""

    number: int
    command: str | tuple[str, ...]
    session: str
    user: str
    cwd: str | None = None
    timeout: float | None = None
    background: bool = False

    def __str__(self) -> str:
        return self.command if isinstance(self.command, str) else " ".join(self.command)


class HookSettings(Value):
    """The hooks that a sandbox was opened with, checked."""

    on_command: Callable[[CommandStart], Any] | None = None
    on_result: Callable[[Any], Any] | None = None
    on_violation: Callable[[Event], Any] | None = None
    audit: AuditTarget | None = None


def checked_hooks(
    on_command: object, on_result: object, on_violation: object, audit: Any, *, awaited: bool
) -> HookSettings | None:
    """The hooks, or None when there is none. With `awaited`, they may be coroutine functions."""
    given: dict[str, Any] = {"on_command": on_command, "on_result": on_result, "on_violation": on_violation}
    for name, hook in given.items():
        if hook is None:
            continue
        check.function(name, hook, "give a function")
        if not awaited and inspect.iscoroutinefunction(hook):
            raise InvalidCall(
                f"{name} is a coroutine function", why="a Sandbox awaits nothing", fix="use AsyncSandbox"
            )
    if audit is None and not any(given.values()):
        return None
    return HookSettings(**given, audit=audit)
