"""Find the processes of a run of a shell, and end them.

A run is the execution of one command by a shell. Its processes are below the shell, and started with it. Jobs
of earlier commands are below the same shell and must survive. We tell them apart, from certain to likely, by
the pipes they print to, by their start times, and by their pids.

Ending goes in steps, timed by the host program. When its program is killed, a shell continues with the next
program of the list, or ignores the interruption. Its brake (agent_messages.py) prevents that. Without a
brake, the shell may start no more processes, and a fork that fails returns it to its prompt. That limit does
not bind root, and a filter around the agent may forbid to set it.
"""

from __future__ import annotations

import os
import struct
import time

from ...ipc.agent_messages import BRAKE, BRAKE_SIGNAL, HOLD, INTERRUPT, KILL, KILL_SHELL, TERMINATE, TIDY
from ...linux import process, procfs
from ...linux.fileio import read_if_there
from ...linux.process import split_stat, stat_fields
from ...linux.syscalls import call, ctypes, number
from .shell_files import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SIGCONT, SIGSTOP = 18, 19
_RLIMIT_NPROC = 6
#: Rounds of killing. A process that forks faster is ended by its limits, or with the sandbox.
_MOST_TURNS = 20
#: How often to check whether killed processes are dead, and the seconds between two checks: few at first,
#: because most processes end at once.
_MOST_WAITS, _SOON, _LATER, _FIRST = 120, 0.0002, 0.002, 20
#: Flag of a thread that is ending, and runs no more code (include/linux/sched.h).
_PF_EXITING = 4
#: Start times have a unit of 10 ms, so a process that seems as old as the run may be older.
_TICK = 1


class ProcessEntry:
    """A row of the process table."""

    def __init__(self, parent: int, started: int, state: bytes = b"S", job: tuple[int, int] = (0, 0)) -> None:
        """`job`: its session and its process group."""
        self.parent, self.started, self.job = parent, started, job
        self.dead, self.stopped = state in (b"Z", b"X"), state in (b"T", b"t")
        #: In an uninterruptible wait, so that only SIGKILL reaches it.
        self.waits = state == b"D"
        #: Whether it can run code. Otherwise the kernel may still be freeing its memory, which takes long.
        self.runs = not self.dead


#: The starter, a process of the agent's own above a program. It counts as dead.
HIDDEN: set[int] = set()
#: File servers, processes of the agent's own. The table does not contain them.
FILE_SERVERS: set[int] = set()
#: The table as last read: `signal` compares it to detect reused pids.
_seen: dict[int, ProcessEntry] = {}


def table() -> dict[int, ProcessEntry]:
    """Read all processes except file servers; those in HIDDEN count as dead: they are not signalled."""
    found = {pid: ProcessEntry(os.getpid(), -1, b"X") for pid in HIDDEN}
    for pid in procfs.pids():
        if pid not in HIDDEN and pid not in FILE_SERVERS and (entry := _entry(pid)) is not None:
            found[pid] = entry
    _seen.clear()
    _seen.update(found)
    return found


def _entry(pid: int) -> ProcessEntry | None:
    words = stat_fields(pid)
    if not words:
        return None
    state, threads = words[0], int(words[17])
    if state == b"Z" and threads > 1:
        state = _state_of_a_thread(pid)
    entry = ProcessEntry(int(words[1]), int(words[19]), state, (int(words[3]), int(words[2])))
    entry.runs = not entry.dead and not (int(words[6]) & _PF_EXITING and threads == 1)
    return entry


def _state_of_a_thread(pid: int) -> bytes:
    """Return the state of a process whose first thread has ended: that of another thread which has not."""
    directory = f"{procfs.directory(pid)}/task"
    try:
        names = os.listdir(directory)
    except OSError:
        return b"Z"
    states = (split_stat(read_if_there(f"{directory}/{name}/stat"), 1)[:1] for name in names)
    return next((state for (state, *_) in filter(None, states) if state not in (b"Z", b"X")), b"Z")


def name(pid: int) -> bytes:
    """Return the name that a process has given itself; empty if it has ended."""
    try:
        with open(f"{procfs.directory(pid)}/comm", "rb", buffering=0) as file:
            return (file.read(64) or b"").rstrip(b"\n")
    except OSError:
        return b""


def below(root: int, processes: dict[int, ProcessEntry]) -> set[int]:
    """Return the descendants of `root`."""
    children: dict[int, list[int]] = {}
    for pid, entry in processes.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found


def children() -> list[int]:
    """Return the visible children of this process, ended or not."""
    return [pid for pid, entry in table().items() if entry.parent == os.getpid()]


