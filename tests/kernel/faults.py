"""Start a sandbox in which one system call, of our choice, fails. And again, for every call that matters.

    python -m tests.kernel.faults '{"place": "/var/tmp/x"}'        prints what happened as JSON

A seccomp filter sends the calls of the launcher, and of everything it starts, to us; all go
on but one. (strace can inject faults, too, but counts calls per process, so that nothing in
the sandbox's first process can be hit that its launcher did before.) A program of its own,
because it makes itself the parent of every orphan: what is left afterwards is found.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seccompy.notify import Listener, RespFlag

from staddle.backends.base import Launch
from staddle.backends.namespaces import Namespaces
from staddle.linux import process, seccomp
from staddle.linux.syscalls import NUMBERS, architecture
from staddle.policy.network import Network
from staddle.policy.plan import Variable
from tests.kernel.fresh_roots import system
from tests.unit.layout.plans import WHY, guard, hidden, write

#: Calls that the table of the filter does not need: (aarch64, x86_64).
MORE = {
    "setresuid": (147, 117),
    "setresgid": (149, 119),
    "setgroups": (159, 116),
    "setsid": (157, 112),
    "execve": (221, 59),
    "write": (64, 1),
    "chdir": (49, 80),
    "symlinkat": (36, 266),
}
WATCHED = (
    *("unshare", "setns", "clone", "clone3", "mount", "umount2", "pivot_root", "mount_setattr", "open_tree"),
    *("move_mount", "mkdirat", "symlinkat", "sethostname", "socket", "ioctl", "prctl", "capset", "seccomp"),
    *(
        "setresuid",
        "setresgid",
        "setgroups",
        "setsid",
        "chdir",
        "prlimit64",
        "close_range",
        "write",
        "execve",
    ),
    *("landlock_create_ruleset", "landlock_restrict_self"),
)
COLUMN = ("aarch64", "x86_64").index(architecture())
NAMES = {{**NUMBERS, **MORE}[name][COLUMN]: name for name in WATCHED}
_SIOCSIFFLAGS, _PR_CAPBSET_DROP = 0x8914, 24
_WRITTEN = ("pipe", "uid_map", "gid_map", "setgroups")
_LIMITS = (process.RLIMIT_CORE, process.RLIMIT_MEMLOCK, process.RLIMIT_NICE, process.RLIMIT_RTPRIO)
#: Which arguments tell one call site from another.
TELLING = {"unshare": (0,), "mount": (3,), "mount_setattr": (2,), "setresuid": (0,), "prlimit64": (1,)}
SECONDS = 20.0


@dataclass
class Run:
    """One start: the calls of each process, in the order in which the processes appeared."""

    fail: tuple[int, int] | None
    calls: list[list[str]] = field(default_factory=list)
    failed: str = ""
    code: int = 0
    out: str = ""
    why: str | None = None
    left: list[int] = field(default_factory=list)


def watched_calls() -> bytes:
    """The filter that asks us about every call in WATCHED."""
    rows = [(0x20, 0, 0, 0), *((0x15, len(NAMES) - at, 0, nr) for at, nr in enumerate(NAMES))]
    rows += [(6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x7FC00000)]
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def site(name: str, args: tuple[int, ...], pid: int) -> str:
    """A name for the place in our code that makes this call, "" when it is none of ours."""
    low = [arg & 0xFFFFFFFF for arg in args]
    if name == "write":
        try:
            where = os.readlink(f"/proc/{pid}/fd/{low[0]}").split(":")[0].rsplit("/", 1)[-1]
        except OSError:
            where = "pipe"  # of a process that nobody may look into
        return f"write {where}" if where in _WRITTEN else ""
    if name == "ioctl":
        return "ioctl loopback" if low[1] == _SIOCSIFFLAGS else ""
    if name == "prlimit64" and low[1] not in _LIMITS:
        return ""  # the C library asks for its stack
    if name == "prctl":
        return f"prctl {low[0]}" + ("" if low[0] == _PR_CAPBSET_DROP else f" {low[1]}")
    if name in ("clone", "clone3"):
        return "fork"
    return " ".join([name, *(hex(low[at]) for at in TELLING.get(name, ()))])


def run(launch: Launch, fail: tuple[int, int] | None, *, here: bool = False) -> Run:
    """Start it, with the call `fail` = (which process, which of its calls) failing.

    `here`: as our command line does it, which needs no launcher.
    """
    done = Run(fail)
    ours, theirs = socket.socketpair()
    output, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(launch, theirs, out, here)
    theirs.close()
    os.close(out)
    launch.close()
    _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    with Listener(descriptor) as listener:
        status = _answer(listener, pid, done)
    done.code = os.waitstatus_to_exitcode(status)
    done.left = _orphans()
    with os.fdopen(output) as file:
        done.out = file.read()
    assert launch.status is not None
    done.why = launch.failure(os.read(launch.status, 4096))
    os.close(launch.status)
    return done


def _become(launch: Launch, channel: socket.socket, out: int, here: bool) -> None:
    """In the child: put the filter on, hand over its listener, be the launcher."""
    code = 99
    try:
        signal.alarm(int(SECONDS))
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(launch.cwd)
        for fd in launch.pass_fds:
            os.set_inheritable(fd, True)
        process.no_new_privs()
        listener = seccomp.load(watched_calls(), seccomp.NEW_LISTENER | seccomp.WAIT_KILLABLE)
        socket.send_fds(channel, [b"x"], [listener])
        os.close(listener)
        if here and launch.here is not None:
            first = launch.here(lambda: None)
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        else:
            os.execve(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - no shell, on purpose
    except OSError as error:
        code = 3
        os.write(int(launch.pass_fds[0]), f"3 {error}".encode())
    finally:
        os._exit(code)


def _answer(listener: Listener, launcher: int, done: Run) -> int:
    order: list[int] = []
    poll = select.poll()
    poll.register(listener.fileno(), select.POLLIN)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(launcher, os.WNOHANG)
        if ended:
            return status
        for _, event in poll.poll(20):
            if not event & select.POLLIN:
                poll.unregister(listener.fileno())
                continue
            try:
                asked = listener.recv()
                listener.respond(asked.id, **_verdict(asked, order, done))
            except OSError:
                continue  # it died while we looked
            except Exception as error:
                if "ENOENT" not in str(error) and getattr(error, "errno", 0) != errno.ENOENT:
                    raise
    raise TimeoutError("the launcher does not end")


def _verdict(asked: Any, order: list[int], done: Run) -> dict[str, Any]:
    go_on = {"flags": RespFlag.CONTINUE}
    name = site(NAMES[asked.nr], asked.args, asked.pid)
    if not name:
        return go_on
    if asked.pid not in order:
        order.append(asked.pid)
        done.calls.append([])
    who = order.index(asked.pid)
    done.calls[who].append(name)
    if (who, len(done.calls[who]) - 1) == done.fail:
        done.failed = name
        return {"error": errno.EPERM}
    return go_on


def _orphans() -> list[int]:
    """Who is still there a moment later; they are ours to end."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
        except ChildProcessError:
            return []
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)
        os.waitpid(int(pid), 0)
    return [int(pid) for pid in children]


