"""Choose the host's cgroups in which sandboxes can be placed. Decided from facts; touches nothing.

Version 1 has a hierarchy for each controller, and a cgroup may contain processes and cgroups at the same
time. Our cgroups go below the cgroup of this process, so that its limits hold for our sandboxes too. In
version 2, a cgroup whose children have controllers must contain no processes, except for the root of the
hierarchy. So we use a cgroup that was delegated to us, by our starter or by systemd on request. Without
systemd we make a sibling of our own cgroup: their parent has the controllers that our own cgroup has.
"""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from ..policy.limits import Limits

#: The controllers that enforce limits.
HOLDING = ("memory", "cpu", "pids")
#: By version: also the controllers that measure or freeze.
USEFUL = {1: frozenset((*HOLDING, "cpuacct", "freezer")), 2: frozenset(HOLDING)}

#: Abilities that every cgroup of version 2 has without a controller.
IN_SECOND = frozenset(("cpuacct", "freezer"))


class Hierarchy(Value):
    """One hierarchy, from the view of this process.

    In version 2, `controllers` are available to child cgroups, and `enabled` are those switched on for them:
    of `above`, if it is there, else of `own`. `own` is the directory of our cgroup, empty if it is not
    visible. `above` is its parent, if that was delegated to us. `beside` is its parent, if we may make a
    sibling of `own` there. Such a sibling would escape the limit of `own` in the file `limited` (empty:
    there is none).
    """

    version: int
    controllers: frozenset[str]
    own: str
    writable: bool
    enabled: frozenset[str] = frozenset()
    above: str = ""
    read_only: bool = False
    beside: str = ""
    limited: str = ""


class CgroupFacts(Value):
    """The facts that `host_cgroups.observe` collects.

    `manager` is the service manager that can start a scope, or empty for the reason `no_manager`.
    `manageable` are the controllers that it can delegate.
    """

    hierarchies: tuple[Hierarchy, ...]
    systemd: bool = False
    manager: Literal["user", "system", ""] = ""
    no_manager: str = ""
    manageable: frozenset[str] = frozenset()


class CgroupParent(Value):
    """A directory in which we may create cgroups, and the controllers that they have there.

    `given`: a cgroup of version 2 was delegated to us whole, and we still have to enable its controllers.
    """

    version: int
    base: str
    controllers: frozenset[str]
    given: bool = False


