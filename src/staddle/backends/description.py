"""Steps and gaps that several backends share, in the same words, for `staddle explain` and for errors.

A backend picks from these and adds its own. `who` is the backend's name in a sentence.
"""

from __future__ import annotations

from ..enforcement import Gap, Step
from . import gateways

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..mounts.from_plan import Layout
    from ..policy.plan import Plan


def view(layout: Layout, as_root: bool) -> Iterator[Step]:
    """The operations that make the view."""
    from ..mounts.host import needs_translation  # not importable on a system without mounts
    from ..mounts.operations import Bind
    from .launching import needed

    for operation in needed(layout):
        text = str(operation)
        if as_root and isinstance(operation, Bind) and not operation.again:
            translated = needs_translation(operation.outside, operation.writable)
            text += ", its owner shown as the sandbox's user" if translated else ""
        yield Step(text, operation.origin)


def become(uid: int, ours: str) -> Step:
    """The step by which root's sandbox becomes an unused id."""
    return Step(f"become uid and gid {uid}, which no account has: root's sandbox is not root", ours)


def last(plan: Plan, ours: str) -> Iterator[Step]:
    """The last steps of the command's own process, except Landlock and the filter."""
    from ..display import shown
    from .launching import rlimits

    yield Step(f"working directory {shown(plan.cwd)}", "plan")
    for variable in plan.variables:
        value = "(secret)" if variable.secret else shown(variable.value)
        yield Step(f"variable {shown(variable.name)}={value}", variable.origin)
    for name, _, most in rlimits(plan.limits):
        yield Step(f"resource limit {name}={most}", "limits" if name in ("fsize", "nofile") else ours)
    yield Step("no capability, no_new_privs", ours)


def filter_steps(profile: str) -> Iterator[Step]:
    """The system call filter `profile`, call by call, with the reason for each."""
    from ..linux.seccomp import describe

    for row in describe(profile):
        when = f" when {row.condition}" if row.condition else ""
        yield Step(f"filter {profile}: {', '.join(row.calls)}{when}: {row.answer}", row.why)


#: Limits that need control groups, or a file system with its own size.
NEED_MORE = ("memory", "cpu", "processes", "disk")
#: The first Landlock ABI that knows who made an abstract socket.
_SCOPES_SINCE = 6


def of_a_fresh_root(
    plan: Plan, layout: Layout, unprivileged_uid: int | None, scopes: Callable[[], bool]
) -> Iterator[Gap]:
    """The gaps common to all backends with a fresh root and a network namespace.

    `unprivileged_uid` is the id that root's sandbox runs as. `scopes` returns whether Landlock blocks
    abstract sockets when the network is shared.
    """
    yield from unheld(layout)
    yield from gateways.gaps(plan)
    if plan.network.mode == "open" and not scopes():
        yield Gap(
            "sockets",
            "with the network open, abstract UNIX sockets of the host can be reached on this kernel",
            "deny the network, or use Linux 6.12 or newer",
            documented=True,
        )
    if unprivileged_uid is not None:
        from ..mounts.host import unwritable_grants

        for error in unwritable_grants(layout.operations, unprivileged_uid):
            yield Gap("write", f"{error.what}: {error.why}", error.fix)


def unheld(layout: Layout) -> Iterator[Gap]:
    """Denied paths that do not exist yet and can be created inside."""
    for hidden in layout.unheld:
        yield Gap(
            "deny",
            f"{hidden.path!r} is denied and does not exist yet: what would be created there can be reached",
            "deny it in a policy that does not make it writable, or create it first",
        )


def identity(who: str, plan: Plan, *, documented: bool = False) -> Iterator[Gap]:
    """The gap of a backend that cannot set user and host names."""
    if not plan.identity.is_usual:
        yield Gap(
            "identity",
            f"{who} changes neither the user nor the host's name: the command is who started it",
            "choose namespaces or bwrap, or leave the identity out",
            documented,
        )


def scopes_sockets() -> bool:
    """Whether Landlock can block other processes' abstract sockets on this kernel."""
    from ..linux import landlock  # lazily: few plans need it

    return landlock.abi() >= _SCOPES_SINCE


def limits(who: str, plan: Plan, names: Iterable[str] = NEED_MORE) -> Iterator[Gap]:
    """The limits that `who` cannot enforce."""
    for name in names:
        if getattr(plan.limits, name) is not None:
            yield Gap(f"limits.{name}", f"{who} cannot limit {name}", f"leave limits.{name} out")
