"""What the process inside the unit is told to do, and the launch that brings it there."""

from __future__ import annotations

import os

from ...errors import LaunchFailed
from ...helper import starting, unit_orders
from ...helper.instructions import Instructions
from ...helper.instructions import encode as encode_instructions
from ...helper.status import sentence
from ...layout import rows
from ...linux import landlock, process
from ...linux.seccomp import program
from ..base import Launch
from ..descriptors import Descriptors
from ..filters import filter_profile
from . import unit
from .shortfalls import scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...layout.from_plan import Layout
    from ...layout.operations import Operation
    from ...policy.limits import Limits
    from ...policy.plan import Plan
    from .manager import Manager


def launch(plan: Plan, layout: Layout, found: Manager, command: Sequence[str]) -> Launch:
    """The client, ready to be started once."""
    give = Descriptors()
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        told = give.keep(write)
        file = give.holding(unit_orders.encode(orders(plan, layout, found, command, status=told)))
        return Launch(
            argv=_helper("systemd-client", str(file)),
            env=dict(starting.ENVIRONMENT),
            cwd="/",
            pass_fds=give.all(),
            status=read,
            failure=sentence,
            relays=True,
            close=give.close,
            uid=found.stranger if found.stranger >= 0 else None,
        )
    except BaseException:
        give.close()
        os.close(read)
        raise


def orders(
    plan: Plan, layout: Layout, found: Manager, command: Sequence[str], *, status: int
) -> unit_orders.Orders:
    """Everything for both ends of the line."""
    name = f"staddle-{os.urandom(8).hex()}"
    starter = unit.command_line(
        found, name, tuple(unit.properties(plan, found.scope)), _helper("systemd-unit")
    )
    environment = {**starting.ENVIRONMENT, **found.environment}
    try:
        encoded = tuple(word.encode() for word in starter)
    except UnicodeEncodeError:
        raise LaunchFailed(
            "systemd cannot start the helper",
            why=f"{_helper('')[0]!r} or {starting.__file__!r} is not UTF-8, and its bus carries nothing else",
            fix="install them elsewhere",
        ) from None
    who = plan.identity
    return unit_orders.Orders(
        starter=encoded,
        starter_environment=tuple(os.fsencode(f"{key}={value}") for key, value in environment.items()),
        status=status,
        launcher=os.getpid(),
        view=rows.encoded(needed(layout)),
        uid=who.uid,
        gid=who.gid,
        host=os.fsencode(who.host),
        stranger=found.stranger,
        foreign=tuple(
            (os.fsencode(kind), os.stat(f"/proc/self/ns/{kind}").st_ino)
            for kind in unit.namespaces(plan, found.scope)
        ),
        bounds=tuple((os.fsencode(bound.file), bound.most) for bound in unit.bounds(plan.limits).values()),
        command=encode_instructions(instructions(plan, command)),
    )


def instructions(plan: Plan, command: Sequence[str]) -> Instructions:
    """What the command's own process does last: limits, Landlock, the filter, exec."""
    return Instructions(
        argv=tuple(os.fsencode(word) for word in command),
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in plan.environment().items()),
        directory=os.fsencode(plan.cwd),
        rlimits=tuple((resource, most, most) for _, resource, most in rlimits(plan.limits)),
        # Nothing outside can be named from inside; these hold where the network is shared.
        scoped=landlock.bits(scopes(), "scope"),
        filter=program(filter_profile(plan)),
    )


def rlimits(limits: Limits) -> Iterator[tuple[str, int, int]]:
    """Name, number and value of every resource limit: those of any sandbox, then the policy's."""
    # One byte of core is the only value that also stops a core handler, which the kernel runs as
    # root on the host; nothing real-time, no higher priority, little pinned memory.
    yield "core", process.RLIMIT_CORE, 1
    yield "rtprio", process.RLIMIT_RTPRIO, 0
    yield "nice", process.RLIMIT_NICE, 0
    yield "memlock", process.RLIMIT_MEMLOCK, 65536
    if limits.file_size is not None:
        yield "fsize", process.RLIMIT_FSIZE, limits.file_size
    if limits.open_files is not None:
        yield "nofile", process.RLIMIT_NOFILE, limits.open_files


def needed(layout: Layout) -> list[Operation]:
    """The operations for a unit: our /proc shows its first process to nobody, there is nothing to hide."""
    return [operation for operation in layout.operations if operation.path != "/proc/1"]


def _helper(role: str, *words: str) -> tuple[str, ...]:
    """Our helper program in another role than its usual one."""
    *interpreter, _, _ = starting.command("")
    return (*interpreter, role, *words)
