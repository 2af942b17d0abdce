"""Open a sandbox: from its settings to the client of its agent, with one shell.

On the namespaces backend the fork server provides a sandbox. On other backends the agent is the command that
the backend confines, and it starts everything else inside.
"""

from __future__ import annotations

import os
from functools import partial

from ...background import do_later
from ...enforcement import Gap
from ...errors import LaunchFailed, StaddleError
from ...interrupts import uninterrupted
from ...layers.store import no_room
from ...linux import process_tree
from ...linux.process import parent_of
from ...observe.redaction import secrets_of
from ...policy.own_places import make_own
from . import ahead, as_root
from .decide import decide, workspace_kind
from .handle import SandboxHandle
from .settings import APART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...ipc.agent_client import AgentClient
    from ...ipc.opened_shell import OpenedShell
    from ...network.host.approval_calls import OnConnect
    from ...network.host.inspector_process import InspectorProcess
    from ...policy.limits import Limits
    from ...policy.plan import Plan
    from ..workspace.overlay import OverlayWorkspace
    from ..workspace.workspace import SandboxWorkspace
    from .decide import Decision, WorkspaceKind
    from .limits import SandboxLimits
    from .network import SandboxNetwork
    from .settings import SandboxSettings


#: Backends with a gateway, which hands connections over to the HTTP inspector.
_INSPECTED = ("namespaces", "bwrap", "systemd")


def open_agent(settings: SandboxSettings, workspace: SandboxWorkspace | None = None) -> SandboxHandle:
    """Open a sandbox. If that fails, nothing of it is left.

    `workspace` is the one to continue with, if any. `SandboxWorkspace` documents which of its methods are
    called here, and in which order.
    """
    try:
        ahead.begin(settings.backend)
        kind = workspace_kind(settings)
        if workspace is None and kind == "overlay":
            return _open_over_directory(settings)
        if workspace is None:
            workspace = _new_workspace(settings, kind)
        return _open_or_abandon(settings, kind, workspace)
    except OSError as error:
        told = no_room(error, os.path.dirname(os.fsdecode(error.filename or "")))
        if told is error:
            raise
        raise told from error
    finally:
        ahead.end()


def _open_over_directory(settings: SandboxSettings) -> SandboxHandle:
    """Open a sandbox with new layers: the one opened in advance, or another one."""
    from .next_sandbox import NEXT

    is_live = settings.workspace is None or settings.freeze is False
    opened = NEXT.take(settings) if is_live else None
    if opened is None:
        opened = _open_or_abandon(settings, "overlay", _overlay(settings))
    if is_live:
        NEXT.opened(settings, opened, lambda decided: _spawn_or_abandon(decided, _overlay(settings)))
    return opened


def _overlay(settings: SandboxSettings) -> OverlayWorkspace:
    from ..workspace.frozen import BaseFreezer
    from ..workspace.overlay import OverlayWorkspace

    freezer = BaseFreezer(settings.policy, settings.env, settings.asks)
    return OverlayWorkspace(settings.workspace, freezer=freezer, freeze=settings.freeze)


def _spawn_or_abandon(decided: Decision, workspace: SandboxWorkspace) -> SandboxHandle:
    try:
        return _spawn(decided, workspace, None)
    except BaseException:
        workspace.abandon()
        raise


def _open_or_abandon(
    settings: SandboxSettings, kind: WorkspaceKind, workspace: SandboxWorkspace | None
) -> SandboxHandle:
    try:
        return _open_with(settings, kind, workspace)
    except BaseException as error:
        told = error
        if workspace and isinstance(error, OSError | LaunchFailed):
            told = no_room(error, workspace.stack.store.path)  # before room is made there
        if workspace:
            workspace.abandon()
        if told is error:
            raise
        raise told from error


def _new_workspace(settings: SandboxSettings, kind: WorkspaceKind) -> SandboxWorkspace | None:
    if kind == "persistent" and settings.keep is not None:
        from ..workspace.persistent import claim_workspace

        return claim_workspace(settings.keep, settings.workspace, settings.policy)
    if kind == "copied" and settings.workspace is not None:
        from ..workspace.copied import CopiedWorkspace, denied_paths

        return CopiedWorkspace(settings.workspace, denied_paths(settings.policy, settings.workspace))
    return None


