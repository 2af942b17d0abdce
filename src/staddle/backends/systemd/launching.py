"""The specification for the process inside the unit, its launch, its steps in words, and the gaps."""

from __future__ import annotations

import os

from ...display import shown
from ...enforcement import Gap, Step
from ...errors import LaunchFailed
from ...ipc import systemd_spec
from ...ipc.exec_spec import encode as encode_instructions
from ...ipc.namespace_spec import foreign
from ...ipc.status import sentence
from ...launch import helper
from ...launch.contract import Launch
from ...linux import landlock, userns
from ...linux.systemd_manager import delegated_controllers
from ...mounts import rows
from .. import description as common
from .. import gateways
from ..description import become, filter_steps, last, view
from ..launching import Descriptors, filter_profile, instructions, needed
from . import unit
from .unit import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...linux.systemd_manager import Manager
    from ...mounts.from_plan import Layout
    from ...policy.plan import Plan


def launch(plan: Plan, layout: Layout, found: Manager, command: Sequence[str]) -> Launch:
    """The client, ready to be started once."""
    give = Descriptors()
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        status = give.keep(write)
        gateway_log, ends = gateways.open_socket(plan, give, command)
        asked = spec(plan, layout, found, command, status=status, gateway=ends)
        file = give.holding(systemd_spec.encode(asked))
        return Launch(
            argv=helper.command("systemd-client", str(file)),
            env=dict(helper.ENVIRONMENT),
            cwd="/",
            pass_fds=give.all(),
            status=read,
            failure=sentence,
            relays=True,
            close=give.close,
            uid=found.unprivileged_uid if found.unprivileged_uid >= 0 else None,
            gateway_log=gateway_log,
        )
    except BaseException:
        give.close()
        os.close(read)
        raise


def spec(
    plan: Plan,
    layout: Layout,
    found: Manager,
    command: Sequence[str],
    *,
    status: int,
    gateway: tuple[int, ...] = (),
) -> systemd_spec.SystemdSpec:
    """The specification for both ends of the socket."""
    name = f"staddle-{os.urandom(8).hex()}"
    starter = unit.command_line(
        found, name, tuple(unit.properties(plan, found.scope)), helper.command("systemd-unit")
    )
    environment = {**helper.ENVIRONMENT, **found.environment}
    try:
        encoded = tuple(word.encode() for word in starter)
    except UnicodeEncodeError:
        raise LaunchFailed(
            "systemd cannot start the helper",
            why=f"{starter[-5]!r} or {helper.__file__!r} is not UTF-8, and its bus carries nothing else",
            fix="install them elsewhere",
        ) from None
    who = plan.identity
    return systemd_spec.SystemdSpec(
        starter=encoded,
        starter_environment=tuple(os.fsencode(f"{key}={value}") for key, value in environment.items()),
        status=status,
        launcher=os.getpid(),
        view=rows.encoded(needed(layout)),
        # The manager makes those of the network and of IPC. A network with more than a loopback is
        # made by us, in that one: over the manager's a user's unit has no right.
        namespaces=userns.CLONE_NEWUTS | userns.CLONE_NEWCGROUP | (userns.CLONE_NEWNET if gateway else 0),
        uid=who.uid,
        gid=who.gid,
        host=os.fsencode(who.host),
        unprivileged_uid=found.unprivileged_uid,
        foreign=foreign(unit.namespaces(plan, found.scope)),
        bounds=tuple((os.fsencode(bound.file), bound.most) for bound in unit.bounds(plan.limits).values()),
        command=encode_instructions(instructions(plan, command, scopes())),
        network=gateways.rows(plan) if gateway else (),
        gateway=gateway,
        cgroup_fds=(),
    )


_OURS = "systemd"
_LIMIT_PROPERTIES = {"MemoryMax", "MemorySwapMax", "CPUQuota", "TasksMax"}


def steps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Step]:
    """Each thing that is set up, in the order in which it is."""
    yield from gateways.started(_OURS, plan)
    yield Step(f"ask the {found.scope} manager for a transient unit, with {shown(found.systemd_run)}", _OURS)
    for setting in unit.properties(plan, found.scope):
        yield Step(
            f"unit property {setting}", "limits" if setting.split("=")[0] in _LIMIT_PROPERTIES else _OURS
        )
    yield Step(
        "inside the unit: see that the properties hold, then make pid, mount and host name namespaces", _OURS
    )
    yield from gateways.reached(plan)
    yield from view(layout, found.unprivileged_uid >= 0)
    yield Step("leave the old root for good", _OURS)
    if found.unprivileged_uid >= 0:
        yield become(found.unprivileged_uid, _OURS)
    yield Step(
        f"be uid {plan.identity.uid} and gid {plan.identity.gid} in a user namespace of its own", _OURS
    )
    yield from last(plan, _OURS)
    if scopes():
        yield Step(f"Landlock keeps within the sandbox: {', '.join(sorted(scopes()))}", _OURS)
    yield from filter_steps(filter_profile(plan))


_LIMITS = {"memory": "memory", "cpu": "cpu", "pids": "processes"}


def gaps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    unprivileged_uid = found.unprivileged_uid if found.unprivileged_uid >= 0 else None
    yield from common.of_a_fresh_root(plan, layout, unprivileged_uid, common.scopes_sockets)
    yield from _limits(plan, found)


def scopes() -> frozenset[str]:
    """Landlock's scopes in the sandbox here."""
    return landlock.weaken(landlock.SCOPES, landlock.abi())[0]


def _limits(plan: Plan, found: Manager) -> Iterator[Gap]:
    asked = bounds(plan.limits)
    missing = asked.keys() - delegated_controllers(found.scope) if asked else ()
    for controller in asked:
        if controller in missing:
            yield Gap(
                f"limits.{_LIMITS[controller]}",
                f"the {found.scope} manager has no {controller} controller to limit it with",
                "delegate it (Delegate=yes for user@.service, on the unified hierarchy), or leave "
                f"limits.{_LIMITS[controller]} out",
            )
    yield from common.limits("systemd", plan, ("disk",))
