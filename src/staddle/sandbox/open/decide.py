"""Decide the backend, workspace kind and plan of a sandbox, and report what they enforce.

It starts nothing but probes. Only this module decides whether namespaces are available, and whether the
workspace must be a copy.
"""

from __future__ import annotations

import os
import sys

from ... import backends
from ..._value import Value
from ...backends.description import NEED_MORE
from ...enforcement import Gap
from ...errors import PolicyNotEnforceable
from ...launch.view import find_program
from ...network.namespace.from_policy import needs_gateway
from ...observe.redaction import secrets_of
from ...paths import WORKSPACE_PATH
from ...policy import Policy
from ...policy.host_sockets import mask_host_sockets
from ...policy.workspace import compile_session, seen_at, with_copy
from .settings import APART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from ...backends.base import Backend
    from ...enforcement import EnforcedLimit, Enforcement, Probe
    from ...observe.redaction import Secrets
    from ...policy.limits import Limits
    from ...policy.plan import Plan
    from .settings import SandboxSettings

    #: Destination of changes: the host's directory or none ("direct"), or one of three kinds of workspace.
    WorkspaceKind = Literal["direct", "overlay", "persistent", "copied"]

#: Backend that mounts layers, and needs no interpreter inside.
_LAYERED = "namespaces"
_MAY_BE_LAYERED = ("auto", _LAYERED)
#: Backends that can mount a directory at another path.
_MOVE = ("namespaces", "bwrap", "systemd")
#: Backends whose agent needs no interpreter inside, or sees the whole host.
_NO_INTERPRETER = ("namespaces", "native")
#: Whether a file system supports idmapped mounts, by device.
_IDMAPPABLE: dict[int, bool] = {}
#: Successful probe for layers, by uid.
_USABLE: dict[int, Probe] = {}


class Decision(Value):
    """Decision about a sandbox. `workspace` is the plan of the workspace alone, as the host sees it.

    `is_filtered`: its network goes through a gateway. `bash` is the path of its shell inside; further shells
    start with `environment`. Both are empty except on namespaces: elsewhere the agent starts everything with
    its own environment.
    """

    backend: Backend
    plan: Plan
    workspace: Plan | None
    enforced: Enforcement
    is_filtered: bool
    bash: str
    environment: Mapping[str, str]
    #: Values that are redacted in output; None if there are none.
    secrets: Secrets | None


def workspace_kind(settings: SandboxSettings) -> WorkspaceKind:
    """Return the kind of workspace for these settings."""
    if settings.mode not in APART:
        return "direct"
    if settings.mode == "copy" and settings.workspace is not None:
        return "copied"
    if settings.keep is not None:
        return "persistent"
    if settings.workspace is None:
        if settings.backend not in _MAY_BE_LAYERED or sys.platform == "darwin" or not _translates():
            return "direct"
        return "overlay" if settings.backend == _LAYERED or _layers().usable else "direct"
    name = _backend_name(settings)
    if name not in _MAY_BE_LAYERED or not _layers().usable:
        return "copied"
    # Root's sandbox does not run as root: files that it changes must be shown with another owner.
    return "overlay" if _translates() and (os.geteuid() or _idmappable(settings.workspace)) else "copied"


def _translates() -> bool:
    """Whether this kernel can translate owners in layers, which only root needs."""
    if os.geteuid():
        return True
    from ...linux.overlay import takes_translated

    return takes_translated(os.uname().release)


def _layers() -> Probe:
    """Probe the namespaces backend: whether this host can mount layers."""
    who = os.geteuid()
    if who not in _USABLE:
        found = backends.get(_LAYERED).probe()
        if not found.usable:
            return found  # not cached: it may change
        _USABLE[who] = found
    return _USABLE[who]


def _idmappable(directory: str) -> bool:
    device = os.stat(directory).st_dev
    if device not in _IDMAPPABLE:
        from ...linux.idmaps import unused_ids_here
        from ...mounts.host import untranslatable

        _IDMAPPABLE[device] = not untranslatable(directory, unused_ids_here()[0])
    return _IDMAPPABLE[device]


