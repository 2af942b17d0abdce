"""From a policy and a workspace to a sandbox that is open: the line to its agent, and what holds.

On the namespaces backend a sandbox is taken from those that wait ready. On any other the
agent is the command that the backend confines, and it starts everything else inside.
"""

from __future__ import annotations

import os
import sys

from .. import backends
from .._value import Value
from ..backends.base import Gap
from ..backends.shortfalls import NEED_MORE
from ..errors import InvalidCall, LaunchFailed, PolicyError, PolicyNotEnforceable, StaddleError
from ..policy import Policy
from ..policy.workspace import PLACE, compile_session
from ..view import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from ..backends.base import Backend, Enforcement
    from ..limits.holding import Held
    from ..policy.limits import Limits
    from ..policy.plan import Plan
    from ..zygote.client import Layers
    from .layering import Layering
    from .limiting import Limiting
    from .link import AgentLink, OpenedShell
    from .reach import Reach

MODES = ("overlay", "bind", "readonly")
#: Those that show a directory at another place than its own.
_MOVE = ("namespaces", "bwrap", "systemd")
_OWN_LAYER = "namespaces"
#: Those on which the agent needs no interpreter inside, or has all of the host.
_MAY_BE_OURS = ("auto", _OWN_LAYER)
_NO_INTERPRETER = ("namespaces", "native")


_USUAL: list[Policy] = []  # what a sandbox has that is not given a policy, once it was needed


class Settings(Value):
    """What a sandbox is to be."""

    workspace: str | None
    policy: Policy
    backend: str
    mode: str
    best_effort: bool
    env: Mapping[str, str]
    keep: str | None = None


class Decision(Value):
    """How it will be. `workspace` is the plan of the workspace alone, as the host sees it."""

    backend: Backend
    plan: Plan
    workspace: Plan | None
    enforced: Enforcement


class Opened(Value):
    """A sandbox that is there, with one shell in it.

    Further shells start with `environment` in `directory`; empty: as the agent was started.
    `uid` is who its processes are on the host, if that is not us. `layering` is where changes to
    its workspace go, and `workspace` makes a mount of it with other layers.
    """

    link: AgentLink
    shell: OpenedShell
    decided: Decision
    bash: str
    environment: Mapping[str, str]
    directory: str
    uid: int | None
    layering: Layering | None = None
    workspace: Callable[[Layers], int] | None = None
    reach: Reach | None = None
    limiting: Limiting | None = None


def settings(  # noqa: PLR0917 - as Sandbox takes them
    workspace: object = None,
    policy: object = None,
    backend: object = "auto",
    mode: object = "overlay",
    best_effort: object = False,
    env: object = None,
    keep: object = None,
) -> Settings:
    """The arguments of a Sandbox, checked as far as that needs no look at the host's backends."""
    from ..policy.environment import checked

    if policy is None:
        policy = _USUAL[0] if _USUAL else Policy.agent()
        _USUAL[:] = [policy]
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy is {policy!r}", why="it is not a Policy", fix="say Policy.agent()")
    if mode not in MODES:
        raise InvalidCall(f"there is no mode {mode!r}", fix=f"choose {', '.join(MODES)}")
    if not isinstance(best_effort, bool):
        raise InvalidCall(f"best_effort is {best_effort!r}", why="it is neither True nor False")
    if backend != "auto":
        backends.get(str(backend))
    name = None if keep is None else _kept_name(keep, str(mode))
    if name is not None and workspace is None:
        from .kept import workspace_of

        workspace = workspace_of(name)
    if workspace is not None:
        if not isinstance(workspace, str | os.PathLike):
            raise InvalidCall(f"workspace is {workspace!r}", why="it is not a path")
        workspace = os.path.realpath(os.path.expanduser(os.fsdecode(workspace)))
        if not os.path.isdir(workspace):
            raise InvalidCall(
                f"the workspace {workspace!r} is not a directory", fix="make it first, or leave it out"
            )
    variables = checked({} if env is None else env)
    return Settings(workspace, policy, str(backend), str(mode), best_effort, variables, name)


def _kept_name(keep: object, mode: str) -> str:
    from ..layers.kept import checked_name

    if mode != "overlay":
        raise InvalidCall(
            f"keep={keep!r} and mode={mode!r} contradict each other",
            why="only a layer of its own can be kept",
            fix="leave one of them out",
        )
    return checked_name(keep)


def decide(asked: Settings, stand_in: str | None = None) -> Decision:
    """Which backend it will be, with which plan, and what that holds. Starts nothing but probes.

    `stand_in` is the directory that is under the layers of a sandbox without a workspace.
    """
    name = asked.backend
    if stand_in is not None or (asked.mode == "overlay" and asked.workspace is not None):
        name = _with_layers(name)
    moved = name in _MOVE or (name == "auto" and sys.platform != "darwin")
    found = _decided(asked, asked.policy, name, moved=moved, stand_in=stand_in)
    if moved and found.backend.name not in _MOVE:  # the best there is shows directories where they are
        moved = False
        found = _decided(asked, asked.policy, found.backend.name, moved=False)
    alone = found.backend.name in _NO_INTERPRETER
    if not alone and not found.plan.shows(os.path.realpath(sys.executable)):
        # The agent is a program of ours for the interpreter that runs us; a grant of it must do.
        policy = asked.policy.with_read(os.path.realpath(sys.base_prefix))
        found = _decided(asked, policy, found.backend.name, moved=moved)
    if moved:
        return found
    why = f"{found.backend.name} shows every directory at its own place: the workspace is not at {PLACE}"
    gap = Gap("workspace", why, f"choose {_MOVE[0]} or {_MOVE[1]}", documented=True)
    return found.replace(enforced=found.enforced.replace(gaps=(*found.enforced.gaps, gap)))


