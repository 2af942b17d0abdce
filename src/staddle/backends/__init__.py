"""The backends: each enforces a plan, one file or folder each, behind the contract in `base`."""

from __future__ import annotations

import os
import sys

from ..enforcement import Enforcement, Gap, Probe
from ..errors import BackendUnavailable, PolicyNotEnforceable, UnknownBackend, resource_fix
from ..policy import own_places
from ..policy.environment import INSIDE
from ..policy.installation import NOTHING, installation
from .base import Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.installation import Installation
    from ..policy.plan import Plan

#: Every backend by name, strongest first: the order in which `auto` tries them.
_CLASSES = {
    "namespaces": ("namespaces", "Namespaces"),
    "bwrap": ("bwrap", "Bwrap"),
    "systemd": ("systemd", "Systemd"),
    "landlock": ("landlock", "Landlock"),
    "seatbelt": ("seatbelt", "Seatbelt"),
    "native": ("native", "Native"),
}
NAMES = tuple(_CLASSES)
_LAYERED = "namespaces"
#: If "1", every policy of this program is nested; see `choose`.
NESTED = "STADDLE_NESTED"

_made: dict[str, Backend] = {}


def get(name: str) -> Backend:
    """The backend of that name. There is one instance per process, so each is probed once."""
    if name not in _CLASSES:
        raise UnknownBackend(
            f"there is no backend {name!r}",
            why=f"staddle knows {', '.join(NAMES)}",
            fix="choose one, or auto",
        )
    if name not in _made:
        module, cls = _CLASSES[name]
        _made[name] = getattr(__import__(f"staddle.backends.{module}", fromlist=[cls]), cls)()
    return _made[name]


def begin_probe(name: str) -> None:
    """Start the probe of the backend that `name` would try first, without waiting for the result."""
    backend = get(candidates()[0] if name == "auto" else name)
    begin = getattr(backend, "begin_probe", None)
    if begin is not None:
        begin()


def doubt(name: str) -> bool:
    """True if the backend's last start failed because it cannot confine here; choose again then."""
    doubted = getattr(get(name), "doubt", None)
    return doubted is not None and doubted()


def needs_copy(plan: Plan) -> bool:
    """Whether `plan` grants writes that a Landlock command, run by root in a container, cannot make."""
    needs = getattr(get("landlock"), "needs_copy", None)
    return needs is not None and bool(needs(plan))


def candidates() -> tuple[str, ...]:
    """The names that `auto` may choose from, strongest first. Never `native`, which confines nothing."""
    return (
        ("seatbelt",)
        if sys.platform == "darwin"
        else tuple(n for n in NAMES if n not in ("native", "seatbelt"))
    )


def choose(
    plan: Plan, name: str = "auto", *, best_effort: bool = False, only: str = ""
) -> tuple[Backend, Enforcement]:
    """Choose the backend for `plan`, and report what it enforces.

    A named backend may leave the gaps that it documents; any other gap is an error. `auto` takes the
    strongest backend without a gap. If there is none and the plan is nested, `auto` takes the backend with
    the fewest gaps among those whose gaps are all documented. With `best_effort` gaps are recorded instead of
    raised, but some backend must confine. `only` names the one backend that `auto` may choose when the others
    lack a feature. Its gaps count like those of any backend: a caller who asks for `auto` has accepted none.
    """
    if plan.world == "writable" and not best_effort:
        raise world_refused("a single command has no layers")
    if plan.layers:
        only = _with_layers(name)
        name = "auto" if name == "auto" else only
    host = installation()
    is_nested = plan.nested or os.environ.get(NESTED) == "1"
    if is_nested and not plan.nested:
        plan = plan.replace(nested=True)  # backends accept some gaps only for a nested plan
    if host is not NOTHING:
        _refuse(host, plan, name, best_effort or (is_nested and name == "auto"))
    if name != "auto":
        return _named(plan, name, best_effort)
    refused: list[str] = []
    usable: list[tuple[Backend, tuple[Gap, ...]]] = []
    fixes: list[str] = []
    for candidate in (only,) if only else candidates():
        if candidate in host.backends:
            refused.append(f"{candidate}: {_BY_INSTALLATION}")
            continue
        if plan.base and candidate in _IN_PLACE:
            refused.append(f"{candidate}: it cannot use a base")
            continue
        if candidate in _NO_GUARDS and (own := _own(plan)):
            refused.append(f"{candidate}: {own}")
            continue
        backend = get(candidate)
        probe = backend.probe()
        if not probe.usable:
            refused.append(f"{candidate}: {probe.why}")
            fixes.append(probe.fix)
            continue
        gaps = backend.gaps(plan)
        if not gaps:
            why = STRONGEST
            return backend, Enforcement.of(candidate, (), f"{why} ({'; '.join(refused)})" if refused else why)
        usable.append((backend, gaps))
        refused.append(f"{candidate}: {gaps[0].why}" + (f" (and {len(gaps) - 1} more)" if gaps[1:] else ""))
    if not usable and os.environ.get(INSIDE):
        raise BackendUnavailable(
            "this program runs in a sandbox of staddle already, and cannot open another one in it",
            why="; ".join(refused),
            fix="run the command without staddle: it has the limits of the sandbox around it",
        )
    if not usable:
        raise BackendUnavailable(
            "nothing on this host can confine a command",
            why="; ".join(refused),
            fix=resource_fix("; ".join(refused), next((fix for fix in fixes if fix), "see `staddle doctor`")),
        )
    documented = [pair for pair in usable if all(gap.documented for gap in pair[1])]
    if best_effort or (is_nested and documented):
        backend, gaps = min(
            usable, key=lambda pair: (sum(not gap.documented for gap in pair[1]), len(pair[1]))
        )
        why = f"the fewest gaps of what this host has ({'; '.join(refused)})"
        return backend, Enforcement.of(backend.name, gaps, why, nested=is_nested and not best_effort)
    raise PolicyNotEnforceable(
        "no backend can enforce all of this policy",
        why="; ".join(refused),
        fix=_way_out(usable, fixes),
        gaps=usable[0][1],
    )


