"""Open a sandbox: from its settings to the client of its agent, with one shell.

On the namespaces backend the fork server hands out a sandbox. On any other, the agent is the command that
the backend confines, and it starts everything else inside.
"""

from __future__ import annotations

from ..._value import Value
from ...errors import LaunchFailed, StaddleError
from ...launch.view import find_program
from ...linux import tree
from . import as_root, plan_cache
from .decide import decide, has_limits, workspace_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...ipc.agent_client import AgentLink, OpenedShell
    from ...network.gateway.deciding import OnConnect
    from ...policy.limits import Limits
    from ..workspace.workspace import SandboxWorkspace
    from .decide import Decision, WorkspaceKind
    from .limits import Limiting
    from .network import Reach
    from .settings import Settings


class Opened(Value):
    """A sandbox that is open, with one shell in it.

    Further shells start with `environment` in `directory`; empty: as the agent was started.
    `uid` is that of its processes on the host, if it is not ours. `workspace` takes its changes, if they
    do not go to the host.
    """

    link: AgentLink
    shell: OpenedShell
    decided: Decision
    bash: str
    environment: Mapping[str, str]
    directory: str
    uid: int | None
    workspace: SandboxWorkspace | None = None
    reach: Reach | None = None
    limiting: Limiting | None = None


def open_agent(asked: Settings, workspace: SandboxWorkspace | None = None) -> Opened:
    """Open a sandbox, or raise why there is none. Nothing is left of one that failed.

    `workspace` is the one to continue with, if it does not begin with a new one. `SandboxWorkspace` says
    which of its methods are called here, in which order.
    """
    kind = workspace_kind(asked)
    if workspace is None:
        workspace = _new_workspace(asked, kind)
    try:
        return _opened(asked, kind, workspace)
    except BaseException:
        if workspace:
            workspace.abandon()
        raise


def _new_workspace(asked: Settings, kind: WorkspaceKind) -> SandboxWorkspace | None:
    if kind == "overlay":
        from ..workspace.overlay import OverlayWorkspace

        return OverlayWorkspace(asked.workspace)
    if kind == "persistent" and asked.keep is not None:
        from ..workspace.persistent import opened

        return opened(asked.keep, asked.workspace, asked.policy)
    if kind == "copied" and asked.workspace is not None:
        from ..workspace.copied import CopiedWorkspace, hidden

        return CopiedWorkspace(asked.workspace, hidden(asked.policy, asked.workspace))
    return None


def _opened(asked: Settings, kind: WorkspaceKind, workspace: SandboxWorkspace | None) -> Opened:
    stand_in, copy = (None, None) if workspace is None else (workspace.stand_in, workspace.copy)
    decided = decide(asked, kind, stand_in, copy)
    plan = decided.plan
    bash = plan_cache.get(plan, "bash")
    if bash is None:
        plan_cache.put(plan, "bash", bash := find_program(plan, "bash"))
    if decided.backend.name == "namespaces":
        return _spawn(decided, bash, workspace, asked.on_connect)
    from .via_backend import launch_agent

    after = None if workspace is None else workspace.close
    link, shell, uid, reach = launch_agent(decided.backend, plan, bash, asked.on_connect, after)
    if workspace is not None:
        from ..workspace.mounted_trees import MountedTrees

        workspace.attach(MountedTrees(link), plan.cwd)
    return Opened(link, shell, decided, bash, {}, "", uid, workspace, reach=reach)


def _spawn(
    decided: Decision, bash: str, workspace: SandboxWorkspace | None, on_connect: OnConnect | None
) -> Opened:
    """A sandbox of the fork server."""
    from ...forkserver import client
    from ...ipc.agent_client import AgentLink
    from ...shell.bash_process import stir
    from ..workspace.mounted_trees import MountedTrees
    from ..workspace.overlay import OverlayWorkspace
    from .network import Reach

    plan = decided.plan
    # A copy is bound as any directory is.
    layers = workspace if isinstance(workspace, OverlayWorkspace) else None
    if layers:
        as_root.prepare(layers, plan)
    reach, limiting = Reach(plan, on_connect), None
    try:
        limiting = _limiting(plan.limits, workspace)
        taken = client.open_sandbox(
            plan,
            bash,
            layers.mounted() if layers else None,
            fingerprint=layers.fingerprint() if layers else b"",
            world=layers.home(*client.world_of(plan, bash)) if layers else None,
            trees=layers.system() if layers else None,
            extra_fds=limiting.extra_fds() if limiting else (),
            grouped=limiting is not None and limiting.grouped,
        )
    except BaseException:
        reach.close()
        if limiting:
            limiting.close()
        raise

    first: list[tree.Process] = []

    def kill() -> None:
        for process in first:
            process.kill()

    def ended() -> None:
        kill()  # it hears that the line is closed, unless it was stopped
        reach.close()
        if limiting:
            limiting.close()
        taken.close()
        if workspace:
            workspace.close()

    # Nothing may write to persistent layers when another process may go on with them.
    stays = layers is not None and layers.stack.store.stays
    link = AgentLink(taken.agent_socket, ended, kill=kill, stop_first=stays)
    shell = None
    try:
        try:
            shell = link.announced()
            stir(shell.control)
            if agent := tree.parent_of(shell.outside):
                first.append(tree.Process(agent))
        finally:
            if layers:  # not sooner: it may have been in the making
                layers.adopt(taken)
        if limiting and (group := taken.groups_of(shell.outside)):
            limiting.hold(group)
        reach.attach(link)
        if limiting:
            limiting.attach(link)
    except BaseException as error:
        too_little = limiting.too_little() if limiting else ""
        link.close()
        if shell is not None:
            shell.close()
        if too_little and isinstance(error, StaddleError):
            raise LaunchFailed(
                "a shell could not be started", why=too_little, fix="give limits.memory more"
            ) from error
        raise
    if workspace:
        workspace.attach(MountedTrees(link, taken.make_trees), plan.cwd)
    return Opened(
        link,
        shell,
        decided,
        bash,
        plan.environment(),
        plan.cwd,
        taken.uid,
        workspace,
        reach,
        limiting,
    )


def _limiting(limits: Limits, workspace: SandboxWorkspace | None) -> Limiting | None:
    if not has_limits(limits):
        return None
    from .limits import Limiting

    try:
        return Limiting(limits, workspace)
    except OSError as error:
        raise LaunchFailed("the limits could not be put on", why=error.strerror or str(error)) from error
