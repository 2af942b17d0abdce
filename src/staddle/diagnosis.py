"""`doctor`: test each backend on this host, and report what it enforces."""

from __future__ import annotations

import os
import sys

from . import backends
from ._value import Value
from .enforcement import PROTECTIONS, Gap, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .backends.base import Backend
    from .containers.advice import Evidence, Needs
    from .policy import Policy
    from .policy.plan import Plan


class BackendReport(Value):
    """One backend on this host: whether it is usable, and its gaps."""

    probe: Probe
    gaps: tuple[Gap, ...]

    @property
    def held(self) -> tuple[str, ...]:
        """Protections that it enforces here."""
        if not self.probe.usable:
            return ()
        open_ = {gap.protection for gap in self.gaps}
        return tuple(name for name in PROTECTIONS if name not in open_)


class Diagnosis(Value):
    """Report of `staddle doctor`. `auto` is the backend of a default run, if any.

    `network` tells how much of an allow list can be enforced here.
    """

    host: dict[str, str]
    findings: tuple[BackendReport, ...]
    auto: str | None
    why: str
    network: str
    #: GPUs that a policy can grant, by name, with their device nodes. No sandbox has one by default.
    gpus: dict[str, tuple[str, ...]]

    @property
    def can_confine(self) -> bool:
        """Whether any backend except `native` works here."""
        return any(found.probe.usable for found in self.findings if found.probe.backend != "native")

    def as_dict(self) -> dict[str, object]:
        """Return data for JSON."""
        return {
            "host": self.host,
            "can_confine": self.can_confine,
            "auto": self.auto,
            "why": self.why,
            "network": self.network,
            "gpus": {name: list(nodes) for name, nodes in self.gpus.items()},
            "backends": {
                found.probe.backend: {
                    **found.probe.as_dict(),
                    "enforces": list(found.held),
                    "gaps": [gap.as_dict() for gap in found.gaps],
                }
                for found in self.findings
            },
        }


class ContainerReport(Value):
    """A container: its kind, the protections that sandboxes lack in it, and options that add them."""

    evidence: tuple[Evidence, ...]
    needs: Needs
    options: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return data for JSON."""
        return {
            "evidence": {item.kind: item.by for item in self.evidence},
            "needs": self.needs.as_dict(),
            "options": list(self.options),
        }


def container() -> ContainerReport:
    """Detect this container and its obstacles to confinement, in a child process. Changes nothing."""
    from .containers import advice
    from .containers.advice import found

    seen, needed = found(), advice.needs()
    return ContainerReport(seen, needed, tuple(advice.options(seen, needed, os.geteuid())))


def doctor(policy: Policy | None = None) -> Diagnosis:
    """Test every backend in a child process, and report how much of `policy` each enforces.

    The default is the policy of a plain run: `default_policy()`. Nothing changes on the host.
    """
    from .errors import StaddleError
    from .policy.compiler import compile
    from .policy.installation import default_policy

    plan = compile(policy or default_policy(), cwd=None)
    findings = []
    for name in backends.NAMES:
        backend = backends.get(name)
        probe = backend.probe()
        findings.append(BackendReport(probe, _gaps(backend, plan) if probe.usable else ()))
    try:
        _, enforced = backends.choose(plan)
        auto, why = enforced.backend, enforced.why
    except StaddleError as error:
        auto, why = None, str(error)
    gateway = any(found.probe.usable and found.probe.backend == "namespaces" for found in findings)
    return Diagnosis(_host(), tuple(findings), auto, why, _network() if gateway else _NO_GATEWAY, _gpus())


def _gpus() -> dict[str, tuple[str, ...]]:
    from .hostinfo import devices

    return {grant.gpu.name: grant.nodes for grant in devices.granted(("all",))} if devices.gpus() else {}


def _gaps(backend: Backend, plan: Plan) -> tuple[Gap, ...]:
    """Return the gaps of one command, including those of the host's default limits."""
    from .limits.enforced import of_command, of_landlock

    if backend.name == "landlock":
        gaps = backend.gaps(plan)
        return (*gaps, *of_landlock(plan.limits, as_root=any(gap.protection == "root" for gap in gaps))[1])
    writes = any(grant.access == "write" for grant in plan.grants)
    _, more = of_command(plan.limits, inside=backend.name == "namespaces", writes=writes)
    return (*backend.gaps(plan), *more)


_NO_GATEWAY = "no allow list: it takes the namespaces backend"


def _network() -> str:
    """Describe in a sentence how far this host supports a network with an allow list."""
    from .network.host.probe import probe

    found = probe()
    if not found.works:
        return "no allow list: a network namespace could not be prepared"
    less = [] if found.v6 else ["no IPv6"]
    if not found.redirects:
        less.append("without nftables (tproxy), names need ports and a wildcard has room for 16 names")
    elif not found.tells:
        less.append("without nfnetlink_log, what is refused by address is refused without a report")
    return f"allow lists of hosts, and ports of the host's loopback{''.join(f'; {item}' for item in less)}"


def _host() -> dict[str, str]:
    uname = os.uname()
    return {
        "system": f"{uname.sysname} {uname.release} {uname.machine}",
        "python": sys.version.split()[0],
        "user": f"uid {os.geteuid()}" + (" (root)" if os.geteuid() == 0 else ""),
    }
