"""The contract between a plan and whatever enforces it.

A backend answers four questions and does one thing:

    probe()            can it confine anything on this host, by really trying?
    gaps(plan)         what of this plan, or of its own promises, can it not hold here?
    steps(plan)        what will it do, line by line? (printed by `staddle explain`)
    prepare(plan, ..)  the command that, once started, is confined or does not run

`prepare` starts nothing. A caller that starts `Launch.argv` with exactly `Launch.env` and
`Launch.pass_fds` gets the confined command; any failure on the way ends in a non-zero
exit before the command's first instruction.
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
        """Try it in a child process. Never raises; the answer says why not and how to fix it."""

    def gaps(self, plan: Plan) -> tuple[Gap, ...]:
        """The gaps: what this backend cannot hold of `plan` on this host. Starts nothing."""

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        """Everything `prepare` would set up, in order, printable."""

    def prepare(self, plan: Plan, command: Sequence[str]) -> Launch:
        """The confined command. Raises rather than weaken anything."""