#: Why `auto` chose a backend.
STRONGEST = "the strongest backend that leaves no gap for this policy"


def world_refused(why: str) -> PolicyNotEnforceable:
    """The error for a policy with a writable `/` where no layer can take the writes."""
    fix = "open a Sandbox on the namespaces backend with mode='overlay', or leave world out"
    return PolicyNotEnforceable(
        "`/` cannot be written in this sandbox", why=why, fix=fix, gaps=(Gap("world", why, fix),)
    )


_BY_INSTALLATION = "the policy of this installation refuses it (/etc/staddle/policy.toml)"


def _refuse(host: Installation, plan: Plan, name: str, best_effort: bool) -> None:
    """Raise for a backend, a network or a gap that the installation refuses."""
    for refused in host.backends:
        if refused not in _CLASSES:  # a misspelt name would refuse nothing
            raise UnknownBackend(
                f"/etc/staddle/policy.toml refuses a backend {refused!r} that does not exist",
                why=f"staddle knows {', '.join(NAMES)}",
                fix="have root correct it",
            )
    if name in host.backends:
        raise BackendUnavailable(
            f"the backend {name!r} is not allowed on this host",
            why=_BY_INSTALLATION,
            fix="choose another one",
        )
    if plan.network.mode in host.networks:
        raise PolicyNotEnforceable(
            f"the network {plan.network.mode!r} is not allowed on this host",
            why=_BY_INSTALLATION,
            fix="use a list: Network.allow(...)",
        )
    if best_effort and not host.best_effort:
        raise PolicyNotEnforceable(
            "gaps cannot be accepted on this host", why=_BY_INSTALLATION, fix="leave best_effort out"
        )


def _with_layers(name: str) -> str:
    """Return the backend with layers, or raise: a plan with layers never runs directly on the host."""
    if name not in ("auto", _LAYERED):
        raise PolicyNotEnforceable(
            f"the {name} backend has no layers", fix=f"use {_LAYERED}", why="it shows directories as they are"
        )
    return _LAYERED


#: These show every directory at its own path, so they cannot show a base in place of the host's files.
_IN_PLACE = ("landlock", "seatbelt", "native")


#: These cannot protect a path below a writable one.
_NO_GUARDS = ("landlock",)


def _own(plan: Plan) -> str:
    """Reason why a backend without guards cannot run the plan; empty if it can."""
    path = next((guard.path for guard in plan.guards if guard.origin == own_places.ORIGIN), "")
    return f"{path!r} is staddle's own, and it cannot protect that below a writable directory" if path else ""


def _named(plan: Plan, name: str, best_effort: bool) -> tuple[Backend, Enforcement]:
    backend = get(name)
    if plan.base and name in _IN_PLACE:  # even with best_effort: it would run on the host's own system
        raise PolicyNotEnforceable(
            f"the {name} backend cannot use the base {plan.base!r}",
            why="it shows every directory at its own place",
            fix="use the namespaces or bwrap backend",
        )
    if name in _NO_GUARDS and (own := _own(plan)):  # even with best_effort: no weaker form of it exists
        raise PolicyNotEnforceable(
            f"the {name} backend cannot enforce this policy",
            why=own,
            fix="grant less, or use the namespaces backend",
        )
    probe: Probe = backend.probe()
    if not probe.usable:
        raise BackendUnavailable(
            f"the {name} backend cannot confine anything here", why=probe.why, fix=probe.fix
        )
    gaps = backend.gaps(plan)
    open_ = tuple(gap for gap in gaps if not gap.documented)
    if open_ and not best_effort:
        raise PolicyNotEnforceable(
            f"the {name} backend cannot enforce this policy",
            why="; ".join(gap.why for gap in open_),
            fix=next((gap.fix for gap in open_ if gap.fix), "") or _BEST_EFFORT,
            gaps=open_,
        )
    return backend, Enforcement.of(name, gaps, "chosen by name, with the limits it documents")


_BEST_EFFORT = "ask for less, or accept the gaps with best_effort (--best-effort)"


def _way_out(usable: list[tuple[Backend, tuple[Gap, ...]]], fixes: list[str]) -> str:
    by_name = [backend.name for backend, gaps in usable if all(gap.documented for gap in gaps)]
    if by_name:
        # Users can paste the last line: it works for the command line and for programs that use the library.
        first = f"{fix}; or " if (fix := next((fix for fix in fixes if fix), "")) else ""
        return (
            f"{first}accept the limits that the {by_name[0]} backend documents (--backend {by_name[0]}, or "
            f"--nested, Policy.agent(nested=True); `staddle doctor` lists them):\nexport {NESTED}=1"
        )
    # Changing a setting so that a stronger backend works is easier than changing the kernel.
    fix = next((fix for fix in fixes if "sysctl" in fix), "")
    fix = fix or next((gap.fix for _, gaps in usable for gap in gaps if gap.fix and not gap.documented), "")
    return fix or _BEST_EFFORT
