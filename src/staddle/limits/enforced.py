"""Which of the means of a host holds each limit of a policy, and what nothing holds. Pure."""

from __future__ import annotations

from ..enforcement import EnforcedLimit, Gap
from .cgroup_files import LIMIT_OF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..policy.limits import Limits
    from .cgroup_layout import CgroupSupport

#: Of the limits that are no controller's: who holds them, always.
_ALWAYS = {
    "timeout": "the host program's clock",
    "output": "the host program, which reads no further",
    "max_lifetime": "the host program's clock",
    "idle": "the host program's clock",
    "file_size": "a resource limit of each process (RLIMIT_FSIZE)",
    "open_files": "a resource limit of each process (RLIMIT_NOFILE)",
}
_CONTROLLER = {limit: controller for controller, limit in LIMIT_OF.items()}
_STAND_IN = {
    "memory": "a supervisor in the sandbox, which measures and kills",
    "processes": "a resource limit of the sandbox's user namespace (RLIMIT_NPROC)",
}


_DISK = {
    "memory": EnforcedLimit("disk", "the size of the sandbox's own file system"),
    "directory": EnforcedLimit(
        "disk", "the host program, which counts what is written and then ends it", exact=False
    ),
}
_STRAIGHT_TO_THE_HOST = Gap(
    "limits.disk",
    "what is written goes straight to the host's file systems, which are not ours to size",
    "use mode='overlay', or leave limits.disk out",
)


def enforced_limits(
    limits: Limits,
    means: CgroupSupport,
    *,
    inside: bool,
    layer: Literal["memory", "directory", "none"],
) -> tuple[tuple[EnforcedLimit, ...], tuple[Gap, ...]]:
    """The limits that were asked for: those that hold, and those that do not.

    `inside`: a first process of ours is in the sandbox, in a user and a pid namespace of its
    own, and can stand in for a controller. `layer` is where writing goes: to a file system in
    memory of ours, to a directory of ours on the host, or straight to the host.
    """
    holds: list[EnforcedLimit] = []
    gaps: list[Gap] = []
    for name, value in limits.as_dict().items():
        if value is None:
            continue
        if name in _ALWAYS:
            holds.append(EnforcedLimit(name, _ALWAYS[name]))
        elif name == "disk":
            if layer in _DISK:
                holds.append(_DISK[layer])
            else:
                gaps.append(_STRAIGHT_TO_THE_HOST)
        elif version := means.version(_CONTROLLER[name]):
            holds.append(EnforcedLimit(name, f"a control group (version {version})"))
        elif inside and name in _STAND_IN:
            holds.append(EnforcedLimit(name, _STAND_IN[name], exact=name == "processes"))
        else:
            gaps.append(_gap(name, means))
    return tuple(holds), tuple(gaps)


def _gap(name: str, means: CgroupSupport) -> Gap:
    why, fix = means.reason(_CONTROLLER[name])
    return Gap(
        f"limits.{name}",
        why or f"there is no control group to limit {name} with",
        f"{fix}; or leave limits.{name} out" if fix else f"leave limits.{name} out",
    )
