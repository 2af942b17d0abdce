"""Test whether Landlock can confine here: confine a shell and let it try forbidden operations."""

from __future__ import annotations

import os
import select
import time

from ..._value import Value
from ...enforcement import Probe
from ...errors import StaddleError
from ...interrupts import uninterrupted
from ...linux import landlock as kernel
from ...linux import seccomp
from ...linux.process import SIGKILL, capabilities
from ...linux.syscalls import architecture
from . import rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...ipc.exec_spec import ExecSpec
    from ...launch.contract import Launch

#: The shell prints a line for each forbidden operation that works, and for each missing setup step.
_TRY = """
if { true < /etc/passwd; } 2>/dev/null; then echo 'a file that was not granted can be read'; fi
if { true >> "$1"; } 2>/dev/null; then echo 'a file that was not granted can be written'; fi
if [ "$2" = scoped ] && kill -0 "$PPID" 2>/dev/null; then echo 'a process outside can be signalled'; fi
while read -r key value; do
    case "$key $value" in
        'NoNewPrivs: 0') echo 'no_new_privs is not set' ;;
        'Seccomp: 0') echo 'the system call filter is not on' ;;
        'CapEff: 0000000000000000' | 'CapPrm: 0000000000000000') ;;
        CapEff:* | CapPrm:*) echo 'capabilities are left' ;;
    esac
done < /proc/self/status
echo tried
"""
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache")
_PATIENCE = 20.0

#: The capabilities that root needs to become another user. Root in a container has them.
_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8}
#: The capability to show files with another owner.
_MOUNTS = 21  # CAP_SYS_ADMIN


#: A word of a problem, and its fix.
_FIXES = {
    "mount namespace": "run staddle as an ordinary user, who needs none, or allow root to make one",
    "filter": "run staddle outside of what filters its system calls, or start the container with the options "
    "that `staddle doctor --container` prints",
}


class Findings(Value):
    """The result of the probe. `uid` is the id of root's command, -1 for an ordinary user.

    `can_mount`: the command gets a mount namespace that shows its files as its own, which root in a container
    may not make. `stays_root` is the reason why root's command keeps the id 0; empty if it does not.
    """

    probe: Probe
    abi: int = 0
    uid: int = -1
    hides_processes: bool = False
    can_mount: bool = False
    stays_root: str = ""


def find_out(name: str) -> Findings:
    """Probe in a child process. Never raises."""
    try:
        architecture()
        abi = kernel.abi()
        if not abi:
            return Findings(Probe(name, False, kernel.why_not(), _how_to_enable()))
        uid, why = _unprivileged_uid() if os.geteuid() == 0 else (-1, "")
        hides = mounts = uid >= 0 and bool(capabilities()[0] >> _MOUNTS & 1)
        problem = _attempt(abi, uid, hides, mounts)
        if problem and "processes cannot be hidden" in problem:
            hides = False  # a container covers parts of /proc, so the kernel refuses a new /proc mount
            problem = _attempt(abi, uid, hides, mounts)
        if problem and mounts and "mount namespace" in problem:
            hides = mounts = False  # a system call filter refuses it
            problem = _attempt(abi, uid, hides, mounts)
        fix = next((fix for word, fix in _FIXES.items() if word in problem), "")
        return Findings(Probe(name, not problem, problem, fix, f"ABI {abi}"), abi, uid, hides, mounts, why)
    except (OSError, StaddleError) as error:
        return Findings(Probe(name, False, str(error)))


def _how_to_enable() -> str:
    return "use Linux 6.12 or newer, with landlock in CONFIG_LSM or in lsm= on the kernel command line"


def _unprivileged_uid() -> tuple[int, str]:
    """An id for root's command to become, or why there is none."""
    from ...linux.idmaps import unused_id_here

    effective = capabilities()[0]
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        return -1, f"root without the capabilities {', '.join(missing)} cannot become another user"
    uid = unused_id_here()
    return (-1, "in this user namespace there is no unused user id") if uid is None else (uid, "")


def _attempt(abi: int, uid: int, hides: bool, mounts: bool) -> str:
    """Confine a shell; return the problem in words, or an empty string."""
    from ...launch.contract import helper_launch

    started = helper_launch(_instructions(abi, uid, hides, mounts))
    status = -1 if started.status is None else started.status
    try:
        said, written = uninterrupted(lambda: _run(started, status))
    finally:
        started.close()
        os.close(status)
    failure = started.failure(said)
    if failure:
        return failure
    lines = written.decode("utf-8", "replace").splitlines()
    if lines == ["tried"]:
        return ""
    return "; ".join(line for line in lines if line != "tried") or "a confined shell did not run"


def _instructions(abi: int, uid: int, hides: bool, mounts: bool) -> ExecSpec:
    from ...ipc.exec_spec import ExecSpec

    kept, _ = kernel.weaken(kernel.EVERYTHING, abi)
    readable = {os.path.realpath(path) for path in _SYSTEM if os.path.exists(path)}
    rows = [(path, kernel.READ) for path in sorted(readable)]
    rows.append(("/proc", rules.PROC))
    # Add the rules of every run, so that the probe finds a rule that fails on this host.
    rows += [(rule.path, rule.rights) for rule in rules.for_devices() if os.path.exists(rule.path)]
    scoped = "scoped" if "signal" in kept else ""
    return ExecSpec(
        argv=(b"/bin/sh", b"-c", _TRY.encode(), b"sh", os.fsencode(__file__), scoped.encode()),
        environment=(b"PATH=/usr/bin:/bin",),
        directory=b"/",
        supervise=1,
        uid=uid,
        gid=uid,
        empty=((b"/tmp", 0o1777, 1 << 20),) if mounts else (),
        processes_hidden=int(hides),
        handled_fs=kernel.bits(kept, "fs"),
        handled_net=kernel.bits(kept, "net"),
        scoped=kernel.bits(kept, "scope"),
        rules=tuple((os.fsencode(path), kernel.bits(rights & kept, "fs"), 0) for path, rights in rows),
        filter=seccomp.program("landlock"),
        brokered=1,
    )


def _run(started: Launch, status: int) -> tuple[bytes, bytes]:
    """Start the helper and wait for it: (status of the helper, output of the shell)."""
    out, write = os.pipe2(os.O_CLOEXEC)
    # Spawn, not fork: the host program may have threads and gigabytes of memory.
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in started.pass_fds),
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, write, 1),
        (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
    ]
    try:
        pid = os.posix_spawn(started.argv[0], started.argv, started.env, file_actions=actions)
        started.close()
        os.close(write)
        write = -1
        heard = _hear((status, out), time.monotonic() + _PATIENCE)
        if heard is None:
            os.kill(pid, SIGKILL)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass  # the host program reaps every child itself
        return heard or (b"3 the helper did not answer", b"")
    finally:
        for fd in (out, write):
            if fd >= 0:
                os.close(fd)


def _hear(fds: tuple[int, int], deadline: float) -> tuple[bytes, bytes] | None:
    """Read both until both are closed; None after the deadline."""
    heard = dict.fromkeys(fds, b"")
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    left = len(fds)
    while left:
        events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not events:
            return None
        for fd, _ in events:
            data = os.read(fd, 65536)
            heard[fd] += data
            if not data:
                poll.unregister(fd)
                left -= 1
    return heard[fds[0]], heard[fds[1]]
