"""Namespaces of our own: a fresh root with only what the plan names, made by our helper.

    launching     plan -> what the helper makes around the command, its launch, steps and gaps

No program but the interpreter is needed, and no right: an ordinary user gets a user namespace,
and root becomes an id that no account has. The helper does every step itself and starts nothing
when one fails.

What it does not do, by nature: a UNIX socket that appears in a granted directory after the start can
be connected to, read-only or not; a name of the policy's that appears on the host after the start is
not seen; the mount table inside shows the paths of what was granted; the groups of the user stay, so
that what a group may read in a granted directory can be read.
"""

from __future__ import annotations

import _thread
import os

from ...enforcement import Probe
from ...errors import BackendUnavailable, StaddleError
from ...linux.idmaps import unprivileged_uid
from ...linux.userns import Obstacle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...enforcement import Gap, Step
    from ...launch.contract import Launch
    from ...policy.plan import Plan

#: What was found out, by who asked. Per process.
_known: dict[int, Probe] = {}
_probing = _thread.allocate_lock()


class Namespaces:
    """Confines in namespaces that our own helper makes."""

    name = "namespaces"

    # The contract.

    def begin_probe(self) -> None:
        """Let the start of the command tell: it looks around before it starts anything, and says if it fails.

        For our command line, which asks `doubt` then.
        """
        who = os.geteuid()
        found = unprivileged_uid()
        with _probing:
            if who not in _known:
                _known[who] = self._unusable(found) if isinstance(found, Obstacle) else self._to_be_seen()

    def probe(self) -> Probe:
        """Whether a real sandbox confines as it must: a harmless command in it tells. Tried once."""
        who = os.geteuid()
        with _probing:  # a second caller waits for the first one's answer
            if who not in _known:
                _known[who] = self._try()
            return _known[who]

    def doubt(self) -> bool:
        """A start has failed: whether that is because nothing can be confined here, now that it is tried."""
        who = os.geteuid()
        with _probing:
            if _known.get(who) == self._to_be_seen():
                _known[who] = self._try()
                return not _known[who].usable
            return False

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps of `plan` here."""
        from ...mounts.from_plan import layout_of
        from .launching import gaps

        return tuple(gaps(plan, layout_of(plan), _who()))

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Everything that is set up, in order."""
        from ...mounts.from_plan import layout_of
        from .launching import steps

        return tuple(steps(plan, layout_of(plan), _who()))

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The helper that makes the sandbox and stands for the command."""
        from ...mounts.from_plan import forget, layout_of
        from .launching import launch

        layout = layout_of(plan)
        forget(plan)
        return launch(plan, layout, _who(), command)

    # How.

    def _try(self) -> Probe:
        found = unprivileged_uid()
        if isinstance(found, Obstacle):
            return self._unusable(found)
        from ...mounts.from_plan import lay_out
        from ...mounts.host import Host
        from .. import canary
        from .launching import launch

        nonce = os.urandom(8).hex()
        plan = canary.plan(nonce)
        try:
            started = canary.SelfTest(launch(plan, lay_out(plan, Host()), found, canary.command()), nonce)
        except (OSError, StaddleError) as error:
            return self._unusable(Obstacle(f"its self-test could not be started: {error}", ""))
        problem, message = started.outcome()
        return self._judged(problem, started.not_started or message)

    def _to_be_seen(self) -> Probe:
        return Probe(self.name, usable=True, why="the start will tell")

    def _judged(self, problem: str, message: str) -> Probe:
        if not problem:
            return Probe(self.name, usable=True)
        if problem != "the command did not run":
            return self._unusable(
                Obstacle(f"its self-test ran, but with {problem}", "please report this, it is a bug")
            )
        from ...linux.userns import observe, obstacle

        in_the_way = obstacle(observe(_who()))
        said = Obstacle(f"its self-test failed: {message or 'without a word'}", "see `staddle doctor`")
        return self._unusable(in_the_way or said)

    def _unusable(self, obstacle: Obstacle) -> Probe:
        return Probe(self.name, usable=False, why=obstacle.why, fix=obstacle.fix)


def _who() -> int | None:
    """The id of root's sandbox; None for an ordinary user."""
    found = unprivileged_uid()
    if isinstance(found, Obstacle):
        raise BackendUnavailable("namespaces cannot confine anything here", why=found.why, fix=found.fix)
    return found
