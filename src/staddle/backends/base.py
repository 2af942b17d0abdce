"""The contract between a plan and the backend that enforces it.

A backend answers four questions:

  probe()            can it confine anything on this host? It tries to.
  gaps(plan)         which parts of this plan, or of its own promises, can it not enforce here?
  steps(plan)        which setup steps will it take? (printed by `staddle explain`)
  prepare(plan, ..)  which command, once started, is confined or does not run?

`prepare` starts nothing. A caller that starts `Launch.argv` with exactly `Launch.env` and
`Launch.pass_fds` gets the confined command. Any failure on the way ends in a non-zero exit before the
command's first instruction.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from ..enforcement import Gap, Probe, Step
    from ..launch.contract import Launch
    from ..policy.plan import Plan
else:
    Protocol = object


class Backend(Protocol):
    """One way to confine a command."""

    name: str

    def probe(self) -> Probe:
        """Try to confine a child process. Never raises; the result has the reason and the fix."""

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The parts of `plan` that this backend cannot enforce on this host. Starts nothing."""

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Return, in order and printable, the steps that `prepare` would take."""

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The confined command. Raises instead of weakening anything."""