def of_run(
    shell: int,
    since: int,
    newest_job: int,
    processes: dict[int, ProcessEntry],
    holds: Callable[[int], int],
) -> set[int]:
    """Return the processes of the run of `shell` that began at `since`. Pure.

    `newest_job` is the previous `$!`. `holds` returns whether a process has the run's pipes open (1), only
    pipes of earlier runs (-1), or none (0).
    """

    def is_older(pid: int) -> bool:
        entry, sure = processes[pid], holds(pid)
        if sure:
            return sure < 0
        if entry.started < since - _TICK:
            return True
        return entry.started <= since + _TICK and pid <= newest_job

    children: dict[int, list[int]] = {}
    for pid, entry in processes.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [shell]
    while waiting:  # children of an older job belong to that job
        for pid in children.get(waiting.pop(), ()):
            if pid not in found and not is_older(pid):
                found.add(pid)
                waiting.append(pid)
    return {pid for pid in found if not processes[pid].dead}


def holder(present: set[tuple[int, int]], former: set[tuple[int, int]]) -> Callable[[int], int]:
    """Return the function `holds` for `of_run`, which reads /proc."""

    def holds(pid: int) -> int:
        files = set()
        try:
            for name in os.listdir(f"{procfs.directory(pid)}/fd"):
                try:
                    files.add(identity(f"{procfs.directory(pid)}/fd/{name}"))
                except OSError:
                    continue
        except OSError:
            return 0
        return 1 if files & present else -1 if files & former else 0

    return holds


# ---------------------------------------------------------------- ending


class Ending:
    """The end of a run of one shell, step by step."""

    def __init__(self, shell: int) -> None:
        self._shell = shell
        self._limits = b""

    def step(self, number: int, run: Callable[[], Iterable[int]]) -> None:
        """Do one step. `run` returns the present processes of the run."""
        if number == HOLD:
            self._hold()
        elif number == BRAKE:
            signal((self._shell,), BRAKE_SIGNAL)
            signal(run(), process.SIGINT)
        elif number == INTERRUPT:
            signal((self._shell, *run()), process.SIGINT)
        elif number == TERMINATE:
            signal(run(), process.SIGTERM)
            signal((self._shell,), process.SIGINT)
        elif number == KILL:
            signal(run(), process.SIGKILL)
            signal((self._shell,), SIGCONT)
            signal((self._shell,), process.SIGINT)
        elif number == KILL_SHELL:
            chosen = list(run())  # after their parent's death they are no longer below it
            signal((*chosen, self._shell, *chosen), process.SIGKILL)
        elif number == TIDY:
            kill_all(run)
            self._release()

    def _hold(self) -> None:
        """Forbid the shell new processes. That does not bind root, and a filter may forbid it."""
        if not self._limits:
            try:
                self._limits = _limit(self._shell, 0)
            except OSError:
                pass  # it has ended, or runs a program with other rights

    def _release(self) -> None:
        if self._limits:
            try:
                call("prlimit64", self._shell, _RLIMIT_NPROC, self._limits, None)
            except OSError:
                pass
            self._limits = b""


def _limit(pid: int, most: int) -> bytes:
    """Limit the processes of the user of `pid`, for its own forks; return the limits before."""
    old = ctypes.create_string_buffer(16)
    call("prlimit64", pid, _RLIMIT_NPROC, None, ctypes.addressof(old))
    _, hard = struct.unpack("QQ", old.raw)
    call("prlimit64", pid, _RLIMIT_NPROC, struct.pack("QQ", min(most, hard), hard), None)
    return old.raw


def seen(pids: Iterable[int]) -> dict[int, ProcessEntry]:
    """Return the entries of these pids in the last table."""
    return {pid: _seen[pid] for pid in pids if pid in _seen}


def signal(pids: Iterable[int], number: int, known: dict[int, ProcessEntry] = _seen) -> None:
    """Send a signal to each process that is still the one in `known` (default: the last table)."""
    for pid in pids:
        before = known.get(pid)
        try:
            if before is None:  # -1 for every process; or our child, whose pid is its own until we reap it
                os.kill(pid, number)
            else:
                _send(pid, number, before)
        except OSError:
            continue


def _send(pid: int, number: int, before: ProcessEntry) -> None:
    """Send a signal by descriptor, after a check that the pid was not reused."""
    handle = process.pidfd_open(pid)
    try:
        now = _entry(pid)
        if now is not None and now.started == before.started:
            process.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def kill_all(run: Callable[[], Iterable[int]]) -> None:
    """Kill the processes of a run, and the processes that they start meanwhile.

    Returns when they are dead, so that the next command does not see them. The kernel may delay a death.
    """
    done: set[int] = set()
    for _ in range(_MOST_TURNS):
        found = set(run()) - done
        if not found:
            break
        signal(found, process.SIGKILL)
        done |= found
    for turn in range(_MOST_WAITS if done else 0):
        if not done.intersection(run()):
            return
        time.sleep(_SOON if turn < _FIRST else _LATER)


def kill_everything(root: int) -> None:
    """Kill everything below `root`, which must be a subreaper and reaps it."""
    if root == 1:
        signal((-1,), process.SIGKILL)  # all at once: none can start another in between
        return

    def living() -> list[int]:
        processes = table()
        return [pid for pid in below(root, processes) if not processes[pid].dead]

    kill_all(living)


#: Rounds until everything is stopped, the first of them without a pause; and seconds for that. On a busy
#: machine it takes long to stop or kill a process.
_MOST_STOPS, _AT_ONCE, _PATIENCE = 300, 50, 2.0
_MARK = (1 << 62) - 1
#: System calls that may wait until a child has exec'd.
_FORKS = ("clone", "clone3", "vfork")