def chosen(calls: list[list[str]]) -> list[tuple[int, int]]:
    """The first and the last call from each place, in every process, up to the command's own exec."""
    found: list[tuple[int, int]] = []
    command = next(who for who, made in enumerate(calls) if "seccomp" in made)
    for who, made in enumerate(calls[: command + 1]):
        start = 1 if made[0] == "execve" and who == 0 else 0  # our own exec of the launcher
        end = made.index("execve", made.index("seccomp")) + 1 if who == command else len(made)
        for place in sorted(set(made[start:end])):
            at = [index for index in range(start, end) if made[index] == place]
            found += [(who, index) for index in sorted({at[0], at[-1]})]
    return found


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Sweep over one plan."""
    process.subreaper()
    backend = Namespaces()
    work = asked["place"]
    plan = system(
        grants=(write(work),),
        hidden=(hidden(f"{work}/secret"),),
        guards=(guard(f"{work}/.git"),),
        network=getattr(Network, asked.get("network", "deny"))(),
        variables=(Variable("A", "b", WHY),),
        cwd=work,
    )

    def start(fail: tuple[int, int] | None) -> Run:
        launch = backend.prepare(plan, ("/bin/sh", "-c", "echo it ran; touch made"))
        return run(launch, fail, here=asked.get("here", False))

    start(None)  # the first time an interpreter may write what it compiled
    whole = start(None)
    assert whole.out == "it ran\n", whole
    Path(work, "made").unlink()
    mounts = Path("/proc/self/mountinfo").read_bytes()
    runs = []
    for fail in chosen(whole.calls):
        done = start(fail)
        runs.append(
            {
                "who": fail[0],
                "failed": done.failed,
                "code": done.code,
                "out": done.out,
                "why": done.why,
                "left": done.left,
                "made": Path(work, "made").exists(),
            }
        )
        Path(work, "made").unlink(missing_ok=True)
    after = Path("/proc/self/mountinfo").read_bytes()
    return {"runs": runs, "calls": whole.calls, "mounts_changed": mounts != after}


def sweep(place: str, **asked: Any) -> dict[str, Any]:
    """Run this program."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernel.faults", json.dumps({"place": place, **asked})],
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/src", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
