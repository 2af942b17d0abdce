"""What a session costs: a command in it, making one, taking one from a pool, a flood of output."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from measure import Claim, first_result, ms, timed
from staddle import Pool, Sandbox

_BASH = ["bash", "-c", "true"]
_BWRAP = [
    *(
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
    ),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev"),
    *("--tmpfs", "/tmp", "bash", "-c", "true"),
]


def _plain() -> None:
    subprocess.run(_BASH, check=True)


def _round_trips(
    jobs: dict[str, Callable[[], object]], rounds: int = 30, block: int = 30
) -> dict[str, float]:
    """The median seconds of each job, in blocks by turns: a session at work, not after a pause."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name] += [timed(job) for _ in range(block)]
    return {name: statistics.median(values) for name, values in times.items()}


def commands() -> list[Claim]:
    with Sandbox() as sandbox:
        each = _round_trips(
            {
                "plain": _plain,
                "builtin": lambda: sandbox.run("true"),
                "echo": lambda: sandbox.run("echo hi"),
                "external": lambda: sandbox.run("/bin/true"),
                "exec": lambda: sandbox.exec(["/bin/true"]),
            }
        )

    def claim(what: str, name: str, at_most: float) -> Claim:
        detail = f"{each[name] * 1e6:.0f} µs against {ms(each['plain'])}"
        return Claim(f"{what} / bash -c true", each[name] / each["plain"], at_most, detail)

    return [
        claim("a builtin in a session", "builtin", 0.1),
        claim("echo in a session", "echo", 0.12),
        claim("/bin/true in a session", "external", 1.1),
        Claim(
            "exec of a program / run of the same",
            each["exec"] / each["external"],
            1.5,
            f"{each['exec'] * 1e6:.0f} µs against {each['external'] * 1e6:.0f} µs",
        ),
    ]


def watched() -> list[Claim]:
    """Hooks and audit logs: by turns with and without, in the same sandbox.

    The fastest quarter, as others use this machine. The detail has the CPU time of the thread as well.
    """
    with tempfile.TemporaryDirectory() as beside, open(f"{beside}/stream.jsonl", "a") as stream:
        watchers: dict[str, dict[str, Any]] = {
            "three hooks": dict.fromkeys(("on_command", "on_result", "on_violation"), lambda _: None),
            "an audit log on a file": {"audit": f"{beside}/audit.jsonl"},
            "an audit log on a stream": {"audit": stream},
            "an audit log to a function": {"audit": lambda _: None},
        }
        return [_with_and_without(name, watcher) for name, watcher in watchers.items()]


def _with_and_without(name: str, watcher: dict[str, Any]) -> Claim:
    clock: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    with Sandbox(**watcher) as sandbox:
        (session,) = sandbox._inside.every_session()
        hooks = session._hooks
        for turn in range(160):
            is_watched = turn % 2 == 0
            session._hooks = hooks if is_watched else None
            for number in range(30):
                spent, began = time.thread_time(), time.perf_counter()
                sandbox.run("true")
                if number >= 5:
                    clock[is_watched].append(time.perf_counter() - began)
                    cpu[is_watched].append(time.thread_time() - spent)
        session._hooks = hooks

    def quarter(values: list[float]) -> float:
        return statistics.quantiles(values)[0] * 1e6

    more = quarter(clock[True]) - quarter(clock[False])
    spent = quarter(cpu[True]) - quarter(cpu[False])
    detail = f"to {quarter(clock[False]):.0f} µs; CPU time {spent:+.0f} µs"
    return Claim(f"{name}, µs more for a builtin", more, 15, detail)


def _without_pause(
    jobs: dict[str, Callable[[], object]], rounds: int = 6, block: int = 16, first: int = 4
) -> dict[str, float]:
    """The mean seconds of each job in long rows of it, by turns; the median row.

    The first ones of a row do not count: they use up what was made ready during the pause before.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            row = [timed(job) for _ in range(block)]
            times[name].append(statistics.mean(row[first:]))
    return {name: statistics.median(rows) for name, rows in times.items()}


def creation() -> list[Claim]:
    """To the first result, with time for a spare to be made; and one after the other."""
    with tempfile.TemporaryDirectory() as place:
        made: list[float] = []
        bwrap: list[float] = []
        for number in range(41):
            seconds = first_result(0.06, workspace=place)
            peer = timed(lambda: subprocess.run(_BWRAP, check=True))
            if number:
                made.append(seconds)
                bwrap.append(peer)
        took = _without_pause(
            {
                "ours": lambda: first_result(0, workspace=place),
                "bwrap": lambda: subprocess.run(_BWRAP, check=True),
            }
        )
    one, other = statistics.median(made), statistics.median(bwrap)
    return [
        Claim(
            "Sandbox() to the first result, a spare ready / bwrap",
            one / other,
            0.5,
            f"{ms(one)} against {ms(other)}",
        ),
        Claim(
            "make, run, close, without pause / bwrap",
            took["ours"] / took["bwrap"],
            2,
            f"{ms(took['ours'])} against {ms(took['bwrap'])}",
        ),
    ]


def pool() -> list[Claim]:
    """One after the other from a pool that has them all ready."""
    times: list[float] = []
    with Pool(24) as sandboxes:
        time.sleep(3)  # for all of them to be made
        taken = []
        for _ in range(24):
            began = time.perf_counter()
            taken.append(sandboxes.acquire())
            taken[-1].run("true")
            times.append(time.perf_counter() - began)
    return [Claim("acquire and first result from a warm pool, ms", statistics.median(times) * 1000, 0.3, "")]


def flood() -> list[Claim]:
    with Sandbox() as sandbox:
        sandbox.run("true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = timed(lambda: sandbox.run("head -c 100000000 /dev/zero", timeout=60))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return [
        Claim("100 MB of output, seconds", seconds, 1, ""),
        Claim("memory grown by it, MB", grown, 16, ""),
    ]


def many() -> list[Claim]:
    """200 sessions alive at once: the memory of all their processes, shared pages divided."""
    before = _memory()
    sandboxes = [Sandbox() for _ in range(200)]
    try:
        for sandbox in sandboxes:
            sandbox.run("x=1")
        each = (_memory() - before) / 200 / 1024
    finally:
        closers = [threading.Thread(target=sandbox.close) for sandbox in sandboxes]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
    return [
        Claim(
            "memory of each of 200 sessions, MB", each, 2, "proportional set size, agent and shell and ours"
        )
    ]


def _memory() -> int:
    """Kilobytes of this process and all below it."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
    ours, total = {os.getpid()}, 0
    while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
        ours |= more
    for pid in ours:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total


CLAIMS = (commands, watched, creation, pool, flood, many)
