"""The handle of a sandbox that is open: what its opener holds of it."""

from __future__ import annotations

from ..._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.agent_client import AgentClient
    from ...ipc.opened_shell import OpenedShell
    from ..workspace.workspace import SandboxWorkspace
    from .decide import Decision
    from .limits import SandboxLimits
    from .network import SandboxNetwork


class SandboxHandle(Value):
    """A sandbox that is open, with one shell in it.

    Further shells start in `directory`; empty: where the agent was started.
    `uid` is that of its processes on the host, if it is not ours. `workspace` takes its changes, if they
    do not go to the host.
    """

    agent: AgentClient
    shell: OpenedShell
    decided: Decision
    bash: str
    directory: str
    uid: int | None
    workspace: SandboxWorkspace | None = None
    network: SandboxNetwork | None = None
    limits: SandboxLimits | None = None
    #: How many ids are mapped inside, and what the first of them is on the host.
    ids: int = 1
    base: int = -1
