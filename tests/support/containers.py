"""Containers as engines start them, without an engine: runc, or crun, over the host's own root file system.

The root is an overlay of the host's with an upper layer in memory, as Docker's are; capabilities, masked
paths, devices and the default filter are the engine's. Needs root. Nothing stays: all is in a mount
namespace of its own, and in one temporary directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import staddle
from tests.support import engine_profiles

TREE = Path(__file__).parents[2]
#: The staddle that is tried: a copy without one of its protections may be first on the path.
SOURCE = Path(staddle.__file__).parents[1]
#: The capabilities of root in a container that was started without options.
CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
)
_MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware"),
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_SECONDS = 250


@dataclass(frozen=True)
class Container:
    """How a container is started: what `docker run` without options does, but for what is said."""

    uid: int = 0
    #: "docker", "podman", a profile that an engine takes, or None: unconfined.
    profile: str | Path | None = "docker"
    capabilities: tuple[str, ...] = CAPABILITIES
    masked: bool = True
    shm: str = "64m"
    read_only: bool = False
    no_new_privileges: bool = False
    #: A tmpfs at each of these.
    tmpfs: tuple[str, ...] = ()
    #: Files that an engine leaves in its containers.
    marks: tuple[str, ...] = (".dockerenv",)
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, command: Sequence[str], cwd: str = "/") -> subprocess.CompletedProcess[str]:
        """Run a command in a new container and wait for its end."""
        runtime = shutil.which("runc") or shutil.which("crun")
        assert runtime, "neither runc nor crun is installed: apt-get install runc"
        place = Path(tempfile.mkdtemp(prefix="staddle-box-"))
        try:
            (place / "memory").mkdir()
            (place / "rootfs").mkdir()
            (place / "config.json").write_text(json.dumps(self._config(command, cwd)))
            words = [sys.executable, "-m", __name__, str(place), runtime, str(self.uid), *self.marks]
            return subprocess.run(
                ["unshare", "--mount", "--propagation", "private", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "PYTHONPATH": str(TREE)},
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def python(self, script: str, *words: str) -> Any:
        """The JSON that a script prints as its last line, run with staddle from this tree."""
        done = self.run([sys.executable, "-c", script, *words])
        lines = done.stdout.splitlines()
        assert lines, f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return json.loads(lines[-1])

    def staddle(self, *words: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
        """`staddle WORDS` in the container."""
        return self.run([sys.executable, "-m", "staddle", *words], cwd)

    def _config(self, command: Sequence[str], cwd: str) -> dict[str, Any]:
        caps = list(self.capabilities)
        held = caps if self.uid == 0 else []
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root" if self.uid == 0 else "/home/box",
            "PYTHONPATH": str(SOURCE),
            "LANG": "C.UTF-8",
            **self.env,
        }
        linux: dict[str, Any] = {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "maskedPaths": list(_MASKED) if self.masked else [],
            "readonlyPaths": list(_READ_ONLY) if self.masked else [],
        }
        if self.profile is not None:
            linux["seccomp"] = self._seccomp()
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": self.uid, "gid": self.uid},
                "args": list(command),
                "env": [f"{name}={value}" for name, value in environment.items()],
                "cwd": cwd,
                "capabilities": {"bounding": caps, "effective": held, "permitted": held},
                "noNewPrivileges": self.no_new_privileges,
            },
            "root": {"path": "rootfs", "readonly": self.read_only},
            "hostname": "box",
            "mounts": self._mounts(),
            "linux": linux,
        }

    def _mounts(self) -> list[dict[str, Any]]:
        quiet = ["nosuid", "noexec", "nodev"]
        rows = [
            ("/proc", "proc", "proc", quiet),
            ("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755", "size=65536k"]),
            (
                "/dev/pts",
                "devpts",
                "devpts",
                ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
            ),
            ("/sys", "sysfs", "sysfs", [*quiet, "ro"]),
            ("/dev/mqueue", "mqueue", "mqueue", quiet),
            ("/dev/shm", "tmpfs", "shm", [*quiet, "mode=1777", f"size={self.shm}"]),
            *((path, "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"]) for path in self.tmpfs),
        ]
        # Where they are on another file system than the root, the overlay does not show them.
        for path in {str(TREE), os.path.realpath(sys.base_prefix)}:
            if os.stat(path).st_dev != os.stat("/").st_dev:
                rows.append((path, "bind", path, ["rbind", "ro"]))
        if not SOURCE.is_relative_to(TREE):
            rows.append((str(SOURCE), "bind", str(SOURCE), ["rbind", "ro"]))
        return [
            {"destination": path, "type": kind, "source": source, "options": options}
            for path, kind, source, options in rows
        ]

    def _seccomp(self) -> dict[str, Any]:
        machine = os.uname().machine
        if self.profile == "docker":
            return engine_profiles.docker(self.capabilities, machine)
        if self.profile == "podman":
            return engine_profiles.podman(self.capabilities, machine)
        return engine_profiles.resolved(json.loads(Path(str(self.profile)).read_text()), self.capabilities)


def main() -> None:
    """In a mount namespace of its own: make the root, become the runtime."""
    place, runtime, uid, *marks = sys.argv[1:]
    root, memory = f"{place}/rootfs", f"{place}/memory"
    _run("mount", "-t", "tmpfs", "tmpfs", memory)
    for name in ("upper", "work", "upper/var", "upper/tmp", "upper/run", "upper/var/tmp"):
        os.mkdir(f"{memory}/{name}")
    for name, mode in (("tmp", 0o1777), ("run", 0o755), ("var/tmp", 0o1777)):
        os.setxattr(f"{memory}/upper/{name}", "trusted.overlay.opaque", b"y")
        os.chmod(f"{memory}/upper/{name}", mode)
    layers = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, root)
    for name in marks:
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        Path(f"{root}/{name}").touch()
    os.makedirs(f"{root}/home/box", exist_ok=True)
    os.chown(f"{root}/home/box", int(uid), int(uid))
    # Everybody may go where the interpreter and the tree are: in an image they are in /usr.
    for path in (Path(__file__), Path(os.path.realpath(sys.executable))):
        for parent in path.parents[:-1]:
            found = f"{root}{parent}"
            os.chmod(found, os.stat(found).st_mode | 0o555)
    os.chdir(place)
    name = os.path.basename(place)
    extra = [] if runtime.endswith("runc") else ["--cgroup-manager=disabled"]
    os.execv(runtime, [runtime, "--root", f"{place}/state", *extra, "run", name])  # noqa: S606


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
