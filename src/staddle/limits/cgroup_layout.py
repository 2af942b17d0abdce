"""Choose the host's control groups that can hold a sandbox. Decided from facts; touches nothing.

Version 1 has a hierarchy for each controller, and a group may have processes and groups below
it at the same time: a group of ours goes beneath the one we are in, so that the limits on us
hold for our sandboxes as well. In version 2 a group whose children have controllers must not
have processes, so that there must be one that was given to us: by our starter, or by
systemd for the asking. The root of the hierarchy is the exception.
"""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

#: The controllers that hold limits.
HOLDING = ("memory", "cpu", "pids")
#: With those that are good for something else, by version: to measure, to stop.
USEFUL = {1: frozenset((*HOLDING, "cpuacct", "freezer")), 2: frozenset(HOLDING)}

#: What every group of version 2 can do without a controller.
IN_SECOND = frozenset(("cpuacct", "freezer"))


class Hierarchy(Value):
    """One hierarchy, as far as this process is concerned.

    `controllers` of version 2 are those that its groups below could have, and `enabled` those
    that they do have. `own` is the directory of our group, empty when it is not to be seen.
    `above` is its parent, where that was delegated to us.
    """

    version: int
    controllers: frozenset[str]
    own: str
    writable: bool
    enabled: frozenset[str] = frozenset()
    above: str = ""
    read_only: bool = False


class CgroupFacts(Value):
    """The facts that `host_cgroups.observe` collects.

    `manager` is the service manager that can be asked for a scope, empty where there is none,
    for the reason `no_manager`; `manageable` the controllers that it has to give.
    """

    hierarchies: tuple[Hierarchy, ...]
    systemd: bool = False
    manager: Literal["user", "system", ""] = ""
    no_manager: str = ""
    manageable: frozenset[str] = frozenset()


class CgroupParent(Value):
    """A directory that groups of ours may be made in, and the controllers they have there.

    `given` is a group of version 2 that is all ours: its controllers are still to be enabled.
    """

    version: int
    base: str
    controllers: frozenset[str]
    given: bool = False


