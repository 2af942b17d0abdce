"""E2B's interface: `from staddle.compat.e2b import Sandbox` in place of `from e2b import Sandbox`.

Also for e2b_code_interpreter: the same class has `run_code`. Sandboxes are on this machine and end with
this process; the network is denied unless `allow_internet_access=True` or `policy=` says otherwise.
`docs/e2b.md` lists what is different.
"""

from __future__ import annotations

from .awaited import AsyncE2BSandbox as AsyncSandbox
from .commands import CommandHandle
from .commands import E2BCommandResult as CommandResult
from .commands import RunningProcess as ProcessInfo
from .errors import (
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    SandboxException,
    SandboxNotFoundException,
    TimeoutException,
)
from .execution import CodeContext as Context
from .execution import CodeExecution as Execution
from .execution import ExecutionError, Logs, OutputMessage
from .execution import RichResult as Result
from .filesystem import EntryInfo, FilesystemEvent, FilesystemEventType, FileType, WriteEntry, WriteInfo
from .info import (
    SandboxInfo,
    SandboxMetrics,
    SandboxNetworkOpts,
    SandboxQuery,
    SandboxState,
    SnapshotInfo,
)
from .pty import PtySize
from .sandbox import E2BSandbox as Sandbox

__all__ = [
    "AsyncSandbox",
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
    "Result",
    "Sandbox",
    "SandboxException",
    "SandboxInfo",
    "SandboxMetrics",
    "SandboxNetworkOpts",
    "SandboxNotFoundException",
    "SandboxQuery",
    "SandboxState",
    "SnapshotInfo",
    "TimeoutException",
    "WriteEntry",
    "WriteInfo",
]
