"""An agent's file and command tools, confined to one directory by the kernel."""

from __future__ import annotations

from ..files.beneath import PendingFile, open_for_write, safe_mkdir_all, safe_remove
from .interface import CommandResult, ExecutionEnvironment
from .landlock_exec import probe_landlock, run_jail_exec, wrap_bash_command
from .local import LocalEnvironment
from .writable_paths import validate_writable_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..command_rules.rules import CommandRules, Rule
    from .aio import AsyncLocalEnvironment

__all__ = [
    "AsyncLocalEnvironment",
    "CommandResult",
    "CommandRules",
    "ExecutionEnvironment",
    "LocalEnvironment",
    "PendingFile",
    "Rule",
    "open_for_write",
    "probe_landlock",
    "run_jail_exec",
    "safe_mkdir_all",
    "safe_remove",
    "validate_writable_paths",
    "wrap_bash_command",
]


_LATER = {
    "AsyncLocalEnvironment": "staddle.environment.aio",
    "CommandRules": "staddle.command_rules.rules",
    "Rule": "staddle.command_rules.rules",
}


def __getattr__(name: str) -> object:
    """Import rarely used names on first use: asyncio alone takes longer than everything else."""
    home = _LATER.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(home, fromlist=[name]), name)
