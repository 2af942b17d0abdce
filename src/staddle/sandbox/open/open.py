"""From a policy and a workspace to a sandbox that is open: the line to its agent, and what holds.

On the namespaces backend a sandbox is taken from those that wait ready. On any other the
agent is the command that the backend confines, and it starts everything else inside.
"""

from __future__ import annotations

import os
import sys

from ... import backends
from ..._value import Value
from ...backends.gaps import NEED_MORE
from ...enforcement import Gap
from ...errors import LaunchFailed, PolicyNotEnforceable, StaddleError
from ...launch.view import find_program
from ...linux import tree
from ...policy import Policy
from ...policy.host_sockets import mask_host_sockets
from ...policy.workspace import PLACE, compile_session
from ..workspace import copy_fallback
from . import as_root, plan_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from ...backends.base import Backend
    from ...enforcement import EnforcedLimit, Enforcement
    from ...ipc.agent_client import AgentLink, OpenedShell
    from ...network.gateway.deciding import OnConnect
    from ...policy.limits import Limits
    from ...policy.plan import Plan
    from ..workspace.overlay import Layering
    from .limits import Limiting
    from .network import Reach
    from .settings import Settings

#: Those that show a directory at another place than its own.
_MOVE = ("namespaces", "bwrap", "systemd")
_OWN_LAYER = copy_fallback.LAYERED
#: Those on which the agent needs no interpreter inside, or has all of the host.
_MAY_BE_OURS = copy_fallback.MAY_BE_LAYERED
_NO_INTERPRETER = ("namespaces", "native")


class Decision(Value):
    """How it will be. `workspace` is the plan of the workspace alone, as the host sees it."""

    backend: Backend
    plan: Plan
    workspace: Plan | None
    enforced: Enforcement


class Opened(Value):
    """A sandbox that is there, with one shell in it.

    Further shells start with `environment` in `directory`; empty: as the agent was started.
    `uid` is who its processes are on the host, if that is not us. `layering` is where its changes
    go.
    """

    link: AgentLink
    shell: OpenedShell
    decided: Decision
    bash: str
    environment: Mapping[str, str]
    directory: str
    uid: int | None
    layering: Layering | None = None
    reach: Reach | None = None
    limiting: Limiting | None = None


def decide(asked: Settings, stand_in: str | None = None, copy: str | None = None) -> Decision:
    """Which backend it will be, with which plan, and what that holds. Starts nothing but probes.

    `stand_in` is the directory that is under the layers of a sandbox without a workspace, `copy`
    the one that takes the place of a workspace where there are no layers.
    """
    name = asked.backend if asked.policy.base is None else _with_base(asked.backend)
    copied = copy_fallback.copies(asked, name)
    if stand_in is not None or (asked.mode == "overlay" and asked.workspace is not None and not copied):
        name = _with_layers(name)
    moved = name in _MOVE or (name == "auto" and sys.platform != "darwin")
    found = _decided(asked, asked.policy, name, moved=moved, stand_in=stand_in, copy=copy)
    if moved and found.backend.name not in _MOVE:  # the best there is shows directories where they are
        moved = False
        found = _decided(asked, asked.policy, found.backend.name, moved=False, copy=copy)
    alone = found.backend.name in _NO_INTERPRETER
    if not alone and not found.plan.shows(os.path.realpath(sys.executable)):
        # The agent is a program of ours for the interpreter that runs us; a grant of it must do.
        policy = asked.policy.with_read(os.path.realpath(sys.base_prefix))
        found = _decided(asked, policy, found.backend.name, moved=moved, copy=copy)
    if copied:
        gap = copy_fallback.told(found.backend.name)
        found = found.replace(enforced=found.enforced.replace(gaps=(*found.enforced.gaps, gap)))
    if moved:
        return found
    why = f"{found.backend.name} shows every directory at its own place: the workspace is not at {PLACE}"
    gap = Gap("workspace", why, f"choose {_MOVE[0]} or {_MOVE[1]}", documented=True)
    return found.replace(enforced=found.enforced.replace(gaps=(*found.enforced.gaps, gap)))