def decide(
    settings: SandboxSettings,
    kind: WorkspaceKind | None = None,
    stand_in: str | None = None,
    copy: str | None = None,
) -> Decision:
    """Choose the backend and the plan, and report what they enforce.

    `kind` is the result of `workspace_kind`, if known. `stand_in` is the directory below the layers of a
    sandbox without a workspace. `copy` replaces the workspace where there are no layers.
    """
    kind = workspace_kind(settings) if kind is None else kind
    name = _backend_name(settings)
    if stand_in is not None or (kind in ("overlay", "persistent") and settings.workspace is not None):
        name = _with_layers(name)
    moved = name in _MOVE or (name == "auto" and sys.platform != "darwin")
    found = _decided(settings, settings.policy, name, moved=moved, stand_in=stand_in, copy=copy)
    if moved and found.backend.name not in _MOVE:  # the best backend shows directories at their own paths
        moved = False
        found = _decided(settings, settings.policy, found.backend.name, moved=False, copy=copy)
    alone = found.backend.name in _NO_INTERPRETER
    if not alone and not found.plan.shows(os.path.realpath(sys.executable)):
        # The agent runs in the host's interpreter, which must be readable inside.
        policy = settings.policy.with_read(os.path.realpath(sys.base_prefix))
        found = _decided(settings, policy, found.backend.name, moved=moved, copy=copy)
    if found.plan.world == "writable" and kind not in ("overlay", "persistent"):
        why = f"the {found.backend.name} backend has no layer with mode={settings.mode!r}"
        refused = backends.world_refused(why)
        if not settings.best_effort:
            raise refused
        found = _with_gap(found, refused.gaps[0])
    if kind == "copied" and settings.mode != "copy":
        found = _with_gap(found, _copy_gap(found.backend.name))
    elif kind == "direct" and settings.mode in APART:
        found = _with_gap(found, _untracked_gap(found.backend.name))
    if moved or (settings.workspace_at is not None and settings.workspace_at == settings.workspace):
        return found
    shows = f"{found.backend.name} shows every directory at its own place"
    why = f"{shows}: the workspace is not at {WORKSPACE_PATH}"
    return _with_gap(found, Gap("workspace", why, f"choose {_MOVE[0]} or {_MOVE[1]}", documented=True))


def _with_gap(found: Decision, gap: Gap) -> Decision:
    return found.replace(enforced=found.enforced.replace(gaps=(*found.enforced.gaps, gap)))


def _decided(
    settings: SandboxSettings,
    policy: Policy,
    name: str,
    *,
    moved: bool,
    stand_in: str | None = None,
    copy: str | None = None,
) -> Decision:
    # Changes in a layer do not touch the host: there is nothing to protect.
    access: Literal["read", "write"] = "write" if settings.mode == "bind" else "read"
    seen = settings.workspace if copy is None or moved else None
    plan, workspace = compile_session(
        policy,
        seen,
        access=access,
        moved=moved,
        env=settings.env,
        stand_in=stand_in,
        asks=settings.asks,
        frozen=settings.mode == "readonly",
    )
    if plan.package_cache:
        from ...packages.mirror import with_mirror

        plan = with_mirror(plan)
    if settings.workspace_at is not None and moved:
        plan = seen_at(plan, settings.workspace_at)
    if copy is not None:
        plan, workspace = with_copy(plan, copy, moved=moved), None
    # A layer shows no sockets of the host.
    plan = mask_host_sockets(plan, but=WORKSPACE_PATH if settings.mode in APART else "")
    asking = name, settings.backend, settings.mode, settings.best_effort, os.environ.get(backends.NESTED)
    if (known := plan.derived.get(asking)) is not None:
        return known  # type: ignore[no-any-return]
    is_limited = any(getattr(plan.limits, limit) is not None for limit in NEED_MORE)
    # A session has a layer for `/`, or none: see `decide`.
    planned, chosen = plan if plan.world == "root" else plan.replace(world="root"), name
    limits: tuple[EnforcedLimit, ...] = ()
    if chosen in _MAY_BE_LAYERED and is_limited and _layers().usable:
        limits, gaps = _enforced_limits(plan.limits, settings.mode)
        if not gaps or settings.best_effort or chosen == _LAYERED:  # else another backend may do better
            # A session enforces more than a single command: its agent watches.
            mine = {item.limit: None for item in limits if item.limit in NEED_MORE}
            planned, chosen = planned.replace(limits=planned.limits.replace(**mine)), _LAYERED
    backend, enforced = _chosen(planned, chosen, settings)
    if backend.name == _LAYERED and limits:
        enforced = enforced.replace(limits=limits)
    if plan.limits.defaults or backend.name == "landlock":
        enforced = _with_defaults(enforced, plan.limits, settings.mode)
    # On other backends the plan may still change.
    is_ours = backend.name == _LAYERED
    bash = find_program(plan, "bash") if is_ours else ""
    is_filtered = bool(plan.asks) or needs_gateway(plan.network)
    environment = plan.environment() if is_ours else {}
    secrets = secrets_of(plan)
    decided = Decision(backend, plan, workspace, enforced, is_filtered, bash, environment, secrets)
    plan.derived[asking] = decided
    return decided


