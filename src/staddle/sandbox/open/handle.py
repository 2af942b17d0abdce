"""Handle of an open sandbox, which its opener returns."""

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
    """An open sandbox with one shell in it.

    Further shells start in `directory`; empty: the agent's directory. `uid` is the id of its processes on the
    host, if not ours. `workspace` stores its changes, unless they go to the host.
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
    #: The number of ids mapped inside, and the first of them on the host.
    ids: int = 1
    base: int = -1
