"""`doctor`: what this host can enforce, backend by backend, by really trying it."""

from __future__ import annotations

import os
import sys

from . import backends
from ._value import Value
from .backends.base import PROTECTIONS, Gap, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy import Policy


class Finding(Value):
    """One backend on this host: whether it can be used, and what it would not hold."""

    probe: Probe
    gaps: tuple[Gap, ...]

    @property
    def held(self) -> tuple[str, ...]:
        """The protections it gives here."""
        if not self.probe.usable:
            return ()
        open_ = {gap.protection for gap in self.gaps}
        return tuple(name for name in PROTECTIONS if name not in open_)


class Diagnosis(Value):
    """What `staddle doctor` prints. `auto` is the backend that a default run would get, if any."""

    host: dict[str, str]
    findings: tuple[Finding, ...]
    auto: str | None
    why: str

    @property
    def can_confine(self) -> bool:
        """Whether anything but `native` works here."""
        return any(found.probe.usable for found in self.findings if found.probe.backend != "native")

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "host": self.host,
            "can_confine": self.can_confine,
            "auto": self.auto,
            "why": self.why,
            "backends": {
                found.probe.backend: {
                    **found.probe.as_dict(),
                    "enforces": list(found.held),
                    "gaps": [gap.as_dict() for gap in found.gaps],
                }
                for found in self.findings
            },
        }


def doctor(policy: Policy | None = None) -> Diagnosis:
    """Try every backend in a child process and say what each would hold of `policy`.

    The default is the policy of a plain run: `Policy.agent()`. Nothing is changed on the host.
    """
    from .errors import StaddleError
    from .policy import Policy
    from .policy.compiler import compile

    plan = compile(policy or Policy.agent(), cwd=None)
    findings = []
    for name in backends.NAMES:
        backend = backends.get(name)
        probe = backend.probe()
        findings.append(Finding(probe, backend.gaps(plan) if probe.usable else ()))
    try:
        _, enforced = backends.choose(plan)
        auto, why = enforced.backend, enforced.why
    except StaddleError as error:
        auto, why = None, str(error)
    return Diagnosis(_host(), tuple(findings), auto, why)


def _host() -> dict[str, str]:
    uname = os.uname()
    return {
        "system": f"{uname.sysname} {uname.release} {uname.machine}",
        "python": sys.version.split()[0],
        "user": f"uid {os.geteuid()}" + (" (root)" if os.geteuid() == 0 else ""),
    }
