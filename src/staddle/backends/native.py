"""No confinement at all: the command runs with every right of its caller.

It exists so that a program can offer "no sandbox" as a visible choice. It is taken only by
this name, never by `auto`. What stays is tidiness, not protection: the environment is the
plan's and nothing else, and only declared descriptors are open.
"""

from __future__ import annotations

from .base import PROTECTIONS, Gap, Launch, Probe, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..policy.plan import Plan


class Native:
    """Runs the command as it is."""

    name = "native"

    def probe(self) -> Probe:
        """Usable everywhere: there is nothing to try."""
        return Probe(self.name, usable=True, why="it confines nothing")

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """Every protection, all documented: naming this backend is asking for none of them."""
        return tuple(
            Gap(
                name,
                why=f"native does not confine: {promise} is not held",
                fix="choose another backend",
                documented=True,
            )
            for name, promise in PROTECTIONS.items()
        )

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """What little happens before the command starts."""
        return (
            Step("start the command unconfined, with all rights of the caller", "native"),
            Step(f"environment: {', '.join(sorted(plan.environment())) or 'empty'}", "native"),
            Step("descriptors: standard input, output and error", "native"),
        )

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The command itself."""
        return Launch(tuple(command), plan.environment(), plan.cwd)
