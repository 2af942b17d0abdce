"""A signal handler raises at a random moment of a call: the sandbox stays usable, and nothing is left.

This is what pytest-timeout, a task queue's soft time limit and Ctrl-C do to a program.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable

from part import Part, Run

from staddle import Sandbox

#: How many times as long as the call usually takes the alarm waits at most.
_LATEST = 1.2
#: Steps between two collections of garbage: what a handler interrupted may hang in a circle.
_COLLECTED = 20


class _Alarm(Exception):
    """Raised by the handler."""

    #: Whether a call is being interrupted. The kernel may hand a signal to another thread, and Python then
    #: runs the handler after the timer was stopped.
    is_awaited = False


def _raising(*_: object) -> None:
    if _Alarm.is_awaited:
        raise _Alarm


def _interrupted(call: Callable[[], object], after: float) -> bool:
    """Call it, and raise after so many seconds; whether that came before its end."""
    try:
        try:
            _Alarm.is_awaited = True
            signal.setitimer(signal.ITIMER_REAL, after)
            call()
        finally:
            _Alarm.is_awaited = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Alarm:
        return True
    return False


def _commit(sandbox: Sandbox) -> None:
    sandbox.files.write("file", str(time.monotonic()))
    sandbox.commit()


def _opened_and_closed(sandbox: Sandbox) -> None:
    Sandbox(sandbox._settings.workspace).close()


CALLS: dict[str, Callable[[Sandbox], object]] = {
    "open": _opened_and_closed,
    "fork": lambda sandbox: [fork.close() for fork in sandbox.fork(2)],
    "exec": lambda sandbox: sandbox.exec(["true"]),
    "diff": lambda sandbox: sandbox.diff(),
    "commit": _commit,
}


def _storm(call: Callable[[Sandbox], object]) -> Callable[[Run], None]:
    def work(run: Run) -> None:
        workspace = run.place / "workspace"
        workspace.mkdir()
        workspace.chmod(0o755)
        (workspace / "file").write_text("begin")
        signal.signal(signal.SIGALRM, _raising)
        with Sandbox(workspace) as sandbox:
            sandbox.run("x=kept; echo changed > other", check=True)
            took = []
            for _ in range(5):
                began = time.perf_counter()
                call(sandbox)
                took.append(time.perf_counter() - began)
            usual, hits = sorted(took)[2], 0
            for number in run.steps():
                with run.step():
                    hits += _interrupted(lambda: call(sandbox), run.random.uniform(0.00005, usual * _LATEST))
                    run.expect(sandbox.run('echo "$x"').stdout, "kept\n", "state")
                    if number % _COLLECTED == 0:
                        gc.collect()
            run.expect(hits > run.count // 5, True, f"{hits} of {run.count} were interrupted")

    return work


PARTS = tuple(
    Part(f"interrupt-{name}", 3000, f"a handler that raises in `{name}`", _storm(call), least=12)
    for name, call in CALLS.items()
)
