"""An agent's file and command tools, kept in one directory by the kernel."""

from .anchored import open_for_write, safe_mkdir_all, safe_remove
from .asynchronous import AsyncLocalEnvironment
from .beneath import PendingFile
from .contract import CommandResult, ExecutionEnvironment
from .jail import probe_landlock, run_jail_exec, wrap_bash_command
from .local import LocalEnvironment
from .writable import validate_writable_paths

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
