"""The unit: its properties, and the command line that asks for it. Pure.

No path, variable or argument of the policy or the command is in here: every user who may list the
units may read them, and systemd expands `$` in a command from the manager's environment.
All that is handed over by descriptor. Properties that mean nothing to a user's manager
(ProtectProc=, ProcSubset=, IPAddressDeny=, DevicePolicy=, ...) are not used, and that those
below were obeyed is checked inside the unit before anything runs.
"""

from __future__ import annotations

from ..._value import Value
from ..gateways import reaches_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from ...linux.systemd_manager import Manager
    from ...policy.limits import Limits
    from ...policy.plan import Plan

#: What root's helper needs until it drops them all: mounts, other ids and their maps, and giving files away.
_CAPABILITIES = (
    *("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID"),
    *("CAP_SETPCAP", "CAP_SETFCAP", "CAP_DAC_OVERRIDE", "CAP_CHOWN"),
)
#: And to make a network of the sandbox's own.
_FOR_THE_NETWORK = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
#: Our own processes in the unit, which count as any other there.
_OURS = 2


class Bound(Value):
    """A limit the manager sets: its properties, and what the control group must say then."""

    properties: tuple[str, ...]
    file: str
    most: int


def properties(plan: Plan, scope: Literal["user", "system"]) -> Iterator[str]:
    """The unit's properties, each as systemd-run takes it."""
    yield "NoNewPrivileges=yes"
    if scope == "user":
        yield "PrivateUsers=yes"  # or a user's manager may make none of the namespaces below
    else:
        more = _FOR_THE_NETWORK if reaches_out(plan) else ()
        yield f"CapabilityBoundingSet={' '.join((*_CAPABILITIES, *more))}"
    if plan.network.mode != "open":
        yield "PrivateNetwork=yes"
    yield "PrivateIPC=yes"
    yield "KeyringMode=private"
    yield "LimitCORE=1"  # of ours: it has the command's environment in memory
    yield "KillMode=mixed"  # who stops the unit signals us first, and we everybody
    yield "TimeoutStopSec=5"
    for bound in bounds(plan.limits).values():
        yield from bound.properties


def namespaces(plan: Plan, scope: Literal["user", "system"]) -> tuple[str, ...]:
    """The namespaces that the unit must have to itself, by their names in /proc."""
    own = ["ipc"]
    if plan.network.mode != "open":
        own.append("net")
    if scope == "user":
        own.append("user")
    return tuple(own)


def bounds(limits: Limits) -> dict[str, Bound]:
    """The limits that control groups can hold, by the name of the controller."""
    found = {}
    if limits.memory is not None:
        found["memory"] = Bound(
            (f"MemoryMax={limits.memory}", "MemorySwapMax=0"), "memory.max", limits.memory
        )
    if limits.cpu is not None:
        percent = max(1, round(limits.cpu * 100))
        found["cpu"] = Bound((f"CPUQuota={percent}%",), "cpu.max", percent * 10)
    if limits.processes is not None:
        most = limits.processes + _OURS
        found["pids"] = Bound((f"TasksMax={most}",), "pids.max", most)
    return found


def command_line(
    found: Manager, name: str, settings: Sequence[str], command: Sequence[str]
) -> tuple[str, ...]:
    """systemd-run for a unit `name` that runs `command` and is waited for."""
    return (
        found.systemd_run,
        *(("--user",) if found.scope == "user" else ("--system",)),
        *("--pipe", "--wait", "--collect", "--quiet", "--no-ask-password"),
        *(f"--unit={name}", "--description=a command confined by staddle", "--working-directory=/"),
        *(f"--property={setting}" for setting in settings),
        "--",
        *(escaped(word) for word in command),
    )


def escaped(word: str) -> str:
    """A word of a unit's command that stays as it is: systemd expands `$` with the manager's variables."""
    return word.replace("$", "$$")
