"""From what stands in the way in this container to the options that it should be started with.

The decision is pure: `needs` are facts, `options` are lines to paste. Every option weakens the container for
all its programs: each is named only where something needs it.
"""

from __future__ import annotations

import os

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..linux.userns import UsernsFacts
    from .evidence import Evidence

#: The profile's name in the examples: a file on the machine of the engine.
PROFILE = "staddle.json"
_LEAST_SHM = 1 << 30


class Needs(Value):
    """Needs of sandboxes that are not met here. All False: none."""

    #: The system call filter refuses namespaces, mounts or a host name.
    filter: bool = False
    #: Parts of /proc are covered, so that no new one can be mounted.
    processes: bool = False
    #: There is no place for layers but a small /dev/shm.
    memory: bool = False
    #: Root may not mount, and so cannot give a sandbox its files.
    user: bool = False

    @property
    def nothing(self) -> bool:
        """Whether the container is as it should be."""
        return not (self.filter or self.processes or self.memory or self.user)


def needs() -> Needs:
    """Look at this container. Starts a child that tries to make namespaces."""
    from ..layers.store import PLACES
    from ..linux.process import capabilities
    from ..linux.userns import observe

    is_root = os.geteuid() == 0
    facts = observe()
    shm = os.statvfs(PLACES[0]) if os.path.isdir(PLACES[0]) else None
    room = 0 if shm is None else shm.f_blocks * shm.f_frsize
    return Needs(
        filter=facts.seccomp and (not _allows_namespaces(facts) or not _can_be_named()),
        processes=bool(facts.covered),
        memory=room < _LEAST_SHM and not any(_holds_layers(place) for place in PLACES[1:]),
        user=is_root and not capabilities()[0] >> 21 & 1,
    )


def _allows_namespaces(facts: UsernsFacts) -> bool:
    """Whether the filter lets namespaces be made and mounts in them. A covered /proc is another obstacle."""
    return not facts.stage or (facts.stage == "proc" and bool(facts.covered))


def _can_be_named() -> bool:
    """Whether a sandbox has a host name of its own, as the self-test of the namespaces backend found."""
    from .. import backends
    from ..policy import Policy
    from ..policy.compiler import compile

    found = backends.get("namespaces")
    if not found.probe().usable:
        return True  # there are greater obstacles
    return all(gap.protection != "identity" for gap in found.gaps(compile(Policy(), cwd="/")))


def _holds_layers(place: str) -> bool:
    from ..layers.store import can_hold_layers

    try:
        can_hold_layers(place)
    except Exception:
        return False
    return True


def options(found: Iterable[Evidence], needed: Needs, uid: int) -> list[str]:
    """Lines to paste, by the kinds of host that were found; empty where nothing is needed.

    `uid` is who runs this container: the next one is not root's.
    """
    kinds = {item.kind for item in found}
    if "gvisor" in kinds:
        return [
            "gVisor has neither Landlock nor the mounts that sandboxes need, and is a boundary itself:",
            "run one container for each task, or start this one with another runtime (--runtime runc).",
        ]
    if needed.nothing:
        return []
    if "kubernetes" in kinds:
        return _pod(needed, uid or 1000)
    engine = "podman" if "podman" in kinds else "docker"
    return [*_first_line(needed), *_command_line(engine, needed, uid or 1000)]


def _first_line(needed: Needs) -> list[str]:
    if not needed.filter:
        return []
    return [f"staddle doctor --container --profile > {PROFILE}        # on the machine of the engine"]


def _command_line(engine: str, needed: Needs, uid: int) -> list[str]:
    words = [engine, "run"]
    if needed.filter:
        words.append(f"--security-opt seccomp={PROFILE}")
    if needed.processes:
        words.append(f"--security-opt {'unmask=ALL' if engine == 'podman' else 'systempaths=unconfined'}")
    if needed.memory:
        words.append("--shm-size 1g")
    return [" ".join([*words, f"--user {uid}", "IMAGE"])]


def _pod(needed: Needs, uid: int) -> list[str]:
    lines = []
    if needed.filter:
        where = f"/var/lib/kubelet/seccomp/{PROFILE}"
        lines += [f"# on each node: staddle doctor --container --profile > {where}"]
    lines += ["spec:", "  hostUsers: false"]
    lines += ["  containers:", "  - securityContext:"]
    lines.append(f"      runAsUser: {uid}")
    if needed.processes:
        lines.append("      procMount: Unmasked        # needs hostUsers: false")
    if needed.filter:
        lines.append(f"      seccompProfile: {{type: Localhost, localhostProfile: {PROFILE}}}")
    if needed.memory:
        lines.append("    volumeMounts: [{name: shm, mountPath: /dev/shm}]")
        lines.append("  volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]")
    return lines


def profile() -> str:
    """The system call filter for containers in which sandboxes run, in the format of the engines."""
    with open(os.path.join(os.path.dirname(__file__), "seccomp.json"), encoding="ascii") as file:
        return file.read()
