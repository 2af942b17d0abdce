"""Plans by hand, so that nothing depends on what the compiler makes of this host."""

from __future__ import annotations

from typing import Any

from staddle.backends.landlock.probe import Findings
from staddle.enforcement import Probe
from staddle.policy import Limits, Network
from staddle.policy.identity import Identity
from staddle.policy.plan import Grant, Hidden, Plan, Scratch, Variable

SCRATCH = (
    Scratch("/dev/shm", 0o1777, 1 << 20, "private"),
    Scratch("/home/user", 0o700, 1 << 20, "private home"),
    Scratch("/tmp", 0o1777, 1 << 20, "private"),
    Scratch("/var/tmp", 0o1777, 1 << 20, "private"),
)
EMPTY = Plan(
    grants=(),
    hidden=(),
    guards=(),
    links=(),
    texts=(),
    scratch=SCRATCH,
    sockets=(),
    variables=(
        Variable("HOME", "/home/user", "default"),
        Variable("PATH", "/home/user/bin:/usr/bin", "default"),
        Variable("TMPDIR", "/tmp", "default"),
    ),
    network=Network.deny(),
    limits=Limits(),
    identity=Identity(),
    cwd="/home/user",
)


def plan(**fields: Any) -> Plan:
    return EMPTY.replace(**fields)


def read(path: object) -> Grant:
    return Grant(str(path), "read", True, f"read {str(path)!r}")


def write(path: object) -> Grant:
    return Grant(str(path), "write", True, f"write {str(path)!r}")


def hidden(path: object, kind: str = "directory") -> Hidden:
    return Hidden(str(path), kind, f"deny {str(path)!r}")  # type: ignore[arg-type]


def found(abi: int = 7, uid: int = -1, *, hides: bool = False) -> Findings:
    """What a probe would have found on some host."""
    return Findings(Probe("landlock", True, version=f"ABI {abi}"), abi, uid, hides, uid >= 0)
