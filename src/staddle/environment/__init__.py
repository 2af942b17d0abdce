"""An agent's file and command tools, kept in one directory by the kernel."""

from __future__ import annotations

from .anchored import open_for_write, safe_mkdir_all, safe_remove
from .beneath import PendingFile
from .contract import CommandResult, ExecutionEnvironment
from .jail import probe_landlock, run_jail_exec, wrap_bash_command
from .local import LocalEnvironment
from .writable import validate_writable_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .asynchronous import AsyncLocalEnvironment

__all__ = [
    "AsyncLocalEnvironment",
    "CommandResult",
    "ExecutionEnvironment",
    "LocalEnvironment",
    "PendingFile",
    "open_for_write",
    "probe_landlock",
    "run_jail_exec",
    "safe_mkdir_all",
    "safe_remove",
    "validate_writable_paths",
    "wrap_bash_command",
]


def __getattr__(name: str) -> object:
    """The asynchronous face on first use: asyncio takes longer to load than all the rest."""
    if name != "AsyncLocalEnvironment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .asynchronous import AsyncLocalEnvironment

    return AsyncLocalEnvironment