def _chosen(plan: Plan, name: str, settings: SandboxSettings) -> tuple[Backend, Enforcement]:
    """Choose the backend of a session. On landlock the host program limits writes to our directories."""
    if plan.limits.disk is not None and settings.mode in APART and name != _LAYERED:
        without = plan.replace(limits=plan.limits.replace(disk=None))
        found = _by_gaps(without, name, settings)
        if found[0].name == "landlock":
            return found
    return _by_gaps(plan, name, settings)


def _by_gaps(plan: Plan, name: str, settings: SandboxSettings) -> tuple[Backend, Enforcement]:
    """Choose the backend `name`. Its gaps count as accepted only if the caller named it."""
    if settings.backend == "auto" and name != "auto":
        return backends.choose(plan, "auto", best_effort=settings.best_effort, only=name)
    return backends.choose(plan, name, best_effort=settings.best_effort)


def _enforced_limits(limits: Limits, mode: str) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    from ...limits import host_cgroups
    from ...limits.enforced import enforced_limits

    return enforced_limits(
        limits, host_cgroups.support(), inside=True, layer="directory" if mode in APART else "none"
    )


def _with_defaults(enforced: Enforcement, limits: Limits, mode: str) -> Enforcement:
    """Add the enforcement of limits that the policy leaves to this host, and their gaps."""
    from ...limits.cgroup_layout import CgroupSupport
    from ...limits.enforced import OF_SESSION, enforced_defaults, of_landlock, session_cgroups

    if enforced.backend == _LAYERED:
        layer: Literal["directory", "none"] = "directory" if mode in APART else "none"
        holds, gaps = enforced_defaults(limits, session_cgroups(limits), by=OF_SESSION, layer=layer)
    elif enforced.backend == "landlock":
        as_root = any(gap.protection == "root" for gap in enforced.gaps)
        holds, gaps = of_landlock(limits, "directory" if mode in APART else "none", as_root=as_root)
    else:
        holds, gaps = enforced_defaults(limits, CgroupSupport(()), by={})
    return enforced.replace(limits=(*enforced.limits, *holds), gaps=(*enforced.gaps, *gaps))


def _backend_name(settings: SandboxSettings) -> str:
    """Return the requested backend. A base needs ours: the others need an interpreter in it."""
    if settings.policy.base is None:
        return settings.backend
    if settings.backend not in _MAY_BE_LAYERED:
        raise PolicyNotEnforceable(
            f"a session on the {settings.backend} backend cannot use a base",
            why="its agent needs the host's Python inside",
            fix=f"use the {_LAYERED} backend",
        )
    return _LAYERED


def _with_layers(name: str) -> str:
    if name not in _MAY_BE_LAYERED:
        raise _no_layer(f"the {name} backend has no layer of its own to keep changes in")
    if _LAYERED not in backends.NAMES:
        raise _no_layer("this version has no backend that keeps changes in a layer")
    probe = _layers()
    if not probe.usable:
        raise _no_layer(probe.why)
    return _LAYERED


def _no_layer(why: str) -> PolicyNotEnforceable:
    gap = Gap("workspace", why, "choose mode='bind' or mode='readonly'")
    return PolicyNotEnforceable(
        "the workspace cannot be shown copy-on-write (mode='overlay')",
        why=why,
        fix=f"use the {_LAYERED} backend, or choose mode='bind' (writes through) or mode='readonly'",
        gaps=(gap,),
    )


def _untracked_gap(backend: str) -> Gap:
    """Return the gap of a sandbox without a workspace and without layers."""
    why = f"{backend} has no layers: without a workspace no change is recorded, and no snapshot can be taken"
    return Gap("layers", why, f"use the {_LAYERED} backend, or give a workspace", documented=True)


def _copy_gap(backend: str) -> Gap:
    """Return the gap of a workspace that is a copy."""
    why, fix = f"{backend} has no layers", f"use the {_LAYERED} backend"
    if backend == _LAYERED:
        why = "the file system of the workspace cannot show root's files as those of another user in layers"
        fix = "use a directory on ext4, xfs, btrfs or tmpfs and Linux 5.19 or newer, or do not be root"
    why += ": the workspace is a copy, and whatever is done with it copies"
    return Gap("layers", why, fix, documented=True)