class CgroupSupport(Value):
    """The cgroups in which sandboxes can be placed, and the reason for each missing controller (`why_not`).

    With `scope`, the processes must first be started in a scope of that service manager.
    """

    places: tuple[CgroupParent, ...]
    scope: Literal["user", "system", ""] = ""
    why_not: tuple[tuple[str, str, str], ...] = ()

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers that at least one place has."""
        return frozenset().union(*(place.controllers for place in self.places))

    def reduced(self, wanted: frozenset[str]) -> CgroupSupport:
        """Return this support without parts that only cost time: entering each hierarchy is slow.

        The kernel waits for all other processes before a process enters a hierarchy. So this leaves out
        places of version 1 that enforce no limit in `wanted`, and neither freeze nor measure. It also leaves
        out the cpu controller unless `wanted`, because a real-time process may not enter a cgroup with it.
        """
        unwanted = frozenset({"cpu"}) - wanted
        places = [
            place.replace(controllers=place.controllers - unwanted)
            for place in self.places
            if place.version == 2 or place.controllers & (wanted | IN_SECOND)
        ]
        return self.replace(places=tuple(places))

    def version(self, controller: str) -> int:
        """Return the cgroup version of the place with `controller`; 0 if there is none."""
        return next((place.version for place in self.places if controller in place.controllers), 0)

    def reason(self, controller: str) -> tuple[str, str]:
        """Return why a controller is missing, and how to get it."""
        return next(((why, fix) for name, why, fix in self.why_not if name == controller), ("", ""))


def decide(facts: CgroupFacts, wanted: frozenset[str] = frozenset(HOLDING)) -> CgroupSupport:
    """Pick the places for the controllers in `wanted`, and list the missing controllers."""
    second = _second_version(facts)
    places = _first_version(facts, frozenset())
    if second and _do_without(second, places):
        second = []
    elif second:
        places = _first_version(facts, IN_SECOND)
    missing = wanted - frozenset().union(*(place.controllers for place in (*places, *second)))
    asked = facts.manager if missing & facts.manageable else ""
    if asked:
        # The scope is a whole cgroup of version 2. A process can be in only one cgroup of that version, so we
        # drop the other place.
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
    # Frozen processes die only once they are thawed. So the freezer comes first, even for leftovers of other
    # programs.
    return sorted(found, key=lambda place: "freezer" not in place.controllers)


def _do_without(second: list[CgroupParent], first: list[CgroupParent]) -> bool:
    """Whether version 2 would enforce no limit, and version 1 freezes and measures as well.

    A process enters a cgroup of version 1 at once. For version 2, the kernel first waits some 10 ms until no
    process is being started anywhere. If cpuacct shares its hierarchy with cpu, version 2 is still better,
    because measuring would then also divide CPU shares.
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
            return [CgroupParent(2, hierarchy.above, useful, given=not useful <= hierarchy.enabled)]
        if hierarchy.beside and useful and not hierarchy.limited and not facts.systemd:
            # A controller that our own cgroup has is enabled in its parent, and so in a sibling too.
            return [CgroupParent(2, hierarchy.beside, useful)]
        # Below a cgroup of systemd, only systemd may create cgroups, and it may remove ours. In the hybrid
        # layout it has no controllers to delegate, and leaves ours alone.
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
    if one.limited:
        return (
            f"our own control group contains processes, and a sibling would escape its {one.limited}",
            f"set {one.limited} on {one.beside} instead, or run staddle in a delegated group",
        )
    return (
        f"the {controller} controller is not enabled for groups below {one.own}",
        f"echo +{controller} > {one.own}/cgroup.subtree_control, or run staddle in a delegated group",
    )


# Tables of the cgroup files that set each limit, and that report usage. Pure.


#: Limits by the controller that enforces them.
LIMIT_OF = {"memory": "memory", "cpu": "cpu", "pids": "processes"}
#: Period over which CPU time is counted, and the least quota that the kernel accepts, in microseconds.
_PERIOD, _LONGEST_PERIOD, _LEAST = 100_000, 1_000_000, 1_000


class CgroupSetting(Value):
    """A cgroup file and the text to write to it. Some kernels lack the files that are not `needed`."""

    controller: str
    file: str
    text: str
    needed: bool = True


def settings(
    limits: Limits, version: int, *, ours: int = 0, together: bool = False
) -> Iterator[CgroupSetting]:
    """Yield the settings that put `limits` on a cgroup, in the order in which to write them.

    The cgroup contains `ours` processes of our own, which do not count. With `together`, the kernel kills the
    whole cgroup when it is out of memory. Otherwise, and always in version 1, it kills only the largest
    process.
    """
    if limits.memory is not None:
        yield from _MEMORY[version](limits.memory, together)
    if limits.cpu is not None:
        period = _PERIOD if limits.cpu * _PERIOD >= _LEAST else _LONGEST_PERIOD
        quota = max(_LEAST, round(limits.cpu * period))
        if version == 2:
            yield CgroupSetting("cpu", "cpu.max", f"{quota} {period}")
        else:
            yield CgroupSetting("cpu", "cpu.cfs_period_us", str(period))
            yield CgroupSetting("cpu", "cpu.cfs_quota_us", str(quota))
    if limits.processes is not None:
        yield CgroupSetting("pids", "pids.max", str(limits.processes + ours))


