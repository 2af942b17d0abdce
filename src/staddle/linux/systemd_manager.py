"""The service manager to use: the system's for root, the user's own for other users."""

from __future__ import annotations

import os

from .._value import Value
from . import programs
from .userns import Obstacle, observe, obstacle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

_ELSEWHERE = "choose backend='namespaces' or backend='landlock', which need no service manager"


class Manager(Value):
    """A manager that can start units, and the variables with which systemd-run finds it."""

    scope: Literal["user", "system"]
    systemd_run: str
    environment: dict[str, str]
    #: The id of root's sandbox; -1 for an ordinary user, who keeps the own id.
    unprivileged_uid: int = -1


def find(
    uid: int | None = None, environment: Mapping[str, str] | None = None, root: str = ""
) -> Manager | Obstacle:
    """Return the manager of `uid` (default: our own), or why there is none.

    Starts nothing. `root` is for tests.
    """
    uid = os.geteuid() if uid is None else uid
    environment = os.environ if environment is None else environment
    program = programs.find("systemd-run", tuple(f"{root}{place}" for place in programs.DIRECTORIES))
    if program is None:
        return Obstacle("systemd-run is not installed", f"apt-get install systemd, or {_ELSEWHERE}")
    if program.problem:
        return Obstacle(program.problem, "reinstall systemd")
    if not os.path.isdir(f"{root}/run/systemd/system"):
        return Obstacle(f"systemd does not run this machine: PID 1 is {_first(root)}", _ELSEWHERE)
    if uid == 0:
        return _system(program.path, root)
    return _user(program.path, uid, environment, root)


def _system(systemd_run: str, root: str) -> Manager | Obstacle:
    from .idmaps import unused_id_here

    if not os.path.exists(f"{root}/run/dbus/system_bus_socket"):
        return Obstacle("the system has no message bus (/run/dbus/system_bus_socket)", "apt-get install dbus")
    unprivileged_uid = unused_id_here()
    if unprivileged_uid is None:
        return Obstacle(
            "run by root in a user namespace with no other id, the sandbox would have to run as root",
            "run staddle as an ordinary user",
        )
    return Manager("system", systemd_run, {}, unprivileged_uid)


def _user(systemd_run: str, uid: int, environment: Mapping[str, str], root: str) -> Manager | Obstacle:
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    if not os.path.exists(f"{root}{runtime}/systemd/private"):
        return Obstacle(
            f"no user manager runs for uid {uid}: {runtime}/systemd/private does not exist",
            "log in by way of a display manager or ssh, or as root: loginctl enable-linger USER",
        )
    address = environment.get("DBUS_SESSION_BUS_ADDRESS", "")
    if not address and not os.path.exists(f"{root}{runtime}/bus"):
        return Obstacle(
            f"the user manager of uid {uid} has no message bus ({runtime}/bus)",
            "apt-get install dbus-user-session, and log in again",
        )
    needed = {"XDG_RUNTIME_DIR": runtime}
    if address:
        needed["DBUS_SESSION_BUS_ADDRESS"] = address
    return Manager("user", systemd_run, needed)


def _first(root: str) -> str:
    try:
        with open(f"{root}/proc/1/comm", "rb") as file:
            return repr(file.read().strip().decode("utf-8", "replace"))
    except OSError:
        return "another"


def version(systemd_run: str) -> int:
    """Return the version of systemd; 0 if it is unknown."""
    import subprocess

    try:
        answer = subprocess.run(
            [systemd_run, "--version"],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    words = answer.stdout.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def cause(problem: str, found: Manager) -> Obstacle:
    """Return the cause of a failed self-test: the kernel's refusal if there is one, else `problem`."""
    refused = obstacle(observe(found.unprivileged_uid if found.unprivileged_uid >= 0 else None))
    if refused is not None:
        return refused
    return Obstacle(problem, f"read `journalctl {'--user ' if found.scope == 'user' else ''}-e`")


def delegated_controllers(
    scope: Literal["user", "system"], uid: int | None = None, mount: str = "/sys/fs/cgroup"
) -> frozenset[str]:
    """Return the cgroup controllers that the manager can delegate: limits work only with them.

    They are the controllers of the manager's own subtree; none if the hierarchy is not unified.
    """
    uid = os.geteuid() if uid is None else uid
    own = f"user.slice/user-{uid}.slice/user@{uid}.service/" if scope == "user" else ""
    try:
        with open(f"{mount}/{own}cgroup.controllers") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()