def _decided(
    asked: Settings, policy: Policy, name: str, *, moved: bool, stand_in: str | None = None
) -> Decision:
    # What goes to a layer of its own changes nothing of the host's: there is nothing to protect there.
    access: Literal["read", "write"] = "write" if asked.mode == "bind" else "read"
    plan, workspace = compile_session(
        policy, asked.workspace, access=access, moved=moved, env=asked.env, stand_in=stand_in
    )
    held, chosen = plan, name
    holds: tuple[Held, ...] = ()
    if chosen in _MAY_BE_OURS and _limited(plan.limits) and backends.get(_OWN_LAYER).probe().usable:
        holds, gaps = _held(plan.limits, asked.mode)
        if not gaps or asked.best_effort or chosen == _OWN_LAYER:  # else another backend may do better
            # A session holds more than one command alone: there is somebody of ours in it.
            mine = {item.limit: None for item in holds if item.limit in NEED_MORE}
            held, chosen = held.replace(limits=held.limits.replace(**mine)), _OWN_LAYER
    backend, enforced = backends.choose(held, chosen, best_effort=asked.best_effort)
    if backend.name == _OWN_LAYER and holds:
        enforced = enforced.replace(limits=holds)
    return Decision(backend, plan, workspace, enforced)


def _limited(limits: Limits) -> bool:
    """Whether there is a limit on a sandbox as a whole: else nobody looks what this host can hold."""
    return any(getattr(limits, name) is not None for name in NEED_MORE)


def _held(limits: Limits, mode: str) -> tuple[tuple[Held, ...], tuple[Gap, ...]]:
    from ..limits.holding import held
    from ..limits.standing_in import usable

    return held(limits, usable(), inside=True, layer="directory" if mode == "overlay" else "none")


def open_agent(asked: Settings, layering: Layering | None = None) -> Opened:
    """A new sandbox, or the error that says why there is none. Nothing is left of one that failed.

    `layering` is where its workspace's changes begin, if not with none.
    """
    if layering is None and asked.keep is not None:
        from .kept import opened

        layering = opened(asked.keep, asked.workspace, asked.policy)
    elif (
        layering is None
        and asked.mode == "overlay"
        and (asked.workspace is not None or _keeps_layers(asked.backend))
    ):
        from .layering import Layering

        layering = Layering(asked.workspace)
    try:
        return _opened(asked, layering)
    except BaseException:
        if layering:
            layering.never_used()
        raise


def _opened(asked: Settings, layering: Layering | None) -> Opened:
    decided = decide(asked, layering.workspace if layering and layering.is_nobodys else None)
    plan = decided.plan
    bash = find_program(plan, "bash")
    if decided.backend.name == "namespaces":
        return _take(decided, bash, layering)
    from .launched import launch_agent

    link, shell, uid = launch_agent(decided.backend, plan, bash)
    return Opened(link, shell, decided, bash, {}, "", uid)


def _take(decided: Decision, bash: str, layering: Layering | None) -> Opened:
    from ..zygote import client
    from .link import AgentLink
    from .reach import Reach

    plan = decided.plan
    reach, limiting = Reach(plan.network), None
    try:
        limiting = _limiting(plan.limits, layering)
        taken = client.open_sandbox(
            plan,
            bash,
            layering.mounted() if layering else None,
            along=limiting.along() if limiting else (),
            grouped=limiting is not None and limiting.grouped,
        )
    except BaseException:
        reach.close()
        if limiting:
            limiting.close()
        raise
    if limiting:
        limiting.handed_over()

    def ended() -> None:
        reach.close()
        if limiting:
            limiting.close()
        taken.close()
        if layering:
            layering.close()

    # Nothing may write to layers that somebody else goes on with when we have let go of them.
    link = AgentLink(taken.line, ended, stop_first=layering is not None and layering.stays)
    try:
        shell = link.announced()
        reach.attach(link)
        if limiting:
            limiting.attach(link)
    except BaseException as error:
        too_little = limiting.too_little() if limiting else ""
        link.close()
        if too_little and isinstance(error, StaddleError):
            raise LaunchFailed(
                "a shell could not be started", why=too_little, fix="give limits.memory more"
            ) from error
        raise
    return Opened(
        link,
        shell,
        decided,
        bash,
        plan.environment(),
        plan.cwd,
        taken.uid,
        layering,
        taken.workspace,
        reach,
        limiting,
    )


def _limiting(limits: Limits, layering: Layering | None) -> Limiting | None:
    if not _limited(limits):
        return None
    from .limiting import Limiting

    try:
        return Limiting(limits, layering)
    except OSError as error:
        raise LaunchFailed("the limits could not be put on", why=error.strerror or str(error)) from error


def _keeps_layers(name: str) -> bool:
    """Whether a sandbox on this backend has layers without being given a directory."""
    if name != "auto":
        return name == _OWN_LAYER
    return sys.platform != "darwin" and backends.get(_OWN_LAYER).probe().usable


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