def _mark(pids: set[int]) -> int:
    """Return a hash of the CPU time of each thread of these processes."""
    found = 0
    for pid in sorted(pids):
        try:
            for thread in os.listdir(f"{procfs.directory(pid)}/task"):
                spent = read_if_there(f"{procfs.directory(pid)}/task/{thread}/schedstat")
                if not spent:
                    # It has counters too.
                    spent = read_if_there(f"{procfs.directory(pid)}/task/{thread}/status")
                found = hash((found, thread, spent)) & _MARK
        except OSError:
            continue  # it has ended
    return found


def _continues(pid: int) -> bool:
    """Whether the process has a timer that sends SIGCONT, if the kernel shows that."""
    return b"signal: %d/" % SIGCONT in read_if_there(f"{procfs.directory(pid)}/timers")


class Pause:
    """All processes below a process, stopped for a while, except file servers. Those stopped before stay so.

    A signal can continue a process that a signal stopped, so a program with a timer for SIGCONT would
    continue. Callers therefore learn whether anything has run since, and whether such a timer exists.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._before: set[int] | None = None

    def begin(self) -> tuple[int, int]:
        """Stop all running processes; call it again if some have continued since.

        Returns a number that changes when any process has run, or -1 if one cannot be stopped. Also returns
        how many processes have a timer that continues them.
        """
        if self._before is None:
            processes = table()
            self._before = {pid for pid, entry in processes.items() if entry.stopped}
            self._stop_job_shells(processes)
            if self._root == 1:
                signal((-1,), SIGSTOP)  # all at once: none can start another in between
                signal(FILE_SERVERS, SIGCONT)
        mark = -1
        for turn in _turns(_MOST_STOPS):
            processes = table()
            going = [pid for pid in self._below(processes) if pid not in self._before]
            signal(going, SIGSTOP)
            if any(not _is_held(pid, processes) for pid in going):
                mark = -1
            else:
                before, mark = mark, _mark(below(self._root, processes))
                if mark == before:
                    break
            if turn > _AT_ONCE:
                _pause(0.001 if turn < _MOST_STOPS else 0.01)  # the kernel is busy with one of them
        else:
            mark = -1
        return mark, sum(map(_continues, below(self._root, table())))

    def end(self) -> tuple[int, int]:
        """Continue the processes. The result has no meaning."""
        before, self._before = self._before, None
        if before is None:
            return -1, 0
        processes = table()
        # The youngest first: a shell that continues before its child would give up waiting for it.
        order = sorted(
            below(self._root, processes), key=lambda pid: (processes[pid].started, pid), reverse=True
        )
        signal((pid for pid in order if pid not in before), SIGCONT)
        return -1, 0

    def _stop_job_shells(self, processes: dict[int, ProcessEntry]) -> None:
        """Stop shells with jobs before their jobs. One that saw a job stop would take the terminal back."""
        parents = set[int]()
        for entry in processes.values():
            above = processes.get(entry.parent)
            if above is not None and above.job[0] == entry.job[0] and above.job[1] != entry.job[1]:
                parents.add(entry.parent)
        for shell in sorted(parents & below(self._root, processes), key=lambda pid: processes[pid].started):
            signal((shell,), SIGSTOP)
            for _ in range(_MOST_WAITS):
                now = _entry(shell)
                if now is None or now.dead or now.stopped:
                    break
                _pause(0.0002)

    def _below(self, processes: dict[int, ProcessEntry]) -> list[int]:
        """Return the processes below that are not stopped."""
        found = below(self._root, processes)
        return [pid for pid in found if not processes[pid].dead and not processes[pid].stopped]


def _is_held(pid: int, processes: dict[int, ProcessEntry]) -> bool:
    """Whether the process waits for a stopped child, and will stop itself before it continues.

    After vfork(2), or its replacement in the C library, only SIGKILL reaches the parent until its child has
    exec'd. A SIGSTOP that it got meanwhile takes effect then.
    """
    if not processes[pid].waits or not any(one.parent == pid and one.stopped for one in processes.values()):
        return False
    doing = read_if_there(f"{procfs.directory(pid)}/syscall").split(None, 1)
    return bool(doing) and doing[0] in [b"%d" % nr for nr in map(number, _FORKS) if nr is not None]


def _turns(least: int) -> Iterator[int]:
    """Count at least to `least`, and on until the time is up."""
    began, turn = time.monotonic(), 0
    while turn < least or time.monotonic() - began < _PATIENCE:
        yield turn
        turn += 1


def end_everything(root: int) -> None:
    """Kill everything below `root`, which must be a subreaper. Returns when nothing is left."""
    for _ in _turns(200):
        processes = table()
        left = {pid for pid in below(root, processes) if not processes[pid].dead}
        if not left:
            return
        signal(left, process.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        _pause(0.002)


def _pause(seconds: float) -> None:
    import select

    select.select((), (), (), seconds)
