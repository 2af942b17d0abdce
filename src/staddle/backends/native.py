"""No confinement at all: the command runs with every right of its caller.

It lets a program offer "no sandbox" as a visible choice. Callers must name it; `auto` never chooses it.
It still passes only the plan's environment and only declared descriptors: tidiness, not protection.
"""

from __future__ import annotations

import os

from ..enforcement import PROTECTIONS, Gap, Probe, Step
from ..launch.contract import Launch
from .description import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..policy.plan import Plan


_LIMITS = ("memory", "cpu", "processes", "file_size", "disk", "open_files")


class Native:
    """Runs the command unconfined."""

    name = "native"

    def probe(self) -> Probe:
        """Usable everywhere: there is nothing to try."""
        return Probe(self.name, usable=True, why="it confines nothing")

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """Every protection, all documented: a caller who names this backend asks for none of them."""
        promises = [
            (name, f"native does not confine: {promise} is not enforced")
            for name, promise in PROTECTIONS.items()
        ]
        asked = [
            (f"limits.{name}", f"native does not limit {name}")
            for name in _LIMITS
            if getattr(plan.limits, name) is not None
        ]
        return (
            *(Gap(name, why, "choose another backend", documented=True) for name, why in promises + asked),
            *identity("native", plan, documented=True),
        )

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """The few steps before the command starts."""
        return (
            Step("start the command unconfined, with all rights of the caller", "native"),
            Step(f"environment: {', '.join(sorted(plan.environment())) or 'empty'}", "native"),
            Step("descriptors: standard input, output and error", "native"),
        )

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The command itself. If the plan's directories exist only inside, it gets the caller's."""
        environment = plan.environment()
        if not os.path.isdir(environment.get("HOME", "/")):
            environment["HOME"] = os.path.expanduser("~")
        cwd = plan.cwd if os.path.isdir(plan.cwd) else os.getcwd()
        return Launch((_found(command[0], environment), *command[1:]), environment, cwd)


def _found(program: str, environment: dict[str, str]) -> str:
    """The program on the plan's PATH; an unknown name fails at the start."""
    if "/" in program:
        return program
    places = (os.path.join(place, program) for place in environment.get("PATH", "").split(":") if place)
    return next((path for path in places if os.path.isfile(path) and os.access(path, os.X_OK)), program)