def _open_with(
    settings: SandboxSettings, kind: WorkspaceKind, workspace: SandboxWorkspace | None
) -> SandboxHandle:
    stand_in, copy = (None, None) if workspace is None else (workspace.stand_in, workspace.copy)
    decided = decide(settings, kind, stand_in, copy)
    if decided.enforced.nested:
        decided.enforced.tell_once()
    if decided.plan.guards:
        make_own(decided.plan)
    if not decided.plan.is_inspected or decided.backend.name not in _INSPECTED:
        return _open_decided(settings, decided, workspace)
    from ...network.host.inspector_process import inspected

    plan, inspector = inspected(decided.plan, settings.on_request, settings.request_seconds)
    environment = plan.environment() if decided.environment else {}
    decided = decided.replace(plan=plan, environment=environment, secrets=secrets_of(plan))
    try:
        return _open_decided(settings, decided, workspace, inspector)
    except BaseException:
        if inspector is not None:
            inspector.close()
        raise


def _open_decided(
    settings: SandboxSettings,
    decided: Decision,
    workspace: SandboxWorkspace | None,
    inspector: InspectorProcess | None = None,
) -> SandboxHandle:
    if decided.backend.name == "namespaces":
        return _spawn(decided, workspace, settings.on_connect, inspector)
    from ...launch.view import find_program
    from .via_backend import launch_agent

    plan = decided.plan
    bash = find_program(plan, "bash")
    after = None if workspace is None else workspace.close
    if settings.workspace is None and decided.backend.name == "native":
        # Nothing is private there, and the caller's directory is not for the sandbox.
        plan, after = _in_private_directory(plan)
        decided = decided.replace(plan=plan)

    def launched() -> tuple[
        AgentClient, OpenedShell, int | None, SandboxNetwork | None, SandboxLimits | None
    ]:
        opened = None
        if decided.backend.name == "landlock" and settings.on_connect is None:
            opened = _with_spare(decided, bash, workspace, after)
        return opened or launch_agent(
            decided.backend, plan, bash, settings.on_connect, after, inspector=inspector
        )

    try:
        # Uninterrupted: until its agent answers, nobody owns what a backend has prepared.
        agent, shell, uid, network, limits = uninterrupted(launched)
    except BaseException:
        if workspace is None and after is not None:
            after()
        raise
    if workspace is not None:
        from ..workspace.trees import MountedTrees

        workspace.attach(MountedTrees(agent), plan.cwd)
    if settings.mode in APART and decided.backend.name == "landlock":
        _hold_disk(agent, limits, workspace)
    return SandboxHandle(agent, shell, decided, bash, "", uid, workspace, network, limits)


def _hold_disk(agent: AgentClient, limits: SandboxLimits | None, workspace: SandboxWorkspace | None) -> None:
    from .limits import LaunchedLimits

    if isinstance(limits, LaunchedLimits):
        limits.hold_disk(agent, workspace)


def _with_spare(
    decided: Decision, bash: str, workspace: SandboxWorkspace | None, after: Callable[[], None] | None
) -> tuple[AgentClient, OpenedShell, int | None, SandboxNetwork | None, SandboxLimits | None]:
    """Return an agent on landlock, a waiting one or a new one, and start the next spare."""
    from .spare_agents import SPARES
    from .via_backend import launch_agent

    plan, copy = decided.plan, None
    if workspace is not None and workspace.copy is not None:
        from ..workspace.stores import prewarmed_copy

        copy = partial(prewarmed_copy, workspace.stack.store)

    def launch(plan: Plan, endings: list[Callable[[], None]]) -> tuple[Any, ...]:
        return launch_agent(decided.backend, plan, bash, None, lambda: _call(endings))

    spare = SPARES.take(plan, bash)
    if spare is None:
        opened = launch_agent(decided.backend, plan, bash, None, after)
    else:
        opened = spare.opened
        if after is not None:
            spare.endings.append(after)
    SPARES.make(plan, bash, copy, launch)
    return opened


def _call(endings: list[Callable[[], None]]) -> None:
    for end in endings:
        end()


def _in_private_directory(plan: Plan) -> tuple[Plan, Callable[[], None]]:
    """Return the plan of a sandbox that starts in a new directory, and the function to remove it."""
    from tempfile import gettempdir

    from ..workspace.stores import copy_store_for

    layer = copy_store_for(gettempdir()).layer().hold()
    return plan.replace(cwd=layer.upper), layer.drop


