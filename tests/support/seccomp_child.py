"""Runs functions in children of the test process, under a filter or without, and brings the answers back."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from staddle.linux import seccomp, syscalls

TREE = Path(__file__).parents[2]
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
NOBODY = 65534
INSIDE = 1000  # what that user is called in namespaces of his own
# user, mount, pid, uts, ipc, network
NAMESPACES = 0x1000_0000 | 0x0002_0000 | 0x2000_0000 | 0x0400_0000 | 0x0800_0000 | 0x4000_0000


#: Read now: a child that has become nobody may not be able to enter the directory of this tree.
PROGRAMS = {profile: seccomp.program(profile) for profile in seccomp.PROFILES}


class Killed(Exception):
    """The child ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


def in_child(function: Callable[[], Any]) -> Any:
    """What `function` returns, called in a forked child. Its exceptions come back as they are."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's own time limit is not ours
            signal.alarm(60)
            try:
                result = (True, function())
            except OSError as error:
                result = (False, OSError(error.errno, error.strerror))
            except BaseException:
                result = (False, AssertionError(traceback.format_exc()))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise Killed(os.WTERMSIG(status))
    succeeded, value = pickle.loads(answer)  # noqa: S301 - our own child wrote it
    if not succeeded:
        raise value
    return value


def confine(profile: str | None, flags: int = 0) -> int:
    """Put this process under the filter; None is the control without one."""
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return 0 if profile is None else seccomp.load(PROGRAMS[profile], flags)


def under(profile: str | None, function: Callable[[], Any]) -> Any:
    """What `function` returns in a child that has the filter."""

    def confined() -> Any:
        confine(profile)
        return function()

    return in_child(confined)


def become_ordinary() -> None:
    """Give up root, so that what gets past a filter has no power over the machine."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self stays root's


def in_namespaces(function: Callable[[], Any]) -> Any:
    """What `function` returns as PID 1 of namespaces of its own, all-powerful there and nobody outside."""

    def outside() -> Any:
        become_ordinary()
        user, group = os.geteuid(), os.getegid()
        syscalls.call("unshare", NAMESPACES)
        Path("/proc/self/uid_map").write_text(f"{INSIDE} {user} 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{INSIDE} {group} 1")
        return in_child(function)

    return in_child(outside)


def answers(profile: str | None, calls: Sequence[tuple[str, tuple[int, ...]]]) -> list[int]:
    """What the kernel says to each call: minus the error, or 0.

    Each is made by a process of its own, in namespaces where it is all-powerful, by a user who
    is nobody outside: there most calls get far enough to show a difference, and what gets
    through changes nothing of the machine. The control runs in exactly the same place. They are
    forked by a program of its own, which is small.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tests.support.seccomp_child"],
        input=pickle.dumps((profile, calls)),
        env={"PYTHONPATH": ":".join(map(str, (TREE, TREE / "src")))},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answered: list[int] = pickle.loads(done.stdout)  # noqa: S301 - our own child wrote it
    return answered


def _answers(profile: str | None, calls: Sequence[tuple[str, tuple[int, ...]]]) -> list[int]:
    def first_process() -> list[int]:
        assert os.getpid() == 1
        return under(profile, lambda: [_answer(name, arguments, profile) for name, arguments in calls])

    return in_namespaces(first_process)


def _answer(name: str, arguments: tuple[int, ...], profile: str | None) -> int:
    number = syscalls.number(name)
    assert number is not None
    # Some calls wait for something when they are allowed; a filter answers at once, on any machine.
    return raw(number, arguments, 0.3 if profile is None else 30.0)


def raw(number: int, arguments: tuple[int, ...], seconds: float = 30.0) -> int:
    """Make a call by number in a child, which has some seconds for it, and say minus the error, or 0."""

    def make() -> int:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        me = os.getpid()
        result = LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
        if result == 0 and syscalls.call("getpid") != me:
            os._exit(0)  # the call was a clone, and this is the clone
        return -ctypes.get_errno() if result < 0 else 0

    try:
        return in_child(make)
    except Killed as killed:
        return -1000 - killed.signal


def said(answer: int) -> str:
    """An answer for people."""
    return errno.errorcode.get(-answer, str(answer)) if answer < 0 else "success"


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(_answers(*pickle.load(sys.stdin.buffer))))  # noqa: S301 - our parent
