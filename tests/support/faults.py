"""Start a sandbox in which one system call, of our choice, fails. And again, for every call that matters.

    python -m tests.support.faults '{"place": "/var/tmp/x"}'        prints what happened as JSON

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seccompy.notify import Listener, RespFlag

from staddle.backends.namespaces import Namespaces
from staddle.errors import LaunchFailed
from staddle.launch.contract import Launch
from staddle.linux import process, seccomp
from staddle.linux.syscalls import NUMBERS, architecture
from staddle.policy.network import Network
from staddle.policy.plan import Variable
from tests.support.fresh_roots import system
from tests.unit.mounts.plans import WHY, guard, hidden, write

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
    "pipe2": (59, 293),
    "signalfd4": (74, 289),
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
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
#: In what a filter sees of a call: the lower half of it, on the machines that we run on.
_SECOND_ARGUMENT = 16 + 8
_SIOCSIFFLAGS, _PR_CAPBSET_DROP = 0x8914, 24
_AF_NETLINK, _SOCK_DIAG = 16, 4
_WRITTEN = ("pipe", "uid_map", "gid_map", "setgroups")
_LIMITS = (process.RLIMIT_CORE, process.RLIMIT_MEMLOCK, process.RLIMIT_NICE, process.RLIMIT_RTPRIO)
#: Which arguments tell one call site from another.
TELLING = {
    "unshare": (0,),
    "mount": (3,),
    "mount_setattr": (2,),
    "setresuid": (0,),
    "prlimit64": (1,),
    "fsconfig": (1,),
}
SECONDS = 20.0

#: One call: which process, in the order in which they appear, and which of its calls.
Call = tuple[int, int]


def numbers(names: Sequence[str]) -> dict[int, str]:
    """The names of these calls by their numbers here."""
    return {number: name for name in names if (number := {**NUMBERS, **MORE}[name][COLUMN]) is not None}


def watching(calls: dict[int, str]) -> bytes:
    """The filter that asks us about every one of these calls; of `ioctl`, about the one of ours.

    An interpreter makes an ioctl for each file that it opens: a third of all questions.
    """
    ioctl = [nr for nr, name in calls.items() if name == "ioctl"]
    plain = [nr for nr in calls if nr not in ioctl]
    tested = [*plain, *ioctl]
    # After the tests: allow; the argument of ioctl and its test; allow; ask.
    rows = [(0x20, 0, 0, 0)]
    for at, nr in enumerate(tested):
        rows.append((0x15, len(tested) - at + (3 if nr in plain else 0), 0, nr))
    rows += [(6, 0, 0, _ALLOW), (0x20, 0, 0, _SECOND_ARGUMENT), (0x15, 1, 0, _SIOCSIFFLAGS)]
    rows += [(6, 0, 0, _ALLOW), (6, 0, 0, _ASK)]
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def watched(names: Sequence[str], channel: socket.socket) -> None:
    """From now on the other end of `channel` is asked about these calls of this process and its children."""
    process.no_new_privs()
    listener = seccomp.load(watching(numbers(names)), seccomp.NEW_LISTENER | seccomp.WAIT_KILLABLE)
    socket.send_fds(channel, [b"x"], [listener])
    os.close(listener)


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
    if name == "socket" and (low[0], low[2]) == (_AF_NETLINK, _SOCK_DIAG):
        return ""  # a supervisor measures, at any time, and may fail to: see test_netlink.py
    if name == "prlimit64" and low[1] not in _LIMITS:
        return ""  # the C library asks for its stack
    if name == "prctl":
        return f"prctl {low[0]}" + ("" if low[0] == _PR_CAPBSET_DROP else f" {low[1]}")
    if name in ("clone", "clone3"):
        return "fork"
    return " ".join([name, *(hex(low[at]) for at in TELLING.get(name, ()))])


class Watch:
    """The calls of processes that have the filter on, and the one that is to fail."""

    def __init__(self, listener: Listener, names: Sequence[str] = WATCHED) -> None:
        self._listener, self._names = listener, numbers(names)
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._order: list[int] = []
        self._fail: Call | None = None
        self.calls: list[list[str]] = []
        self.failed = ""

    def begin(self, fail: Call | None, known: Sequence[int] = ()) -> None:
        """Count anew, `known` processes first; `fail` is to fail."""
        self._order, self._fail = list(known), fail
        self.calls, self.failed = [[] for _ in known], ""

    def answer(self, is_over: Callable[[], bool], over: int) -> None:
        """Let them go on, but for the one call, until it is over; the descriptor `over` tells of that."""
        until = time.monotonic() + SECONDS
        self._poll.register(over, select.POLLIN)
        try:
            self._answer(is_over, over, until)
        finally:
            self._poll.unregister(over)

    def _answer(self, is_over: Callable[[], bool], over: int, until: float) -> None:
        while not is_over():
            if time.monotonic() > until:
                raise TimeoutError(f"what was started does not end; it failed at {self.failed!r}")
            for fd, event in self._poll.poll(20):
                if fd == over:
                    continue
                if not event & select.POLLIN:
                    self._poll.unregister(self._listener.fileno())
                    continue
                try:
                    asked = self._listener.recv()
                    self._listener.respond(asked.id, **self._verdict(asked))
                except OSError:
                    continue  # it died while we looked
                except Exception as error:
                    if "ENOENT" not in str(error) and getattr(error, "errno", 0) != errno.ENOENT:
                        raise

    def _verdict(self, asked: Any) -> dict[str, Any]:
        go_on = {"flags": RespFlag.CONTINUE}
        name = site(self._names[asked.nr], asked.args, asked.pid)
        if not name:
            return go_on
        who = self._who(asked.pid)
        self.calls[who].append(name)
        if (who, len(self.calls[who]) - 1) == self._fail:
            self.failed = name
            return {"error": errno.EPERM}
        return go_on

    def _who(self, thread: int) -> int:
        if thread in self._order:
            return self._order.index(thread)
        try:
            status = Path(f"/proc/{thread}/status").read_text()
            pid = int(status.split("Tgid:")[1].split()[0])
        except OSError:
            pid = thread  # it has ended
        if pid not in self._order:
            self._order.append(pid)
            self.calls.append([])
        return self._order.index(pid)


# ---------------------------------------------------------------- a sandbox for one command


@dataclass
class Run:
    """One start: the calls of each process, in the order in which the processes appeared."""

    fail: Call | None
    calls: list[list[str]] = field(default_factory=list)
    failed: str = ""
    code: int = 0
    out: str = ""
    why: str | None = None
    left: list[int] = field(default_factory=list)


def run(launch: Launch, fail: Call | None, *, here: bool = False) -> Run:
    """Start it, with the call `fail` failing.

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
    ended: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append(status)
        return bool(found)

    ending = os.pidfd_open(pid)
    with Listener(descriptor) as listener:
        watch = Watch(listener)
        watch.begin(fail)
        watch.answer(has_ended, ending)
    os.close(ending)
    done.calls, done.failed = watch.calls, watch.failed
    done.code = os.waitstatus_to_exitcode(ended[0])
    done.left = orphans()
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
        watched(WATCHED, channel)
        if here and launch.here is not None:
            first = launch.here(lambda: None)
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        else:
            os.execve(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - no shell, on purpose
    except (OSError, LaunchFailed) as error:
        code = 3
        os.write(int(launch.pass_fds[0]), f"3 {error}".encode())
    finally:
        os._exit(code)


def orphans() -> list[int]:
    """Who is still there a moment later; they are ours to end."""
    until = time.monotonic() + 20
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


def places(made: Sequence[str], start: int, end: int, *, once: bool = False) -> list[int]:
    """The first and the last call from each place, of those in between; with `once`, the first."""
    found: list[int] = []
    for place in sorted(set(made[start:end])):
        at = [index for index in range(start, end) if made[index] == place]
        found += sorted({at[0], at[0 if once else -1]})
    return found


def chosen(calls: list[list[str]], *, once: bool) -> list[Call]:
    """Those of every process, up to the command's own exec."""
    found: list[Call] = []
    # The network gateway, if there is one, appears before it, and has a filter, too.
    command = max(who for who, made in enumerate(calls) if "seccomp" in made)
    for who, made in enumerate(calls[: command + 1]):
        start = 1 if made[0] == "execve" and who == 0 else 0  # our own exec of the launcher
        end = made.index("execve", made.index("seccomp")) + 1 if who == command else len(made)
        found += [(who, index) for index in places(made, start, end, once=once)]
    return found


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Sweep over one plan."""
    process.subreaper()
    backend = Namespaces()
    work = asked["place"]
    network = Network.loopback([9]) if "ports" in asked else getattr(Network, asked.get("network", "deny"))()
    plan = system(
        grants=(write(work),),
        hidden=(hidden(f"{work}/secret"),),
        guards=(guard(f"{work}/.git"),),
        network=network,
        variables=(Variable("A", "b", WHY),),
        cwd=work,
    )

    def start(fail: Call | None) -> Run:
        launch = backend.prepare(plan, ("/bin/sh", "-c", "echo it ran; touch made"))
        return run(launch, fail, here=asked.get("here", False))

    start(None)  # the first time an interpreter may write what it compiled
    whole = start(None)
    assert whole.out == "it ran\n", whole
    Path(work, "made").unlink()
    before = mounts()
    runs = []
    for fail in chosen(whole.calls, once=asked.get("once", False)):
        if "ports" in asked and fail[0] > 1 and whole.calls[fail[0]][fail[1]] != "socket":
            continue  # the rest is the same as without
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
    return {"runs": runs, "calls": whole.calls, "mounts_changed": mounts() != before}


def mounts() -> list[str]:
    """The mounts of root's own mount namespace. An ordinary user can add none to the host's."""
    return Path("/proc/self/mountinfo").read_text().splitlines() if os.geteuid() == 0 else []


def sweep(place: str, *, program: str = "faults", **asked: Any) -> dict[str, Any]:
    """Run this program, or another one of the same kind, where no mount of another test shows."""
    root = Path(__file__).parents[2]
    apart = ["unshare", "--mount", "--propagation", "private"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*apart, sys.executable, "-m", f"tests.support.{program}", json.dumps({"place": place, **asked})],
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/src", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
