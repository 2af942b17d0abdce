"""What a copy of a running state does with what must not be copied blindly: tried on staddle, in each of its ways.

A row prepares a state, copies it, and looks twice: at the copy and at what it was copied from (or at the copy made
again). `right` says whether what was seen is what is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from staddle import Sandbox
from staddle.errors import StaddleError

FORK, RESTORE, TWIN = "fork", "restore", "interpreter twin"


@dataclass(frozen=True, slots=True)
class Hazard:
    """One thing that a copy can get wrong."""

    hazard: str
    way: str
    policy: str
    prepare: str
    look: str
    right: Callable[[str, str], bool]
    #: Where the tests hold it, "FILE::NAME"; "" where only this program looks.
    test: str = ""


def _equal(one: str, other: str) -> bool:
    return one == other != ""


def _different(one: str, other: str) -> bool:
    return one != other and "" not in (one, other)


def _both(text: str) -> Callable[[str, str], bool]:
    return lambda one, other: one == other == text


_COPIED, _TWINS = "tests/kernel/test_sandbox_copied.py", "tests/kernel/test_interpreter_twins.py"
_ENDS = f"{_COPIED}::test_a_restore_ends_what_runs"
_GOES_ON = f"{_COPIED}::test_a_snapshot_is_of_files_and_shells_and_a_fork_goes_on"
_COMES_BACK = f"{_TWINS}::test_variables_files_and_chance_come_back_as_often_as_asked"
_ANEW = f"{_TWINS}::test_a_fork_begins_anew_and_says_so"
_REASON = f"{_TWINS}::test_the_reason_is_told_if_it_cannot_continue"

HAZARDS = (
    # Two forks, or two restores, of one shell: each looks for itself.
    Hazard("randomness of the shell", FORK, "each copy draws its own numbers", "echo $RANDOM", "echo $RANDOM$RANDOM", _different),
    Hazard("randomness of the shell", RESTORE, "each restore draws new numbers", "echo $RANDOM", "echo $RANDOM$RANDOM", _different),
    Hazard("randomness of the kernel", FORK, "each copy draws its own numbers", ":", "head -c 16 /dev/urandom | od -An -tx1", _different),
    Hazard("randomness of the kernel", RESTORE, "each restore draws new numbers", ":", "head -c 16 /dev/urandom | od -An -tx1", _different),
    Hazard("randomness of Python, seeded", TWIN, "it continues as at the snapshot, so that a run can be repeated",
           "import random; random.seed(1); random.random()", "random.random()", _equal, _COMES_BACK),
    Hazard("randomness of Python, of the kernel", TWIN, "each restore draws new numbers", "import os", "os.urandom(16).hex()", _different),
    Hazard("keys of `ssl` and `secrets`", TWIN, "each restore draws new numbers", "import secrets", "secrets.token_hex(16)", _different),
    Hazard("time", FORK, "the clock of the machine goes on", "echo $(( $(date +%s%N) )) >began", "test $(date +%s%N) -gt $(cat began) && echo later", _both("later")),
    Hazard("time", RESTORE, "the clock of the machine goes on", "echo $(( $(date +%s%N) )) >began", "test $(date +%s%N) -gt $(cat began) && echo later", _both("later")),
    Hazard("time", TWIN, "the clock goes on: intervals contain the time between", "import time; began = time.monotonic()", "time.monotonic() > began", _both("True")),
    Hazard("open files of the shell", FORK, "a new process has none of them: an error, and no shared offset", "exec 7>open; echo a >&7", "echo b >&7 || echo closed", _both("closed")),
    Hazard("open files of the shell", RESTORE, "closed, or the restored file (no page promises it)", "exec 7>open; echo a >&7",
           "echo b >&7 || echo closed; grep -q b open && echo restored || echo lost", lambda one, other: "lost" not in (one, other)),
    Hazard("open files", TWIN, "opened again by path, at the same offset", "open('lines', 'w').write('1\\n2\\n'); read = open('lines'); read.readline()", "read.readline()", _both("'2\\n'"), _COMES_BACK),
    Hazard("locks on files", FORK, "the copy does not have the lock, and its file is its own", "exec 8>lock; flock -n 8", "flock -n lock echo free || echo taken", _both("free")),
    Hazard("locks on files", RESTORE, "nobody has the lock: its holder ended", "exec 8>lock; flock -n 8", "flock -n lock echo free || echo taken", _both("free")),
    Hazard("locks of Python", TWIN, "a lock is as at the snapshot; a thread that would release it prevents the twin", "import threading; lock = threading.Lock(); lock.acquire()", "lock.locked()", _both("True")),
    Hazard("sockets", FORK, "a connection is not copied: programs do not continue in a fork", "exec 9<>/dev/tcp/127.0.0.1/1 || true; python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &", "(exec 9<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && echo open || echo refused", _both("refused")),
    Hazard("sockets", RESTORE, "a server is ended, its port is free", "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &", "(exec 9<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && echo open || echo refused", _both("refused"), _ENDS),
    Hazard("sockets", TWIN, "shared with the twin, documented: the other end is open after a restore", "import socket; a, b = socket.socketpair(); a.sendall(b'x')", "b.fileno() > 0", _both("True")),
    Hazard("programs in the background", FORK, "they stay with the original", "sleep 77 >/dev/null 2>&1 &", "pgrep -x sleep >/dev/null && echo runs || echo none", _both("none")),
    Hazard("programs in the background", RESTORE, "they are ended, and listed", "sleep 77 >/dev/null 2>&1 &", "pgrep -x sleep >/dev/null && echo runs || echo none", _both("none"), _ENDS),
    Hazard("children of the interpreter", TWIN, "no twin is made, and the reason is told", "import subprocess; child = subprocess.Popen(['sleep', '77'])", "'child' in globals()", _both("lost"), _REASON),
    Hazard("threads of the interpreter", TWIN, "no twin is made, and the reason is told", "import threading, time; threading.Thread(target=time.sleep, args=(77,), daemon=True).start(); kept = 1", "'kept' in globals()", _both("lost"), _REASON),
    Hazard("shared memory of the interpreter", TWIN, "no twin is made, and the reason is told", "import mmap; shared = mmap.mmap(-1, 4096)", "'shared' in globals()", _both("lost"), _REASON),
    Hazard("process ids", FORK, "a new process with an id of its own namespace; `$$` is right", ":", "test -d /proc/$$ && echo right", _both("right")),
    Hazard("process ids", RESTORE, "a new process; `$$` is right", ":", "test -d /proc/$$ && echo right", _both("right")),
    Hazard("process ids", TWIN, "another process: `os.getpid()` is right, a number kept in a variable is not", "import os; before = os.getpid()", "os.path.exists(f'/proc/{os.getpid()}') and os.getpid() != before", _both("True")),
    Hazard("temporary files", FORK, "each copy has its own", "echo t >/tmp/t", "echo x >>/tmp/t; cat /tmp/t | tr '\\n' ' '", _both("t x"), _GOES_ON),
    Hazard("temporary files", RESTORE, "as at the snapshot, again", "echo t >/tmp/t", "echo x >>/tmp/t; cat /tmp/t | tr '\\n' ' '", _both("t x"), _GOES_ON),
    Hazard("variables and functions of the shell", FORK, "copied, then each its own", "x=1; f() { echo f$x; }", "f; x=2", _both("f1"), _GOES_ON),
    Hazard("variables and functions of the shell", RESTORE, "as at the snapshot, again", "x=1; f() { echo f$x; }", "f; x=2", _both("f1"), _GOES_ON),
    Hazard("memory of the interpreter", TWIN, "as at the snapshot, as often as asked", "rows = [1]", "rows.append(2) or rows", _both("[1, 2]"), _COMES_BACK),
    Hazard("memory of the interpreter", "fork of an interpreter", "it begins anew, and the result says so", "rows = [1]", "'rows' in globals()", _both("lost"), _ANEW),
    Hazard("files in memory (/dev/shm)", FORK, "not copied, documented", "echo x >/dev/shm/x", "test -e /dev/shm/x && echo there || echo gone", _both("gone")),
)  # fmt: skip


def tried() -> list[dict[str, str]]:
    """What happens here, row by row."""
    rows = []
    for hazard in HAZARDS:
        try:
            one, other = _WAYS[hazard.way](hazard)
            seen = f"`{_short(one)}`, `{_short(other)}`"
            status = "as promised" if hazard.right(one, other) else "not as it should be"
        except StaddleError as error:
            seen, status = _short(str(error)), "could not run"
        rows.append(
            {
                "hazard": hazard.hazard,
                "way": hazard.way,
                "policy": hazard.policy,
                "seen": seen,
                "status": status,
                "test": hazard.test or "benchmarks/scorecard/forks.py",
            }
        )
    return rows


def _short(text: str) -> str:
    return " ".join(text.replace("`", " ").replace("|", " ").split())[:40]


def _said(sandbox: Sandbox, command: str) -> str:
    return sandbox.run(command, timeout=20).stdout.strip()


def _forked(hazard: Hazard) -> tuple[str, str]:
    with Sandbox() as sandbox:
        sandbox.run(hazard.prepare, timeout=20)
        forks = sandbox.fork(2)
        try:
            one, other = (_said(fork, hazard.look) for fork in forks)
        finally:
            for fork in forks:
                fork.close()
    return one, other


def _restored(hazard: Hazard) -> tuple[str, str]:
    with Sandbox() as sandbox:
        sandbox.run(hazard.prepare, timeout=20)
        point = sandbox.snapshot()
        found = []
        for _ in range(2):
            sandbox.restore(point)
            found.append(_said(sandbox, hazard.look))
    return found[0], found[1]


def _cell(sandbox: Sandbox, code: str) -> str:
    """The value of a cell; "lost" if it is the first after the variables were lost."""
    done = sandbox.python(code, timeout=20)
    return "lost" if done.lost else done.text or str(done.error or "")


def _continued(hazard: Hazard) -> tuple[str, str]:
    with Sandbox() as sandbox:
        sandbox.python(hazard.prepare, timeout=20)
        point = sandbox.snapshot(processes="interpreter")
        found = []
        for _ in range(2):
            sandbox.restore(point)
            found.append(_cell(sandbox, hazard.look))
            if found == ["lost"]:
                found.append("lost")
                break
    return found[0], found[1]


def _forked_interpreter(hazard: Hazard) -> tuple[str, str]:
    with Sandbox() as sandbox:
        sandbox.python(hazard.prepare, timeout=20)
        forks = sandbox.fork(2)
        try:
            one, other = (_cell(fork, hazard.look) for fork in forks)
        finally:
            for fork in forks:
                fork.close()
    return one, other


_WAYS: dict[str, Callable[[Hazard], tuple[str, str]]] = {
    FORK: _forked,
    RESTORE: _restored,
    TWIN: _continued,
    "fork of an interpreter": _forked_interpreter,
}
