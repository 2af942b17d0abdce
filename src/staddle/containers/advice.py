"""From the obstacles in this container to the options to start it with.

The decision is pure: `needs` are facts, `options` are lines to paste. Every option weakens the container for
all its programs, so each is listed only if something needs it.
"""

from __future__ import annotations

import os

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ..linux.userns import UsernsFacts

#: The profile's name in the examples: a file on the engine's machine.
PROFILE = "staddle.json"
_LEAST_SHM = 1 << 30


class Needs(Value):
    """Unmet needs of sandboxes in this container. All False: none."""

    #: The system call filter refuses namespaces, mounts or a host name.
    filter: bool = False
    #: Parts of /proc are covered, so that no new /proc can be mounted.
    processes: bool = False
    #: Only a small /dev/shm can store layers.
    memory: bool = False
    #: Root may not mount, and so cannot give a sandbox its files.
    user: bool = False

    @property
    def nothing(self) -> bool:
        """Whether all needs are met."""
        return not (self.filter or self.processes or self.memory or self.user)


def needs() -> Needs:
    """Examine this container. Starts a child that tries to make namespaces."""
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
    """Whether the filter allows namespaces and mounts in them. A covered /proc is another obstacle."""
    return not facts.stage or (facts.stage == "proc" and bool(facts.covered))


def _can_be_named() -> bool:
    """Whether a sandbox gets its own host name, according to the self-test of the namespaces backend."""
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
    """Lines to paste for the detected kinds of host; empty if nothing is needed.

    `uid` is the user of this container: the next one should not run as root.
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
    """The system call filter for containers in which sandboxes run, in the engines' format."""
    with open(os.path.join(os.path.dirname(__file__), "seccomp.json"), encoding="ascii") as file:
        return file.read()


# Evidence of the kind of this machine: a container and its engine, a virtual kernel, a CI runner.
# Reads a few files and variables. Each answer names its evidence. Without evidence it may still be a
# container: no engine has to leave a trace.


#: Kinds, and their names in text.
NAMES = {
    "docker": "Docker",
    "podman": "Podman",
    "kubernetes": "Kubernetes",
    "gvisor": "gVisor",
    "lxc": "LXC",
    "nspawn": "systemd-nspawn",
    "wsl": "WSL",
    "github": "GitHub Actions",
    "gitlab": "GitLab CI",
    "codespaces": "GitHub Codespaces",
    "devcontainer": "a dev container",
    "container": "a container",
}
#: gVisor's kernel always reports this version.
_GVISOR = "Sun Jan 10 15:06:54 PST 2016"
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "GITHUB_ACTIONS": "github",
    "GITLAB_CI": "gitlab",
    "CODESPACES": "codespaces",
    "REMOTE_CONTAINERS": "devcontainer",
    "DEVCONTAINER": "devcontainer",
}
_FILES = {
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/dev/lxd/sock": "lxc",
    "/dev/incus/sock": "lxc",
}
#: The names in systemd's file.
_MANAGED = {"lxc": "lxc", "systemd-nspawn": "nspawn", "docker": "docker", "podman": "podman", "wsl": "wsl"}


class Evidence(Value):
    """One kind of host, and its evidence."""

    kind: str
    by: str


def found(
    environment: Mapping[str, str] = os.environ,
    read: Callable[[str], str] | None = None,
    exists: Callable[[str], bool] = os.path.exists,
) -> tuple[Evidence, ...]:
    """Collect the evidence, once for each kind."""
    known: dict[str, Evidence] = {}
    for item in _all(environment, read or _content, exists):
        known.setdefault(item.kind, item)
    if len(known) > 1:
        known.pop("container", None)  # a more specific kind is known
    return tuple(known.values())


