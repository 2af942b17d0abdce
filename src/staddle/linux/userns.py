"""Find out whether an unprivileged process can have its own namespaces here, and if not, why.

`observe` tries it in a child, step by step, and reads the host's settings. `obstacle` is a pure function from
these facts to the cause and its fix.
"""

from __future__ import annotations

import errno
import os

from .._value import Value
from .mounts import CLONE_NEWNS, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC, MS_SLAVE, mount
from .process import become, dumpable
from .procfs import own
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, NoReturn

    Stage = Literal["", "namespace", "map", "mount", "proc"]

CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_ALL = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

_STAGES: tuple[Stage, ...] = ("", "namespace", "map", "mount", "proc")
_LANDLOCK = "choose backend='landlock', which needs no namespaces"


class UsernsFacts(Value):
    """Facts from the attempt. `stage` is the step that failed, empty if all succeeded."""

    stage: Stage
    error: int = 0
    seccomp: bool = False
    userns_clone: str | None = None
    apparmor: str | None = None
    maximum: str | None = None
    covered: tuple[str, ...] = ()


class Obstacle(Value):
    """The reason why there are no user namespaces, and how to fix it."""

    why: str
    fix: str


def obstacle(facts: UsernsFacts) -> Obstacle | None:
    """Return the cause; None if nothing is in the way."""
    if not facts.stage:
        return None
    refused = facts.error in (errno.EPERM, errno.EACCES)
    covered = ", ".join(facts.covered[:3])
    if facts.stage == "namespace" and facts.error == errno.ENOSPC:
        if facts.maximum == "0":
            return Obstacle(
                "user namespaces are switched off: user.max_user_namespaces is 0",
                "sysctl -w user.max_user_namespaces=15000",
            )
        return Obstacle(
            "no more user namespaces may be made here: a limit is reached, or a sandbox around us set one",
            "run staddle outside that sandbox",
        )
    if facts.stage == "namespace" and facts.error in (errno.EINVAL, errno.ENOSYS):
        return Obstacle("this kernel has no user namespaces (CONFIG_USER_NS)", _LANDLOCK)
    if facts.stage == "namespace" and refused and facts.userns_clone == "0":
        return Obstacle(
            "user namespaces are refused to ordinary users: kernel.unprivileged_userns_clone is 0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if refused and facts.stage != "proc" and facts.apparmor not in (None, "0"):
        return Obstacle(
            "AppArmor restricts user namespaces: kernel.apparmor_restrict_unprivileged_userns is 1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with `userns,`",
        )
    if facts.stage == "proc" and refused and facts.covered:
        return Obstacle(
            f"no new /proc may be mounted, because parts of this one are covered ({covered}), as container "
            "runtimes do it",
            "start the container with --security-opt systempaths=unconfined (Docker) or unmask=ALL (Podman)",
        )
    if refused and facts.seccomp:
        what = {"namespace": "new namespaces", "map": "id maps"}.get(facts.stage, "mounts")
        return Obstacle(
            f"a seccomp filter around this process refuses {what}; container runtimes load one",
            "start the container (Docker, Podman) with the options that `staddle doctor --container` prints; "
            f"or {_LANDLOCK}",
        )
    if facts.stage == "namespace" and facts.error == errno.EPERM:
        return Obstacle(
            "a user namespace cannot be created: Operation not permitted, as the kernel answers in a chroot",
            f"enter that tree by pivot_root, as systemd-nspawn and container engines do; or {_LANDLOCK}",
        )
    what = {
        "namespace": "a user namespace cannot be created",
        "map": "a user namespace was created, but ids cannot be mapped in it",
        "mount": "a user namespace was created, but nothing can be mounted in it",
        "proc": "no new /proc can be mounted in a user namespace",
    }[facts.stage]
    return Obstacle(f"{what}: {os.strerror(facts.error)}", _LANDLOCK)


def observe(identity: int | None = None) -> UsernsFacts:
    """Try it in a child that changes nothing outside itself, as uid and gid `identity` if given."""
    from ..interrupts import uninterrupted  # not in a process that only makes namespaces

    stage, error = uninterrupted(lambda: _attempt(identity))
    return UsernsFacts(
        stage,
        error,
        seccomp=b"\nSeccomp:\t2" in _read("/proc/self/status"),
        userns_clone=_sysctl("kernel/unprivileged_userns_clone"),
        apparmor=_sysctl("kernel/apparmor_restrict_unprivileged_userns"),
        maximum=_sysctl("user/max_user_namespaces"),
        covered=_mounted_below_proc(),
    )


def _attempt(identity: int | None) -> tuple[Stage, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _tell(writing, lambda told: _steps(identity, told))
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    reap(child)
    if len(told) < 2:
        return "namespace", errno.EIO
    return _STAGES[told[0]], told[1]


def _tell(writing: int, attempt: Callable[[list[int]], None]) -> NoReturn:
    """Run `attempt` in this forked child and write the step it reached and its error."""
    told = [1, 0]
    try:
        attempt(told)
        told = [0, 0]
    except OSError as error:
        told[1] = min(error.errno or errno.EIO, 255)
    except BaseException:
        told[1] = errno.EIO
    finally:
        os.write(writing, bytes(told))
        os._exit(0)


def _steps(identity: int | None, told: list[int]) -> None:
    if identity is not None:
        become(identity, identity)
        dumpable(True)  # the change of ids made us undumpable, and /proc/self root's
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", _ALL)
    told[0] = 2
    map_ids(uid, gid, 0, 0)
    told[0] = 3
    mount(None, "/", flags=MS_REC | MS_SLAVE)
    mount("tmpfs", "/tmp", "tmpfs", flags=MS_NOSUID | MS_NODEV)
    told[0] = 4
    # The next child is the first process of the new pid namespace, and may mount its /proc.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(writing, lambda _: mount("proc", "/proc", "proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC))
    os.close(writing)
    answer = os.read(reading, 2)
    os.waitpid(child, 0)
    if answer[:1] != b"\0":
        raise OSError(answer[1] if len(answer) == 2 else errno.EIO, "proc")


def map_ids(uid: int, gid: int, inside_uid: int, inside_gid: int) -> None:
    """Map these ids, and no others, to our own in the new user namespace."""
    write_maps(own(""), uid, gid, inside_uid, inside_gid)


def write_maps(process: str, uid: int, gid: int, inside_uid: int, inside_gid: int) -> None:
    """Map ids for the process with this directory in /proc."""
    lines = (
        ("setgroups", "deny"),
        ("uid_map", f"{inside_uid} {uid} 1"),
        ("gid_map", f"{inside_gid} {gid} 1"),
    )
    for name, text in lines:
        fd = os.open(f"{process}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def is_restricted() -> bool:
    """Whether AppArmor withholds capabilities in user namespaces of unprivileged processes."""
    return _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1"


def reap(child: int) -> None:
    """Wait for a child of ours, even if the host program reaps all children."""
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # the host program reaps every child itself


def _mounted_below_proc() -> tuple[str, ...]:
    points = [line.split(b" ")[4] for line in _read("/proc/self/mountinfo").splitlines()]
    own = (b"/proc/sys/fs/binfmt_misc",)  # mounted by systemd on any host; hides nothing
    return tuple(sorted({os.fsdecode(p) for p in points if p.startswith(b"/proc/") and p not in own}))


def _sysctl(name: str) -> str | None:
    return _read(f"/proc/sys/{name}").decode(errors="replace").strip() or None


def _read(path: str) -> bytes:
    from .fileio import read_if_there  # not in a process that only makes namespaces

    return read_if_there(path)
