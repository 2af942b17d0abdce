"""The workspace of a session: one directory of the host, visible at /workspace.

It is compiled alone, with the same denies, and then moved: paths that are denied or protected on the host are
denied or protected inside.
"""

from __future__ import annotations

import os
import time

from ..display import shown
from ..errors import PolicyError
from ..linux.fileio import current_directory
from ..paths import ALSO_AT, WORKSPACE_PATH, covers
from .base import ORIGIN
from .compiler import asking, compile, compile_directory
from .environment import Environment
from .plan import COPY, Grant, Link, Scratch
from .root_scripts import with_sudo
from .tools import VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal, TypeVar

    from .plan import Guard, Hidden, Plan, Text
    from .policy import Policy

    Located = TypeVar("Located", Grant, Guard, Hidden, Link, Scratch)

#: Default size of a workspace without a directory on the host.
_SIZE = 1 << 30
#: A program that opens many sandboxes at once reuses plans: for this many seconds, and at most this many.
_FRESH, _MOST_RECENT = 1.0, 32
_recent: dict[object, tuple[float, tuple[Plan, Plan | None]]] = {}


def compile_session(
    policy: Policy,
    workspace: str | None,
    *,
    access: Literal["read", "write"],
    moved: bool = True,
    env: Mapping[str, str] | None = None,
    stand_in: str | None = None,
    asks: int = 0,
    frozen: bool = False,
) -> tuple[Plan, Plan | None]:
    """Return the plan of a session, and the plan of its workspace alone, with host paths.

    Without a workspace, the session has an empty directory that is deleted with it, or `stand_in`, an empty
    directory of staddle below layers. `moved` tells whether the directory can be shown at another path;
    otherwise it stays at its own, and the session starts there. `frozen`: nothing in it can be changed, not
    even in a layer. If nothing is hidden or guarded, the plan is cached for a second, because compiling takes
    as long as making the sandbox.
    """
    here = os.environ.get("HOME"), current_directory(), _passed(policy)
    key = (policy, workspace, access, moved, Environment(env or {}), here, stand_in, asks, frozen)
    made = _recent.get(key)
    if made is not None and time.monotonic() - made[0] <= _FRESH:
        return made[1]
    plan, alone = _compile(
        policy, workspace, access=access, moved=moved, env=env, stand_in=stand_in, frozen=frozen
    )
    if moved:
        plan = with_sudo(plan)
    plans = (asking(plan, asks), alone)
    # Hidden and guarded paths depend on the current content of the granted directories.
    if not any(plan and (plan.hidden or plan.guards) for plan in plans):
        while len(_recent) >= _MOST_RECENT:
            _recent.pop(next(iter(_recent), key), None)
        _recent[key] = (time.monotonic(), plans)
    return plans


def _passed(policy: Policy) -> frozenset[tuple[str, str]]:
    """Return the variables of this process that a plan may depend on."""
    if policy.environment == "inherit":
        return frozenset(os.environ.items())
    names = (*policy.pass_env, *(VARIABLES if policy.toolchains else ()))
    return frozenset((name, os.environ.get(name, "")) for name in names)


def seen_at(plan: Plan, path: str) -> Plan:
    """Return the plan with the workspace at another path as well, in which the session starts.

    The fork server mounts it there; other backends make a link. Files of a base at that path are hidden.
    """

    def is_hidden(entry: Grant | Link | Text) -> bool:
        return entry.origin == ORIGIN and covers(path, entry.path)

    grants = tuple(grant for grant in plan.grants if not is_hidden(grant))
    for grant in grants:
        if covers(grant.path, path) or covers(path, grant.path):
            why = f"{shown(grant.path)} is shown from outside there ({grant.origin})"
            raise PolicyError(f"workspace_at is {path!r}", why=why, fix="choose another path")
    links = (link for link in plan.links if not is_hidden(link))
    texts = tuple(text for text in plan.texts if not is_hidden(text))
    links = (each for each in links if each.path != path)  # of a virtual environment in the workspace
    link = Link(path, WORKSPACE_PATH, ALSO_AT)
    return plan.replace(grants=grants, links=_by_path((*links, link)), texts=texts, cwd=path)