def _decided(
    asked: Settings,
    policy: Policy,
    name: str,
    *,
    moved: bool,
    stand_in: str | None = None,
    copy: str | None = None,
) -> Decision:
    # What goes to a layer of its own changes nothing of the host's: there is nothing to protect there.
    access: Literal["read", "write"] = "write" if asked.mode == "bind" else "read"
    seen = asked.workspace if copy is None or moved else None
    plan, workspace = compile_session(
        policy, seen, access=access, moved=moved, env=asked.env, stand_in=stand_in, asks=asked.asks
    )
    if copy is not None:
        from ..workspace.copied import shown

        plan, workspace = shown(plan, copy, moved=moved), None
    # A layer shows no socket of the host's.
    plan = mask_host_sockets(plan, but=PLACE if asked.mode == "overlay" else "")
    asking = name, asked.mode, asked.best_effort
    if (known := plan_cache.known(plan, asking)) is not None:
        return known  # type: ignore[no-any-return]
    held, chosen = plan, name
    holds: tuple[EnforcedLimit, ...] = ()
    if chosen in _MAY_BE_OURS and _limited(plan.limits) and backends.get(_OWN_LAYER).probe().usable:
        holds, gaps = _held(plan.limits, asked.mode)
        if not gaps or asked.best_effort or chosen == _OWN_LAYER:  # else another backend may do better
            # A session holds more than one command alone: there is somebody of ours in it.
            mine = {item.limit: None for item in holds if item.limit in NEED_MORE}
            held, chosen = held.replace(limits=held.limits.replace(**mine)), _OWN_LAYER
    backend, enforced = backends.choose(held, chosen, best_effort=asked.best_effort)
    if backend.name == _OWN_LAYER and holds:
        enforced = enforced.replace(limits=holds)
    decided = Decision(backend, plan, workspace, enforced)
    plan_cache.note(plan, asking, decided)
    return decided


def _limited(limits: Limits) -> bool:
    """Whether there is a limit on a sandbox as a whole: else nobody looks what this host can hold."""
    return any(getattr(limits, name) is not None for name in NEED_MORE)


def _held(limits: Limits, mode: str) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    from ...limits import here
    from ...limits.holding import held

    return held(limits, here.means(), inside=True, layer="directory" if mode == "overlay" else "none")


def open_agent(asked: Settings, layering: Layering | None = None) -> Opened:
    """A new sandbox, or the error that says why there is none. Nothing is left of one that failed.

    `layering` is where its workspace's changes begin, if not with none.
    """
    if layering is None and asked.keep is not None:
        from ..workspace.persistent import opened

        layering = opened(asked.keep, asked.workspace, asked.policy)
    elif (
        layering is None
        and asked.mode == "overlay"
        and (asked.workspace is not None or _keeps_layers(asked.backend))
    ):
        layering = _begun(asked)
    try:
        return _opened(asked, layering)
    except BaseException:
        if layering:
            layering.never_used()
        raise


def _begun(asked: Settings) -> Layering:
    if asked.workspace is not None and copy_fallback.copies(asked, asked.backend):
        from ..workspace.copied import Copied, hidden

        return Copied(asked.workspace, hidden(asked.policy, asked.workspace))
    from ..workspace.overlay import Layering

    return Layering(asked.workspace)


