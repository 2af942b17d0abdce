"""SIGKILL of the host program at a random moment of each operation: nothing is left, nothing half done.

A victim is a program of its own that does one kind of operation again and again, and says on
its standard output when each begins and ends.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ledger import descendants, files_below, none_left, reap
from part import Part, Run

from staddle import Policy, Sandbox

_FILES = 40
#: With limits, so that there are control groups to be left, where this user may have some.
_POLICY = Policy.agent().with_limits(memory="512M", processes=200)

# ------------------------------------------------------------------ the victims


def victim(kind: str, place: Path) -> None:
    """Do it until we are killed."""
    say = sys.stdout
    workspace = place / "workspace"
    workspace.mkdir(exist_ok=True)
    VICTIMS[kind](workspace, say)


def _say(say: IO[str], word: str) -> None:
    say.write(f"{word}\n")
    say.flush()


def _again(say: IO[str], work: Callable[[], object]) -> None:
    while True:
        _say(say, "begin")
        work()
        _say(say, "end")


def _run(workspace: Path, say: IO[str]) -> None:
    sandbox = Sandbox(workspace, _POLICY, best_effort=True)
    texts = itertools.cycle(
        [
            "echo hello; echo x >> log",
            "seq 2000",
            "sleep 0.01 & wait",
            "(sleep 100 &); exit 3",
            "head -c 300000 /dev/zero",
        ]
    )
    _again(say, lambda: sandbox.run(next(texts)))


def _snapshot(workspace: Path, say: IO[str]) -> None:
    sandbox = Sandbox(workspace, _POLICY, best_effort=True)

    def work() -> None:
        sandbox.run("for i in 1 2 3 4 5; do echo $RANDOM > $i; done")
        taken = sandbox.snapshot()
        sandbox.run("rm 1")
        sandbox.restore(taken)
        taken.close()

    _again(say, work)


def _fork(workspace: Path, say: IO[str]) -> None:
    sandbox = Sandbox(workspace, _POLICY, best_effort=True)

    def work() -> None:
        sandbox.run("echo $RANDOM > file")
        for other in sandbox.fork(2):
            other.run("cat file")
            other.close()

    _again(say, work)


def _open(workspace: Path, say: IO[str]) -> None:
    def work() -> None:
        with Sandbox(workspace, _POLICY, best_effort=True) as sandbox:
            sandbox.run("sleep 100 &")

    _again(say, work)


def _commit(workspace: Path, say: IO[str]) -> None:
    """Each commit replaces every file, adds one and removes one: the next generation."""
    sandbox = Sandbox(workspace, best_effort=True)  # which finishes, or undoes, what a killed one had begun
    generation = generation_of(workspace)
    _say(say, f"found {generation}")
    while isinstance(generation, int):
        generation += 1
        sandbox.run(
            f"for i in $(seq {_FILES}); do mkdir -p $((i % 7)); echo {generation} > $((i % 7))/$i; done;"
            f"rm -f only-*; echo {generation} > only-{generation}",
            check=True,
        )
        _say(say, "begin")
        sandbox.commit()
        _say(say, "end")


VICTIMS = {"run": _run, "snapshot": _snapshot, "fork": _fork, "open": _open, "commit": _commit}


def generation_of(workspace: Path) -> int | str:
    """The one generation that all files are of; else a sentence that says what is mixed."""
    files = [path for path in workspace.rglob("*") if not path.is_dir()]
    if not files:
        return 0
    found = {path.read_text().strip() for path in files}
    only = [path.name for path in files if path.name.startswith("only-")]
    names = {path.name for path in files} - set(only)
    if len(found) == 1 and only == [f"only-{min(found)}"] and names == {str(i) for i in range(1, _FILES + 1)}:
        return int(min(found))
    return f"half: generations {sorted(found)}, {len(names)} of {_FILES} files, {only}"


# ------------------------------------------------------------------ the killing


def _killing(kind: str) -> Callable[[Run], None]:
    def work(run: Run) -> None:
        own = os.getpid()
        layers = Path(os.environ["STADDLE_LAYERS"])
        span = 0.0
        outcomes = {"old": 0, "new": 0, "neither": 0}
        expected: set[int] = {0}
        for number in run.steps():
            with run.step():
                began, ended, found = _one_victim(
                    run, kind, None if number == 0 else run.random.uniform(0, span)
                )
                if number == 0:
                    span = 1.3 * statistics.median(ended)
                if kind == "commit":
                    if found not in expected:
                        outcomes["neither"] += 1
                        run.fail(f"commit: found {found}, expected one of {sorted(expected)}")
                    elif number > 1:
                        outcomes["new" if found == max(expected) else "old"] += 1
                    now = found if isinstance(found, int) else 0
                    # It had completed all that it said; the one that it had begun is there or not.
                    expected = {now + len(ended), now + max(began, len(ended))}

                def left() -> list[str]:
                    reap()
                    running = [f"process {pid}" for pid in descendants(own)]
                    return running + files_below(layers)

                for leftover in none_left(left):
                    run.fail(f"left behind: {leftover}")
        run.notes.append(f"killed within {span * 1000:.0f} ms of the beginning")
        if kind == "commit":
            with Sandbox(run.place / "workspace"):  # the program after the last that was killed
                run.expect(generation_of(run.place / "workspace") in expected, True, "a whole generation")
            run.notes.append("afterwards " + ", ".join(f"{count} {what}" for what, count in outcomes.items()))

    return work


def _one_victim(run: Run, kind: str, delay: float | None) -> tuple[int, list[float], int | str | None]:
    """Start a victim and kill it `delay` seconds after an operation began; without one, after some of them.

    Returns how many operations it began, the seconds of each that it ended, and which generation it found.
    """
    command = [sys.executable, str(Path(__file__).parent), "--victim", kind, str(run.place)]
    times: list[float] = []
    found: int | str | None = None
    begun, last = 0, 0.0
    # The first operation of a victim differs from the others; both are to be hit.
    which = 12 if delay is None else run.random.choice((1, 1, 2, 3))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            now = time.monotonic()
            word, _, rest = line.strip().partition(" ")
            if word == "found":
                found = int(rest) if rest.isdigit() else rest
            elif word == "end":
                times.append(now - last)
            elif word == "begin":
                begun, last = begun + 1, now
                if begun == which:
                    time.sleep(delay or 0)
                    process.send_signal(signal.SIGKILL)
        status = process.wait()
    if status != -signal.SIGKILL:
        run.fail(f"a victim ended by itself with {status}")
    return begun, times, found


PARTS = tuple(
    Part(
        f"kill-{kind}", 300, f"SIGKILL at a random moment of {words}", _killing(kind), least=5, is_flat=False
    )
    for kind, words in {
        "run": "a command",
        "snapshot": "a snapshot and a restore",
        "commit": "a commit",
        "fork": "a fork",
        "open": "opening and closing",
    }.items()
)
