"""One sandbox for very long, and very many at once."""

from __future__ import annotations

import errno
import resource

from part import Part, Run

from staddle import Sandbox
from staddle.errors import StaddleError

#: The usual limit of open files of a program that was started by a shell.
_USUAL = 1024
#: So many sandboxes fit under it, at least.
_FITTING = 250
#: Descriptors for as many sandboxes as are asked for here.
_ENOUGH = 8192


def commands(run: Run) -> None:
    """Builtins, programs, pipelines, jobs and functions in one session, which keeps its state throughout."""
    texts = [
        "n=$((n+1)); echo $n",
        "n=$((n+1)); /bin/echo $n",
        "n=$((n+1)); echo $n | cat",
        "n=$((n+1)); (echo $n)",
    ]
    with Sandbox(run.place) as sandbox:
        sandbox.run("n=0; f() { n=$((n+1)); echo $n; }", check=True)
        for number in run.steps():
            text = "f" if number % 5 == 4 else texts[number % 5]
            with run.step():
                run.expect(sandbox.run(text).stdout, f"{number + 1}\n", text)


def snapshots(run: Run) -> None:
    """Each after a change; some are kept for a while, returned to and forked."""
    kept = []
    with Sandbox(run.place) as sandbox:
        for number in run.steps():
            with run.step():
                sandbox.run(f"echo {number} > now; echo {number} > /tmp/now; x={number}", check=True)
                kept.append((number, sandbox.snapshot()))
                if len(kept) > 8:
                    kept.pop(0)[1].close()
                if number % 50 == 49:
                    then, snapshot = run.random.choice(kept)
                    sandbox.restore(snapshot)
                    found = sandbox.run("cat now /tmp/now; echo $x").stdout
                    run.expect(found, f"{then}\n" * 3, "after restore")
                if number % 200 == 199:
                    (other,) = sandbox.fork()
                    with other:
                        run.expect(other.run("cat now").ok, True, "in a fork")


def crowd(run: Run) -> None:
    """Open sandboxes; use them all; close them all.

    First with many open files, then with the usual limit of them, and no way to raise it.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH:
        run.notes.append(f"not run: all at once, because the hard limit of open files is {hard}")
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_ENOUGH, hard))
        at_once = _crowd(run, run.count)
        run.expect(at_once, run.count, f"at once with {_ENOUGH} open files")
        run.notes.append(f"{at_once} at once with {_ENOUGH} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (_USUAL, _USUAL))
    at_once = _crowd(run, run.count)
    run.expect(at_once >= _FITTING, True, f"{at_once} at once with {_USUAL} open files")
    run.notes.append(f"{at_once} at once with {_USUAL}")
    run.done = run.count  # each of them twice


def _crowd(run: Run, count: int) -> int:
    """Open `count` sandboxes in as many rounds as it takes; the most that were open at once."""
    opened: list[Sandbox] = []
    most, told = 0, False
    for number in run.steps(count):
        with run.step():
            try:
                opened.append(Sandbox())
                opened[-1].run(f"number={number}", check=True)
            except (StaddleError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EMFILE:
                    raise
                if not told:
                    run.notes.append(f"then {type(error).__name__}: {error}".partition(";")[0])
                told = True
                most = max(most, len(opened))
                _use_and_close(run, opened)
    most = max(most, len(opened))
    _use_and_close(run, opened)
    return most


def _use_and_close(run: Run, opened: list[Sandbox]) -> None:
    for sandbox in opened:
        with run.step():
            run.expect(sandbox.run("echo ${number+here}").stdout, "here\n", "in a crowd")
    for sandbox in opened:
        sandbox.close()
    opened.clear()


PARTS = (
    Part("commands", 100_000, "commands in one session", commands),
    Part("snapshots", 100_000, "snapshots of one sandbox, restored and forked now and then", snapshots),
    Part("crowd", 1000, "sandboxes at once, and again at `ulimit -n 1024`", crowd, least=300, is_flat=False),
)
