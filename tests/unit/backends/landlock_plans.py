"""Plans by hand, so that nothing depends on what the compiler makes of this host."""

from __future__ import annotations

from typing import Any

from staddle.backends.landlock.probe import Findings
from staddle.enforcement import Probe
from staddle.policy import Limits
from staddle.policy.plan import Plan, Scratch, Variable
from tests.unit.mounts import plans

EMPTY = plans.plan(
    scratch=(
        Scratch("/dev/shm", 0o1777, 1 << 20, "private"),
        Scratch("/home/user", 0o700, 1 << 20, "private home"),
        Scratch("/tmp", 0o1777, 1 << 20, "private"),
        Scratch("/var/tmp", 0o1777, 1 << 20, "private"),
    ),
    variables=(
        Variable("HOME", "/home/user", "default"),
        Variable("PATH", "/home/user/bin:/usr/bin", "default"),
        Variable("TMPDIR", "/tmp", "default"),
    ),
    limits=Limits(),
    cwd="/home/user",
)


def plan(**fields: Any) -> Plan:
    return EMPTY.replace(**fields)


def found(abi: int = 7, uid: int = -1, *, hides: bool = False) -> Findings:
    """What a probe would have found on some host."""
    return Findings(Probe("landlock", True, version=f"ABI {abi}"), abi, uid, hides, uid >= 0)