def _memory_1(most: int, together: bool) -> Iterator[CgroupSetting]:
    yield CgroupSetting("memory", "memory.limit_in_bytes", str(most))
    # The limit on memory plus swap equals the limit on memory, so nothing is swapped. Without swap accounting
    # the kernel has no such file, and only the swappiness prevents swapping.
    yield CgroupSetting("memory", "memory.memsw.limit_in_bytes", str(most), needed=False)
    yield CgroupSetting("memory", "memory.swappiness", "0", needed=False)
    # Version 1 counts TCP buffers separately.
    yield CgroupSetting("memory", "memory.kmem.tcp.limit_in_bytes", str(most), needed=False)


def _memory_2(most: int, together: bool) -> Iterator[CgroupSetting]:
    yield CgroupSetting("memory", "memory.max", str(most))
    yield CgroupSetting("memory", "memory.swap.max", "0", needed=False)
    if together:
        yield CgroupSetting("memory", "memory.oom.group", "1", needed=False)


_MEMORY = {1: _memory_1, 2: _memory_2}

#: Settings that remove the limits on memory and processes, in the order in which to write them.
UNLIMITED = {
    1: (
        CgroupSetting("memory", "memory.memsw.limit_in_bytes", "-1", needed=False),
        CgroupSetting("memory", "memory.limit_in_bytes", "-1"),
        CgroupSetting("memory", "memory.kmem.tcp.limit_in_bytes", "-1", needed=False),
        CgroupSetting("pids", "pids.max", "max"),
    ),
    2: (
        CgroupSetting("memory", "memory.max", "max"),
        CgroupSetting("memory", "memory.swap.max", "max", needed=False),
        CgroupSetting("pids", "pids.max", "max"),
    ),
}


class CounterFile(Value):
    """A file that contains a number, alone or after `word`. Divide the number by `unit`."""

    controller: str
    file: str
    word: str = ""
    unit: int = 1


#: Usage counters, by cgroup version. Version 2 counts CPU time even without its controller.
SOURCES: dict[str, dict[int, CounterFile]] = {
    "cpu": {
        1: CounterFile("cpuacct", "cpuacct.usage", unit=10**9),
        2: CounterFile("", "cpu.stat", "usage_usec", 10**6),
    },
    # Version 1 counts these in clock ticks, so a short command shows none.
    "user": {
        1: CounterFile("cpuacct", "cpuacct.usage_user", unit=10**9),
        2: CounterFile("", "cpu.stat", "user_usec", 10**6),
    },
    "system": {
        1: CounterFile("cpuacct", "cpuacct.usage_sys", unit=10**9),
        2: CounterFile("", "cpu.stat", "system_usec", 10**6),
    },
    "memory": {
        1: CounterFile("memory", "memory.usage_in_bytes"),
        2: CounterFile("memory", "memory.current"),
    },
    "peak": {
        1: CounterFile("memory", "memory.max_usage_in_bytes"),
        2: CounterFile("memory", "memory.peak"),
    },
    "files": {
        1: CounterFile("memory", "memory.stat", "shmem"),
        2: CounterFile("memory", "memory.stat", "shmem"),
    },
    "out_of_memory": {
        1: CounterFile("memory", "memory.oom_control", "oom_kill"),
        2: CounterFile("memory", "memory.events", "oom_kill"),
    },
    "processes": {1: CounterFile("pids", "pids.current"), 2: CounterFile("pids", "pids.current")},
    "most_processes": {1: CounterFile("pids", "pids.peak"), 2: CounterFile("pids", "pids.peak")},
    "refused_processes": {
        1: CounterFile("pids", "pids.events", "max"),
        2: CounterFile("pids", "pids.events", "max"),
    },
}


def number(source: CounterFile, text: str) -> int | None:
    """Return the number in the file's text, not yet divided by its unit; None if it is missing."""
    if not source.word:
        text = text.strip()
        return int(text) if text.isdigit() else None
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        if word == source.word and value.isdigit():
            return int(value)
    return None