def _opened(asked: Settings, layering: Layering | None) -> Opened:
    stand_in = layering.workspace if layering and layering.is_nobodys else None
    decided = decide(asked, stand_in, None if layering is None else layering.copy)
    plan = decided.plan
    bash = plan_cache.known(plan, "bash")
    if bash is None:
        plan_cache.note(plan, "bash", bash := find_program(plan, "bash"))
    if decided.backend.name == "namespaces":
        return _take(decided, bash, layering, asked.on_connect)
    from .via_backend import launch_agent

    after = None if layering is None else layering.close
    link, shell, uid, reach = launch_agent(decided.backend, plan, bash, asked.on_connect, after)
    if layering is not None:
        from ..workspace.mounted_trees import MountedTrees

        layering.seen_at(plan.cwd)
        layering.attach(MountedTrees(link))
    return Opened(link, shell, decided, bash, {}, "", uid, layering, reach=reach)


def _take(decided: Decision, bash: str, layering: Layering | None, on_connect: OnConnect | None) -> Opened:
    from ...forkserver import client
    from ...ipc.agent_client import AgentLink
    from ...shell.bash_process import stir
    from ..workspace.mounted_trees import MountedTrees
    from .network import Reach

    plan = decided.plan
    # A copy is shown as any directory is.
    layers = layering if layering is not None and layering.swaps else None
    if layering:
        layering.seen_at(plan.cwd)
    if layers:
        as_root.prepare(layers, plan)
    reach, limiting = Reach(plan, on_connect), None
    try:
        limiting = _limiting(plan.limits, layering)
        taken = client.open_sandbox(
            plan,
            bash,
            layers.mounted() if layers else None,
            fingerprint=layers.fingerprint() if layers else b"",
            world=layers.world(*client.world_of(plan, bash)) if layers else None,
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
        if layering:
            layering.close()

    # Nothing may write to layers that somebody else goes on with when we have let go of them.
    link = AgentLink(taken.agent_socket, ended, kill=kill, stop_first=layering is not None and layering.stays)
    shell = None
    try:
        try:
            shell = link.announced()
            stir(shell.control)
            if agent := tree.parent_of(shell.outside):
                first.append(tree.Process(agent))
        finally:
            if layers:  # not sooner: it may have been in the making
                layers.come(taken)
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
    if layering:
        layering.attach(MountedTrees(link, taken.make_trees))
    return Opened(
        link,
        shell,
        decided,
        bash,
        plan.environment(),
        plan.cwd,
        taken.uid,
        layering,
        reach,
        limiting,
    )


def _limiting(limits: Limits, layering: Layering | None) -> Limiting | None:
    if not _limited(limits):
        return None
    from .limits import Limiting

    try:
        return Limiting(limits, layering)
    except OSError as error:
        raise LaunchFailed("the limits could not be put on", why=error.strerror or str(error)) from error


def _keeps_layers(name: str) -> bool:
    """Whether a sandbox on this backend has layers without being given a directory."""
    if name != "auto":
        return name == _OWN_LAYER
    return sys.platform != "darwin" and backends.get(_OWN_LAYER).probe().usable


def _with_base(name: str) -> str:
    """A session on another system than the host's: only ours needs no interpreter in it."""
    if name not in _MAY_BE_OURS:
        raise PolicyNotEnforceable(
            f"a session on the {name} backend cannot use a base",
            why="its agent needs the host's Python inside",
            fix=f"use the {_OWN_LAYER} backend",
        )
    return _OWN_LAYER


def _with_layers(name: str) -> str:
    if name not in _MAY_BE_OURS:
        raise _no_layer(f"the {name} backend has no layer of its own to keep changes in")
    if _OWN_LAYER not in backends.NAMES:
        raise _no_layer("this version has no backend that keeps changes in a layer")
    probe = backends.get(_OWN_LAYER).probe()
    if not probe.usable:
        raise _no_layer(probe.why)
    return _OWN_LAYER


def _no_layer(why: str) -> PolicyNotEnforceable:
    gap = Gap("workspace", why, "choose mode='bind' or mode='readonly'")
    return PolicyNotEnforceable(
        "the workspace cannot be shown copy-on-write (mode='overlay')",
        why=why,
        fix=f"use the {_OWN_LAYER} backend, or choose mode='bind' (writes through) or mode='readonly'",
        gaps=(gap,),
    )