class CgroupSupport(Value):
    """The cgroups that can hold sandboxes. `why_not` has the reason for each missing controller.

    With `scope`, the processes must be started in a scope of that service manager first.
    """

    places: tuple[CgroupParent, ...]
    scope: Literal["user", "system", ""] = ""
    why_not: tuple[tuple[str, str, str], ...] = ()

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers that at least one place has."""
        return frozenset().union(*(place.controllers for place in self.places))

    def reduced(self, wanted: frozenset[str]) -> CgroupSupport:
        """The same without what only takes time: to enter each hierarchy, the kernel waits for all others.

        Of version 1, places that hold none of the limits `wanted`, stop or measure nothing; of both, the cpu
        controller unless it is wanted. (A real-time process may not enter a cgroup that has it.)
        """
        unwanted = frozenset({"cpu"}) - wanted
        places = [
            place.replace(controllers=place.controllers - unwanted)
            for place in self.places
            if place.version == 2 or place.controllers & (wanted | IN_SECOND)
        ]
        return self.replace(places=tuple(places))

    def version(self, controller: str) -> int:
        """Of the place that has `controller`; 0 when none has."""
        return next((place.version for place in self.places if controller in place.controllers), 0)

    def reason(self, controller: str) -> tuple[str, str]:
        """Reason why a controller is missing, and what to do about it."""
        return next(((why, fix) for name, why, fix in self.why_not if name == controller), ("", ""))


def decide(facts: CgroupFacts, wanted: frozenset[str] = frozenset(HOLDING)) -> CgroupSupport:
    """The places to use for the controllers in `wanted`, and what cannot be had."""
    second = _second_version(facts)
    places = _first_version(facts, frozenset())
    if second and _do_without(second, places):
        second = []
    elif second:
        places = _first_version(facts, IN_SECOND)
    missing = wanted - frozenset().union(*(place.controllers for place in (*places, *second)))
    asked = facts.manager if missing & facts.manageable else ""
    if asked:
        # The scope is a group of version 2 that we are given whole; whatever else there is
        # of that version would be a second group of it, and a process is in one.
        scoped = facts.manageable - frozenset().union(*(place.controllers for place in places))
        second = [CgroupParent(2, "", scoped & USEFUL[2], given=True)]
        missing -= scoped
    places += second
    return CgroupSupport(
        tuple(places), asked, tuple((name, *_why_not(name, facts)) for name in sorted(missing))
    )


def _first_version(facts: CgroupFacts, not_needed: frozenset[str]) -> list[CgroupParent]:
    found = []
    for hierarchy in facts.hierarchies:
        if hierarchy.version == 1 and hierarchy.own and hierarchy.writable and not hierarchy.read_only:
            useful = (hierarchy.controllers & USEFUL[1]) - not_needed
            if useful:
                found.append(CgroupParent(1, hierarchy.own, useful))
    # What was stopped ends when it goes on: in leftovers of others, too, that is done first.
    return sorted(found, key=lambda place: "freezer" not in place.controllers)


def _do_without(second: list[CgroupParent], first: list[CgroupParent]) -> bool:
    """Whether version 2 would hold no limit, and version 1 stops and measures as well.

    A process enters a group of version 1 at once; for one of version 2 the kernel first waits until no
    process is being started anywhere, some 10 ms. Not where to measure the processors is to share them.
    """
    measuring = [place.controllers for place in first if place.controllers & IN_SECOND]
    return (
        frozenset().union(*measuring) >= IN_SECOND
        and not any(place.controllers for place in second)
        and not any("cpu" in controllers for controllers in measuring)
    )


def _second_version(facts: CgroupFacts) -> list[CgroupParent]:
    for hierarchy in facts.hierarchies:
        if hierarchy.version != 2 or hierarchy.read_only or not hierarchy.own:
            continue
        useful = hierarchy.controllers & USEFUL[2]
        if hierarchy.above:
            return [CgroupParent(2, hierarchy.above, hierarchy.enabled & useful)]
        # Below a cgroup of systemd only systemd makes cgroups, and it may remove others;
        # where it has no controllers to give (the hybrid layout) it does not mind.
        if hierarchy.writable and (hierarchy.enabled & useful or not facts.systemd or not useful):
            return [CgroupParent(2, hierarchy.own, hierarchy.enabled & useful)]
    return []


def _why_not(controller: str, facts: CgroupFacts) -> tuple[str, str]:
    there = [item for item in facts.hierarchies if controller in item.controllers]
    if not facts.hierarchies:
        return "no control groups are mounted here", "mount the unified hierarchy at /sys/fs/cgroup"
    if not there:
        return (
            f"the kernel or the container has no {controller} controller",
            f"start the kernel with the {controller} controller (see /proc/cgroups)",
        )
    one = there[0]
    if one.read_only:
        return (
            "the control groups are mounted read-only, as containers have them",
            "give the container a control group of its own to write to",
        )
    if not one.own:
        return "our own control group is not visible here", "run where /sys/fs/cgroup shows it"
    if facts.systemd and one.version == 2:
        if facts.manager:
            return (
                f"the {facts.manager} manager has no {controller} controller to give",
                f"Delegate={controller} for user@.service (systemctl edit user@.service)",
            )
        why = facts.no_manager or "systemd cannot be asked for one"
        return (
            f"no control group is delegated to us, and {why}",
            "run staddle from a login session of systemd",
        )
    if not one.writable:
        return (
            "the control groups belong to another user",
            "have one delegated (its directory and cgroup.procs made yours)",
        )
    return (
        f"the {controller} controller is not enabled for groups below {one.own}",
        f"echo +{controller} > {one.own}/cgroup.subtree_control, or run staddle in a delegated group",
    )
