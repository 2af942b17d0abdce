"""systemd: the command in a transient unit of the user's or the system's service manager.

    unit          plan -> the unit's properties and systemd-run's command line (pure)
    launching     plan -> what the process inside the unit does, the launch, steps and gaps

Which manager there is to talk to is in linux/systemd_manager.py.

The manager gives the unit its own network, IPC and keys, a control group and an end; our
process inside it checks that this is so and does the rest: a fresh root with only what the
plan names, its own processes, Landlock and the filter. The unit ends with the process that
stands for it outside, however that ends.

Run by root it is the system's manager, and the command runs as an id that no account has.

What it does not do, by nature: a UNIX socket that appears in a granted directory after the start can
be connected to; a name of the policy's that appears on the host after the start is not seen; the mount table
inside shows the paths of what was granted; the groups of the user stay, so that what a group
may read in a granted directory can be read.
"""

from __future__ import annotations

import os

from ...enforcement import Gap, Probe, Step
from ...errors import BackendUnavailable, LaunchFailed
from ...launch.contract import Launch
from ...linux import systemd_manager
from ...linux.userns import Obstacle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...linux.systemd_manager import Manager
    from ...policy.plan import Plan

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
        from ...mounts.from_plan import layout_of
        from .launching import gaps

        return tuple(gaps(plan, layout_of(plan), self._manager()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Everything that is set up, in order."""
        from ...mounts.from_plan import layout_of
        from .launching import steps

        return tuple(steps(plan, layout_of(plan), self._manager()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The process that starts the unit and stands for it."""
        from ...mounts.from_plan import forget, layout_of
        from .launching import launch

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
        from ...launch.running import complete
        from .. import canary

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