def _all(
    environment: Mapping[str, str], read: Callable[[str], str], exists: Callable[[str], bool]
) -> Iterator[Evidence]:
    if _GVISOR in read("/proc/version"):
        yield Evidence("gvisor", "the kernel's version in /proc/version")
    if "microsoft" in (release := read("/proc/sys/kernel/osrelease")).lower():
        yield Evidence("wsl", f"the kernel's release {release.strip()}")
    for path, kind in _FILES.items():
        if exists(path):
            yield Evidence(kind, path)
    managed = read("/run/systemd/container").strip()
    if managed:
        yield Evidence(_MANAGED.get(managed, "container"), f"/run/systemd/container contains {managed}")
    for name, kind in _VARIABLES.items():
        if environment.get(name):
            yield Evidence(kind, f"the variable {name}")
    if named := environment.get("container"):
        yield Evidence(_MANAGED.get(named, "container"), f"the variable container={named}")
    if " / / " in (table := read("/proc/self/mountinfo")) and any(
        " / / " in line and " - overlay " in line for line in table.splitlines()
    ):
        yield Evidence("container", "its root is an overlay")


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


# Settings of a host that refuse user namespaces, and the files that allow them. Root applies them after a
# review.
# `fixes` is pure. `apply` writes one file and runs the one program that activates it.


_SYSCTL = "/etc/sysctl.d/60-staddle.conf"
_APPARMOR = "/etc/apparmor.d/staddle"
_PARSER = "apparmor_parser"
#: Directories of root's programs, even if an ordinary user asks what root would do.
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Fix(Value):
    """One change of the host: `path` gets `content`, `command` activates it.

    `why` is the restriction that it removes, `whom` the programs that may then make user namespaces.
    """

    why: str
    whom: str
    path: str
    content: str
    command: tuple[str, ...]


def fixes(facts: UsernsFacts, interpreter: str, *, has_parser: bool = True) -> tuple[Fix, ...]:
    """The changes that would let ordinary users make user namespaces here, if settings refuse them.

    `interpreter` is the program that runs staddle: AppArmor identifies programs by path. Without AppArmor's
    parser no profile can be loaded, so its restriction is lifted for every program.
    """
    found = []
    settings, why = {}, []
    if facts.userns_clone == "0":
        settings["kernel.unprivileged_userns_clone"] = "1"
        why.append("kernel.unprivileged_userns_clone is 0")
    if facts.maximum == "0":
        settings["user.max_user_namespaces"] = "15000"
        why.append("user.max_user_namespaces is 0")
    is_restricted = facts.apparmor not in (None, "0")
    if is_restricted and not has_parser:
        settings["kernel.apparmor_restrict_unprivileged_userns"] = "0"
        why.append("kernel.apparmor_restrict_unprivileged_userns is 1, and apparmor_parser is not installed")
    if settings:
        found.append(
            Fix(
                ", ".join(why),
                "every program",
                _SYSCTL,
                "".join(f"{name} = {value}\n" for name, value in settings.items()),
                ("sysctl", "--quiet", "--load", _SYSCTL),
            )
        )
    if is_restricted and has_parser:
        found.append(
            Fix(
                "kernel.apparmor_restrict_unprivileged_userns is 1",
                "every program that this Python runs",
                _APPARMOR,
                _profile(interpreter),
                (_PARSER, "--replace", _APPARMOR),
            )
        )
    return tuple(found)


def _profile(interpreter: str) -> str:
    """Allow user namespaces for every program that this interpreter runs; change nothing else."""
    return (
        "# User namespaces for staddle: for every program that this interpreter runs.\n"
        "abi <abi/4.0>,\n"
        "include <tunables/global>\n"
        "\n"
        f'profile staddle "{interpreter}" flags=(unconfined) {{\n'
        "  userns,\n"
        "  include if exists <local/staddle>\n"
        "}\n"
    )


def here() -> tuple[Fix, ...]:
    """The changes for this host and this interpreter."""
    import shutil
    import sys

    from ..linux.userns import observe

    has_parser = shutil.which(_PARSER, path=_PLACES) is not None
    return fixes(observe(), os.path.realpath(sys.executable), has_parser=has_parser)


def apply(fix: Fix) -> str:
    """Apply it; return an empty string or the error. The file is replaced atomically."""
    import subprocess

    half = f"{fix.path}.staddle-{os.getpid()}"
    try:
        with open(half, "x", encoding="utf-8") as file:
            file.write(fix.content)
        os.chmod(half, 0o644)
        os.replace(half, fix.path)
        env = {**os.environ, "PATH": _PLACES}
        done = subprocess.run(fix.command, env=env, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        try:
            os.unlink(half)
        except OSError:
            pass
        return str(error)
    return done.stderr.strip() or f"{fix.command[0]} failed" if done.returncode else ""
