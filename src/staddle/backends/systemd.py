"""systemd: the command in a transient unit of the user's or the system's service manager.

Which manager there is to talk to is in linux/systemd_manager.py.

The manager gives the unit its own network, IPC and keys, a control group and an end; our
process inside it checks that this is so and does the rest: a fresh root with only what the
plan names, its own processes, Landlock and the filter. The unit ends with the process that
stands for it outside, however that ends.

No path, variable or argument of the policy or the command is in the unit's properties or on systemd-run's
command line: every user who may list the units may read them, and systemd expands `$` in a command from the
manager's environment. All that is handed over by descriptor. Properties that mean nothing to a user's manager
(ProtectProc=, ProcSubset=, IPAddressDeny=, DevicePolicy=, ...) are not used, and that those
below were obeyed is checked inside the unit before anything runs.

Run by root it is the system's manager, and the command runs as an id that no account has.

What it does not do, by nature: a UNIX socket that appears in a granted directory after the start can
be connected to; a name of the policy's that appears on the host after the start is not seen; the mount table
inside shows the paths of what was granted; the groups of the user stay, so that what a group
may read in a granted directory can be read.
"""

from __future__ import annotations

import os

from .._value import Value
from ..display import shown
from ..enforcement import Gap, Probe, Step
from ..errors import BackendUnavailable, LaunchFailed
from ..ipc import systemd_spec
from ..ipc.exec_spec import encode as encode_instructions
from ..ipc.namespace_spec import foreign
from ..ipc.status import sentence
from ..launch.contract import ENVIRONMENT, Launch, helper_command
from ..linux import landlock, systemd_manager, userns
from ..linux.systemd_manager import delegated_controllers
from ..linux.userns import Obstacle
from ..mounts.operations import encode_operations
from . import description as common
from . import gateways
from .description import become, filter_steps, last, view
from .gateways import reaches_out
from .launching import Descriptors, filter_profile, instructions, needed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from ..linux.systemd_manager import Manager
    from ..mounts.from_plan import Layout
    from ..policy.limits import Limits
    from ..policy.plan import Plan

#: The first version with everything that is used here (PrivateIPC=). Run with 252.
OLDEST = 248


class Systemd:
    """Confines in a transient unit of systemd."""

    name = "systemd"

    def __init__(self) -> None:
        self._probe: Probe | None = None

    def probe(self) -> Probe:
        """Whether a unit of ours confines as it must: a harmless command in it tells. Tried once."""
        if self._probe is None:
            self._probe = self._try()
        return self._probe

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps of `plan` here."""
        from ..mounts.from_plan import layout_of

        return tuple(gaps(plan, layout_of(plan), self._manager()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Steps of the setup, in order."""
        from ..mounts.from_plan import layout_of

        return tuple(steps(plan, layout_of(plan), self._manager()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The process that starts the unit and stands for it."""
        from ..mounts.from_plan import forget, layout_of

        layout = layout_of(plan)
        forget(plan)
        return launch(plan, layout, self._manager(), command)

    def _manager(self) -> Manager:
        found = systemd_manager.find()
        if isinstance(found, Obstacle):
            raise BackendUnavailable("systemd cannot confine anything here", why=found.why, fix=found.fix)
        return found

    def _try(self) -> Probe:
        found = systemd_manager.find()
        if isinstance(found, Obstacle):
            return self._unusable(found)
        version = systemd_manager.version(found.systemd_run)
        if version < OLDEST:
            old = Obstacle(f"systemd {version} is too old: {OLDEST} is needed", "update the system")
            return self._unusable(old, str(version))
        problem = self._canary()
        if problem:
            return self._unusable(systemd_manager.cause(problem, found), str(version))
        return Probe(self.name, usable=True, version=str(version))

    def _canary(self) -> str:
        """Run the self-test in a real unit; the problem in words, empty when all is well."""
        from ..launch.running import complete
        from . import canary

        nonce = os.urandom(8).hex()
        plan = canary.plan(nonce)
        try:
            done = complete(
                self.prepare(plan, canary.command()), plan.limits, capture_output=True, timeout=30
            )
        except LaunchFailed as error:
            return error.why or error.what
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        wrong = canary.wrong(done.stdout, nonce)
        return f"its self-test ran, but with {wrong}" if wrong else ""

    def _unusable(self, obstacle: Obstacle, version: str = "") -> Probe:
        return Probe(self.name, usable=False, why=obstacle.why, fix=obstacle.fix, version=version)


#: What root's helper needs until it drops them all: mounts, other ids and their maps, and giving files away.
_CAPABILITIES = (
    *("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID"),
    *("CAP_SETPCAP", "CAP_SETFCAP", "CAP_DAC_OVERRIDE", "CAP_CHOWN"),
)
#: And to make a network of the sandbox's own.
_FOR_THE_NETWORK = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
#: Our own processes in the unit, which count as any other there.
_OUR_PROCESSES = 2


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
        most = limits.processes + _OUR_PROCESSES
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


def launch(plan: Plan, layout: Layout, found: Manager, command: Sequence[str]) -> Launch:
    """The client, ready to be started once."""
    give = Descriptors()
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        status = give.keep(write)
        gateway_log, ends = gateways.open_socket(plan, give, command, copies=True)
        asked = spec(plan, layout, found, command, status=status, gateway=ends)
        file = give.holding(systemd_spec.encode(asked))
        return Launch(
            argv=helper_command("systemd-client", str(file)),
            env=dict(ENVIRONMENT),
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
    starter = command_line(found, name, tuple(properties(plan, found.scope)), helper_command("systemd-unit"))
    environment = {**ENVIRONMENT, **found.environment}
    try:
        encoded = tuple(word.encode() for word in starter)
    except UnicodeEncodeError:
        raise LaunchFailed(
            "systemd cannot start the helper",
            why=f"{starter[-5]!r} or {__file__!r} is not UTF-8, and its bus carries nothing else",
            fix="install them elsewhere",
        ) from None
    who = plan.identity
    return systemd_spec.SystemdSpec(
        starter=encoded,
        starter_environment=tuple(os.fsencode(f"{key}={value}") for key, value in environment.items()),
        status=status,
        launcher=os.getpid(),
        view=encode_operations(needed(layout)),
        # The manager makes those of the network and of IPC. A network with more than a loopback is
        # made by us, in that one: over the manager's a user's unit has no right.
        namespaces=userns.CLONE_NEWUTS | userns.CLONE_NEWCGROUP | (userns.CLONE_NEWNET if gateway else 0),
        uid=who.uid,
        gid=who.gid,
        host=os.fsencode(who.host),
        unprivileged_uid=found.unprivileged_uid,
        foreign=foreign(namespaces(plan, found.scope)),
        bounds=tuple((os.fsencode(bound.file), bound.most) for bound in bounds(plan.limits).values()),
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
    for setting in properties(plan, found.scope):
        yield Step(
            f"unit property {setting}", "limits" if setting.split("=")[0] in _LIMIT_PROPERTIES else _OURS
        )
    yield Step("inside the unit: verify the properties, then make pid, mount and host name namespaces", _OURS)
    yield from gateways.reached(plan)
    yield from view(layout, found.unprivileged_uid >= 0)
    yield Step("detach the old root", _OURS)
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
