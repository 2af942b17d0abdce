"""`make bench-claims`: every claim about speed, measured. Exits with 1 when one does not hold."""

from __future__ import annotations

import os
import sys

# A cache that cannot be written makes every start compile anew; measure what users have.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import environment
import foundation
import history
import layers
import limits
import network
import session
import shim
import tui


def main() -> int:
    missed = 0
    modules = (foundation, environment, session, layers, history, limits, network, shim, tui)
    for group in (group for module in modules for group in module.CLAIMS):
        print(group.__name__)
        for claim in group():
            print(f"  {claim}")
            missed += claim.ratio > claim.at_most
    print(
        f"\n{missed} of the claims did not hold in this run" if missed else "\nevery claim held in this run"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
