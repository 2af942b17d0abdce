"""The specification for the process inside the unit, and the launch that brings it there."""

from __future__ import annotations

import os

from ...errors import LaunchFailed
from ...ipc import systemd_spec
from ...ipc.exec_spec import encode as encode_instructions
from ...ipc.namespace_spec import foreign
from ...ipc.status import sentence
from ...launch import helper
from ...launch.contract import Launch
from ...linux import userns
from ...mounts import rows
from .. import gateways
from ..descriptors import Descriptors
from ..exec_spec import instructions, needed
from . import unit
from .description import scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