def with_copy(plan: Plan, copy: str, *, moved: bool) -> Plan:
    """Return the plan with a copy in place of the workspace. Nothing in the copy needs protection."""
    place = WORKSPACE_PATH if moved else copy
    ours = Grant(place, "write", True, COPY, copy if moved else "")
    grants = [grant for grant in plan.grants if not covers(place, grant.path)]
    return plan.replace(
        grants=tuple(sorted((*grants, ours), key=lambda grant: grant.path)),
        hidden=tuple(item for item in plan.hidden if not covers(place, item.path)),
        guards=tuple(item for item in plan.guards if not covers(place, item.path)),
        cwd=place,
    )


def _compile(
    policy: Policy,
    workspace: str | None,
    *,
    access: Literal["read", "write"],
    moved: bool,
    env: Mapping[str, str] | None,
    stand_in: str | None,
    frozen: bool,
) -> tuple[Plan, Plan | None]:
    if workspace is None:
        plan = compile(policy, cwd="/", base=current_directory(), env=env)
        if not moved:
            return plan.replace(cwd=plan.identity.home), None
        _refuse_taken(plan)
        if stand_in is not None:
            ours = Grant(WORKSPACE_PATH, "read", True, "workspace", stand_in)
            return plan.replace(cwd=WORKSPACE_PATH, grants=_by_path((*plan.grants, ours))), None
        empty = Scratch(WORKSPACE_PATH, 0o755, _SIZE, "workspace")
        return plan.replace(cwd=WORKSPACE_PATH, scratch=_by_path((*plan.scratch, empty))), None
    if not moved:
        granted = policy.with_write(workspace) if access == "write" else policy.with_read(workspace)
        plan = compile(granted, cwd=workspace, base=current_directory(), env=env)
        return plan, _alone(policy, workspace, access)
    plan = compile(policy, cwd="/", base=current_directory(), env=env, workspace=workspace, frozen=frozen)
    alone = _alone(policy, workspace, access)
    _refuse_taken(plan)
    return _joined(plan, alone), alone


def _alone(policy: Policy, workspace: str, access: Literal["read", "write"]) -> Plan:
    alone = compile_directory(policy, workspace, access, base=current_directory())
    if not alone.grants or not alone.grants[0].directory:
        kind = "is not a directory" if alone.grants else "is denied by the policy"
        raise PolicyError(
            f"the workspace {workspace!r} {kind}",
            fix="name another directory, or deny less",
            why="a sandbox works in a directory that it can see",
        )
    return alone


def _joined(plan: Plan, alone: Plan) -> Plan:
    (workspace,) = alone.grants
    root = workspace.path

    def inside(path: str) -> str:
        return WORKSPACE_PATH + path[len(root) :].rstrip("/")

    grant = workspace.replace(path=WORKSPACE_PATH, source=root, origin="workspace")
    return plan.replace(
        grants=_by_path((*plan.grants, grant)),
        hidden=_by_path((*plan.hidden, *_moved(alone.hidden, inside))),
        guards=_by_path((*plan.guards, *_moved(alone.guards, inside))),
        cwd=WORKSPACE_PATH,
    )


def _moved(items: tuple[Located, ...], inside: Callable[[str], str]) -> list[Located]:
    return [item.replace(path=inside(item.path)) for item in items]


def _by_path(items: tuple[Located, ...]) -> tuple[Located, ...]:
    return tuple(sorted(items, key=lambda item: item.path))


def _refuse_taken(plan: Plan) -> None:
    taken = [grant for grant in plan.grants if covers(WORKSPACE_PATH, grant.path)]
    if taken:
        raise PolicyError(
            f"the policy grants {taken[0].path!r}",
            why=f"the session's workspace is seen at {WORKSPACE_PATH}",
            fix="give that directory as the workspace, or grant less",
        )
