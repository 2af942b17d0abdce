"""staddle confines what an AI agent runs, so that it cannot harm this computer.

    from staddle import Policy, Sandbox, wrap

    wrap(["pytest", "-q"], Policy.agent().with_read(".")).run()     # one command
    with Sandbox(workspace=".") as sb:                              # a shell that remembers
        sb.run("cd src && pytest -q").check()

The names below are public. Each is loaded on first use: importing staddle is cheap, changes nothing and
imports no third-party module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .diagnosis import doctor
    from .egress_request import EgressRequest
    from .enforcement import Enforcement, Gap
    from .environment import CommandResult, ExecutionEnvironment, LocalEnvironment
    from .errors import PolicyNotEnforceable, StaddleError
    from .events import Event
    from .hostinfo.secrets import Secret
    from .jail.jail import Jail, RunOpts, new_jail
    from .jail.task import Task
    from .jail.workspace import Workspace
    from .layers.changes import Change
    from .layers.review import Review
    from .policy import Identity, Limits, Network, Plan, Policy
    from .policy.egress_secret import EgressSecret
    from .policy.http_rules import HttpLimit, HttpRule
    from .policy.installation import default_policy
    from .sandbox.aio.pool import AsyncPool
    from .sandbox.aio.sandbox import AsyncReview, AsyncSandbox
    from .sandbox.history.point import HistoryPoint
    from .sandbox.interpreter import Interpreter
    from .sandbox.kept import kept_sandboxes, remove_kept
    from .sandbox.merging import Merge
    from .sandbox.pool import Pool
    from .sandbox.result import Reason, Result
    from .sandbox.sandbox import Sandbox
    from .sandbox.workspace.snapshot import Snapshot
    from .wrapping import WrappedCommand, wrap

    # `server` stands above this file: see `staddle.server.client` for the type of what it returns.
    def connect(
        url_or_socket: str | None = None,
        *,
        token: str | None = None,
        cafile: str | None = None,
        start: bool = True,
    ) -> Any: ...
    async def connect_async(
        url_or_socket: str | None = None,
        *,
        token: str | None = None,
        cafile: str | None = None,
        start: bool = True,
    ) -> Any: ...


__version__ = "0.2.0"

__all__ = [
    "AsyncPool",
    "AsyncReview",
    "AsyncSandbox",
    "Change",
    "CommandResult",
    "EgressRequest",
    "EgressSecret",
    "Enforcement",
    "Event",
    "ExecutionEnvironment",
    "Gap",
    "HistoryPoint",
    "HttpLimit",
    "HttpRule",
    "Identity",
    "Interpreter",
    "Jail",
    "Limits",
    "LocalEnvironment",
    "Merge",
    "Network",
    "Plan",
    "Policy",
    "PolicyNotEnforceable",
    "Pool",
    "Reason",
    "Result",
    "Review",
    "RunOpts",
    "Sandbox",
    "Secret",
    "Snapshot",
    "StaddleError",
    "Task",
    "Workspace",
    "WrappedCommand",
    "connect",
    "connect_async",
    "default_policy",
    "doctor",
    "kept_sandboxes",
    "new_jail",
    "remove_kept",
    "wrap",
]

_HOME = {
    "AsyncPool": "sandbox.aio.pool",
    "AsyncReview": "sandbox.aio.sandbox",
    "AsyncSandbox": "sandbox.aio.sandbox",
    "Change": "layers.changes",
    "CommandResult": "environment",
    "EgressSecret": "policy.egress_secret",
    "Enforcement": "enforcement",
    "Event": "events",
    "ExecutionEnvironment": "environment",
    "Gap": "enforcement",
    "HistoryPoint": "sandbox.history.point",
    "EgressRequest": "egress_request",
    "HttpLimit": "policy.http_rules",
    "HttpRule": "policy.http_rules",
    "Identity": "policy",
    "Interpreter": "sandbox.interpreter",
    "Jail": "jail.jail",
    "Limits": "policy",
    "LocalEnvironment": "environment",
    "Merge": "sandbox.merging",
    "Network": "policy",
    "Plan": "policy",
    "Policy": "policy",
    "PolicyNotEnforceable": "errors",
    "Pool": "sandbox.pool",
    "Reason": "sandbox.result",
    "Result": "sandbox.result",
    "Review": "layers.review",
    "RunOpts": "jail.jail",
    "Sandbox": "sandbox.sandbox",
    "Secret": "hostinfo.secrets",
    "Snapshot": "sandbox.workspace.snapshot",
    "StaddleError": "errors",
    "Task": "jail.task",
    "Workspace": "jail.workspace",
    "WrappedCommand": "wrapping",
    "connect": "server.client",
    "connect_async": "server.async_client",
    "default_policy": "policy.installation",
    "doctor": "diagnosis",
    "kept_sandboxes": "sandbox.kept",
    "new_jail": "jail.jail",
    "remove_kept": "sandbox.kept",
    "wrap": "wrapping",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'staddle' has no attribute {name!r}")
    value = getattr(__import__(f"staddle.{home}", fromlist=[name]), name)
    globals()[name] = value  # later accesses are plain look-ups, even past a submodule of that name
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
