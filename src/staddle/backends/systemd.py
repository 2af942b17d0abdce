"""systemd: the launcher of the namespaces backend, in a transient unit of the user or system manager.

The unit is a scope: the launcher asks the manager for it, and the manager moves the launcher into it before
the launcher makes the sandbox. The manager limits memory, cpu and processes of the scope, and lists it by
name. Everything else works as on `namespaces`. The scope ends when the launcher and the sandbox have ended.

The message to the manager contains only the launcher's process number and the limits. It contains no path,
variable or argument: any user who may list units can read a unit's properties.
"""

from __future__ import annotations

import os

from .._value import Value
from ..enforcement import Gap, Probe, Step
from ..errors import BackendUnavailable, LaunchFailed
from ..inside.systemd_unit import LAUNCHER, WITNESS
from ..launch.contract import ENVIRONMENT
from ..linux import systemd_manager
from ..linux.systemd_manager import delegated_controllers
from ..linux.userns import Obstacle
from . import description as common
from . import namespaces
from .namespaces import Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..launch.contract import Launch
    from ..linux.systemd_manager import Manager
    from ..mounts.from_plan import Layout
    from ..policy.limits import Limits
    from ..policy.plan import Plan

#: The oldest version that staddle supports. Tested with 252.
OLDEST = 248


class Systemd:
    """Confines in a transient unit of systemd."""

    name = "systemd"

    def __init__(self) -> None:
        self._probe: Probe | None = None

    def probe(self) -> Probe:
        """Whether a sandbox in a unit confines its command, according to a self-test. Tried once."""
        if self._probe is None:
            self._probe = self._try()
        return self._probe

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps of `plan` on this host."""
        from ..mounts.from_plan import layout_of

        return tuple(gaps(plan, layout_of(plan), self._manager()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Steps of the setup, in order."""
        from ..mounts.from_plan import layout_of

        return tuple(steps(plan, layout_of(plan), self._manager()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The launcher, which enters a unit, makes the sandbox and passes on signals and exit status."""
        from ..mounts.from_plan import forget, layout_of

        layout = layout_of(plan)
        forget(plan)
        found = self._manager()
        return namespaces.launch(plan, layout, _who(found), command, unit(plan.limits, found))

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
        """Run the self-test in a real unit; return the problem in words, or an empty string."""
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


#: Our own processes in the unit; the manager counts them too.
_OUR_PROCESSES = 2
_LIMITS = {"memory": "memory", "cpu": "cpu", "pids": "processes"}


class Bound(Value):
    """A limit that the manager sets: the unit's properties, and the largest value of a file in its cgroup."""

    properties: tuple[tuple[str, int], ...]
    file: str
    most: int


def bounds(limits: Limits) -> dict[str, Bound]:
    """The limits that the unit's control group can enforce, by controller."""
    found = {}
    if limits.memory is not None:
        memory = (("MemoryMax", limits.memory), ("MemorySwapMax", 0))
        found["memory"] = Bound(memory, "memory.max", limits.memory)
    if limits.cpu is not None:
        percent = max(1, round(limits.cpu * 100))
        found["cpu"] = Bound((("CPUQuotaPerSecUSec", percent * 10_000),), "cpu.max", percent * 10)
    if limits.processes is not None:
        most = limits.processes + _OUR_PROCESSES
        found["pids"] = Bound((("TasksMax", most),), "pids.max", most)
    return found


def properties(limits: Limits) -> tuple[tuple[str, str, str], ...]:
    """The unit's properties: name, D-Bus type and value."""
    return (
        ("Description", "s", "a command confined by staddle"),
        ("CollectMode", "s", "inactive-or-failed"),  # remove the unit however it ends
        ("TimeoutStopUSec", "t", "5000000"),
        *((name, "t", str(value)) for bound in bounds(limits).values() for name, value in bound.properties),
    )


def unit(limits: Limits, found: Manager) -> Unit:
    """A unit with these limits, and the command that asks the manager for it."""
    name = f"staddle-{os.urandom(8).hex()}.scope"
    asked = properties(limits)
    manager = "org.freedesktop.systemd1"
    words = (
        os.path.join(os.path.dirname(found.systemd_run), "busctl"),
        *(f"--{found.scope}", "--timeout=10", "--quiet", "call"),
        *(
            manager,
            "/org/freedesktop/systemd1",
            f"{manager}.Manager",
            "StartTransientUnit",
            "ssa(sv)a(sa(sv))",
        ),
        *(name, "fail", str(1 + len(asked)), "PIDs", "au", "2", os.fsdecode(LAUNCHER), os.fsdecode(WITNESS)),
        *(word for setting in asked for word in setting),
        "0",
    )
    environment = {**ENVIRONMENT, **found.environment}
    return Unit(
        unit=os.fsencode(name),
        starter=tuple(os.fsencode(word) for word in words),
        starter_environment=tuple(os.fsencode(f"{key}={value}") for key, value in environment.items()),
        bounds=tuple((os.fsencode(bound.file), bound.most) for bound in bounds(limits).values()),
    )


def steps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Step]:
    """Every setup step, in order."""
    yield from namespaces.steps(plan, layout, _who(found), _unit_steps(plan, found))


def _unit_steps(plan: Plan, found: Manager) -> Iterator[Step]:
    yield Step(f"ask the {found.scope} manager for a transient scope, and wait to be in it", "systemd")
    for bound in bounds(plan.limits).values():
        for name, value in bound.properties:
            yield Step(f"unit property {name}={value}", "limits")


def gaps(plan: Plan, layout: Layout, found: Manager) -> Iterator[Gap]:
    """Every gap, those of the policy first."""
    yield from common.of_a_fresh_root(plan, layout, _who(found), common.scopes_sockets)
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


def _who(found: Manager) -> int | None:
    """The user id of root's sandbox; None for an ordinary user."""
    return found.unprivileged_uid if found.unprivileged_uid >= 0 else None
