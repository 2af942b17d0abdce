"""E2B's interface: `from staddle.compat.e2b import Sandbox` in place of `from e2b import Sandbox`.

It also replaces e2b_code_interpreter: the same class has `run_code`. Sandboxes run on this machine and end
with this process. The network is denied (default); `allow_internet_access=True` or `policy=` change that.
`docs/e2b.md` lists the differences.
"""

from __future__ import annotations

from .awaited import AsyncCommandInputHandle
from .awaited import AsyncE2BSandbox as AsyncSandbox
from .commands import CommandHandle, PtySize
from .commands import E2BCommandResult as CommandResult
from .commands import RunningProcess as ProcessInfo
from .execution import CodeContext as Context
from .execution import CodeExecution as Execution
from .execution import ExecutionError, Logs, OutputMessage
from .execution import RichResult as Result
from .filesystem import (
    EntryInfo,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    WatchHandle,
    WriteEntry,
    WriteInfo,
)
from .info import (
    ALL_TRAFFIC,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxInfo,
    SandboxMetrics,
    SandboxNetworkOpts,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    SandboxUnreachableException,
    ServiceBusyException,
    SnapshotInfo,
    TemplateException,
    TimeoutException,
)
from .info import Pages as SandboxPaginator
from .info import Pages as SnapshotPaginator
from .info import SelectorContext as SandboxNetworkSelectorContext
from .sandbox import E2BSandbox as Sandbox

__all__ = [
    "ALL_TRAFFIC",
    "AsyncCommandInputHandle",
    "AsyncSandbox",
    "AuthenticationException",
    "CommandExitException",
    "CommandHandle",
    "CommandResult",
    "Context",
    "EntryInfo",
    "Execution",
    "ExecutionError",
    "FileNotFoundException",
    "FileType",
    "FilesystemEvent",
    "FilesystemEventType",
    "InvalidArgumentException",
    "Logs",
    "NotEnoughSpaceException",
    "NotFoundException",
    "OutputMessage",
    "ProcessInfo",
    "PtySize",
    "RateLimitException",
    "Result",
    "Sandbox",
    "SandboxException",
    "SandboxInfo",
    "SandboxMetrics",
    "SandboxNetworkOpts",
    "SandboxNetworkSelectorContext",
    "SandboxNotFoundException",
    "SandboxNotRunningException",
    "SandboxPaginator",
    "SandboxQuery",
    "SandboxState",
    "SandboxUnreachableException",
    "ServiceBusyException",
    "SnapshotInfo",
    "SnapshotPaginator",
    "TemplateException",
    "TimeoutException",
    "WatchHandle",
    "WriteEntry",
    "WriteInfo",
]