def _spawn(
    decided: Decision,
    workspace: SandboxWorkspace | None,
    on_connect: OnConnect | None,
    inspector: InspectorProcess | None = None,
) -> SandboxHandle:
    """Open a sandbox from the fork server."""
    from ...forkserver import client
    from ...ipc.agent_client import AgentClient
    from ..workspace.overlay import OverlayWorkspace
    from ..workspace.trees import MountedTrees
    from .network import SandboxNetwork

    plan, bash = decided.plan, decided.bash
    # A copy is bind-mounted like any directory.
    layers = workspace if isinstance(workspace, OverlayWorkspace) else None
    if layers and layers.stack.store.small:
        decided = _with_little_room(decided, layers.stack.store.small)
    if layers:
        layers.root_uid = client.root_of(layers.stack.store.owner, plan.identity.uid)
    if layers and (layers.has_system or plan.identity.uid == 0):
        as_root.prepare(layers, plan)
    if layers and plan.world == "writable":
        as_root.open_root(layers, plan)
    network = SandboxNetwork(plan, on_connect, filtered=decided.is_filtered, inspector=inspector)
    limits = None
    try:
        limits = _sandbox_limits(plan.limits, workspace)
        taken = client.open_sandbox(
            plan,
            bash,
            layers.to_mount if layers else None,
            extra_fds=limits.extra_fds,
            cgroups=limits.cgroups,
        )
    except BaseException:
        network.close()
        if limits:
            limits.close()
        raise

    first: list[process_tree.ProcessIdentity] = []
    has_ended = False

    def identify() -> None:
        """Identify the agent's process while no caller waits: usually closing its socket ends it."""
        if not has_ended and shell is not None and (pid := parent_of(shell.host_pid)):
            first.append(process_tree.ProcessIdentity(pid))

    def kill() -> None:
        for process in first:
            process.kill()

    def ended() -> None:
        nonlocal has_ended
        has_ended = True
        kill()  # the closed socket ends it, unless it was stopped
        network.close()
        limits.close()
        taken.close()
        if workspace:
            workspace.close()

    # Persistent layers must have no writers when another process may continue with them.
    stays = layers is not None and layers.stack.store.is_persistent
    agent = AgentClient(taken.agent_socket, ended, kill=kill, stop_first=stays)
    shell = None
    try:
        try:
            shell = agent.announced()
            do_later(identify)
        finally:
            if layers and taken.layer:  # not earlier: it may still have been in preparation
                layers.adopt_home(taken.layer)
        alive = lambda: first[0].pid if first and not has_ended else 0  # noqa: E731
        limits.attach(agent, alive, shell.host_pid, taken.cgroups)
        if decided.is_filtered:
            network.attach(agent)
    except BaseException as error:
        too_little = limits.too_little()
        agent.close()
        if shell is not None:
            shell.close()
        if too_little and isinstance(error, StaddleError):
            raise LaunchFailed(
                "a shell could not be started", why=too_little, fix="give limits.memory more"
            ) from error
        raise
    if workspace:
        workspace.attach(MountedTrees(agent, taken.make_trees, limits), plan.cwd)
    return SandboxHandle(
        agent,
        shell,
        decided,
        bash,
        plan.cwd,
        taken.uid,
        workspace,
        network,
        limits,
        taken.ids,
        taken.base,
    )


def _with_little_room(decided: Decision, room: int) -> Decision:
    why = f"all sandboxes share {room >> 20} MB for changes: /dev/shm is small, and no disk can store layers"
    fix = "start the container with --shm-size 1g, or mount a tmpfs or a volume at /tmp"
    gap = Gap("layers", why, fix, documented=True)
    return decided.replace(enforced=decided.enforced.replace(gaps=(*decided.enforced.gaps, gap)))


def _sandbox_limits(limits: Limits, workspace: SandboxWorkspace | None) -> SandboxLimits:
    from .limits import SandboxLimits

    try:
        return SandboxLimits(limits, workspace)
    except OSError as error:
        raise LaunchFailed(
            "the limits could not be put on",
            why=error.strerror or str(error),
            fix="see `staddle doctor` about limits, or set Limits.none()",
        ) from error
