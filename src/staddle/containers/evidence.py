"""Evidence of the kind of this machine: a container and its engine, a virtual kernel, a CI runner.

Reads a few files and variables. Each answer names what it was found by; where nothing is found it may still
be a container: nothing obliges an engine to leave a trace.
"""

from __future__ import annotations

import os

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Kinds, and how they are called.
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
#: Its kernel says this of itself, always.
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
#: As systemd's file says it.
_MANAGED = {"lxc": "lxc", "systemd-nspawn": "nspawn", "docker": "docker", "podman": "podman", "wsl": "wsl"}


class Evidence(Value):
    """One kind of host, and what it was found by."""

    kind: str
    by: str


def found(
    environment: Mapping[str, str] = os.environ,
    read: Callable[[str], str] | None = None,
    exists: Callable[[str], bool] = os.path.exists,
) -> tuple[Evidence, ...]:
    """Collect the evidence for each kind, each kind once."""
    known: dict[str, Evidence] = {}
    for item in _all(environment, read or _content, exists):
        known.setdefault(item.kind, item)
    if len(known) > 1:
        known.pop("container", None)  # something says which
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
