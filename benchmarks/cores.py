"""Sandboxes a second against threads and programs: `python benchmarks/cores.py [SECONDS]`.

Each worker opens a sandbox, runs `true` in it and closes it. Threads share one program and its fork server;
programs share nothing of staddle. `bwrap … bash -c true` by subprocess is beside them where it is installed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from staddle import Sandbox

_BWRAP = [
    *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--unshare-all", "bash", "-c", "true"),
]


def cycle() -> None:
    with Sandbox() as sandbox:
        assert sandbox.run("true").ok


def peer() -> None:
    subprocess.run(_BWRAP, check=True, stdin=subprocess.DEVNULL)


def counted(work: Callable[[], None], seconds: float) -> int:
    for _ in range(3):
        work()
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        work()
        count += 1
    return count


def in_threads(work: Callable[[], None], workers: int, seconds: float) -> float:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(counted(work, seconds))) for _ in range(workers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(found) / seconds


def in_programs(work: Callable[[], None], workers: int, seconds: float) -> float:
    with ProcessPoolExecutor(workers) as pool:
        return sum(pool.map(partial(counted, work), [seconds] * workers)) / seconds


def forks(count: int) -> float:
    """The median of a fork into `count`, in milliseconds."""
    times = []
    with Sandbox() as sandbox:
        for _ in range(8):
            began = time.perf_counter()
            made = sandbox.fork(count)
            times.append(time.perf_counter() - began)
            for each in made:
                each.close()
            time.sleep(0.1)
    return statistics.median(times[1:]) * 1000


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    cores = len(os.sched_getaffinity(0))
    peers = shutil.which("bwrap") is not None
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    print(f"{cores} cores, Linux {os.uname().release}, as {user}; sandboxes a second")
    print("| workers | threads of one program | programs |" + (" bwrap, in threads |" if peers else ""))
    print("| --- | --- | --- |" + (" --- |" if peers else ""))
    workers = 1
    while workers <= cores:
        row = [in_threads(cycle, workers, seconds), in_programs(cycle, workers, seconds)]
        row += [in_threads(peer, workers, seconds)] if peers else []
        print(f"| {workers} | " + " | ".join(f"{each:.0f}" for each in row) + " |", flush=True)
        workers *= 2
    print(f"fork(): {forks(1):.1f} ms, fork(8): {forks(8):.1f} ms")


if __name__ == "__main__":
    main()
