"""Storms of cancellations on every backend: interrupts, timeouts and cancelled tasks at random moments.

After each the session still has its state, and nothing that was cancelled goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from part import Part, Run

from staddle import AsyncSandbox, Reason, Sandbox
from staddle.errors import StaddleError

BACKENDS = ("namespaces", "bwrap", "landlock", "systemd", "native")
#: Sessions of one sandbox that are used at the same time.
_SESSIONS = 4
_TEXTS = (
    "sleep 30",
    "(sleep 30; true) | cat",
    "trap '' INT; sleep 30; trap - INT",
    "while :; do :; done",
    "seq 1000000",
    "/bin/true",
    "true",
)


def _storm(backend: str) -> Callable[[Run], None]:
    def work(run: Run) -> None:
        try:
            Sandbox(backend=backend, best_effort=True).close()
        except StaddleError as error:
            run.notes.append(f"not run: {str(error).partition(':')[0]}")
            return
        third = max(1, run.count // 3)
        _by_threads(run, backend, third)
        _by_timeouts(run, backend, third)
        asyncio.run(_by_tasks(run, backend, run.count - 2 * third))

    return work


_STATE, _RUNNING = 'echo "$x"', "pgrep -cx 'sleep|seq'"


def _by_threads(run: Run, backend: str, count: int) -> None:
    """`interrupt()` from another thread."""
    with Sandbox(backend=backend, best_effort=True) as sandbox:
        sandbox.run("x=kept; export x", check=True)
        for _ in run.steps(count):
            with run.step():
                wait = run.random.choice((run.random.uniform(0, 0.002), run.random.uniform(0, 0.03)))
                bell = threading.Timer(wait, sandbox.interrupt)
                bell.start()
                # The interrupt may come before the command has begun, or after its end.
                result = sandbox.run(run.random.choice(_TEXTS), timeout=2)
                bell.join()
                allowed = (Reason.exited, Reason.cancelled, Reason.timeout, Reason.signalled)
                run.expect(result.reason in allowed, True, f"reason {result.reason}")
                _look(run, sandbox, backend)


def _by_timeouts(run: Run, backend: str, count: int) -> None:
    with Sandbox(backend=backend, best_effort=True) as sandbox:
        sandbox.run("x=kept; export x", check=True)
        for _ in run.steps(count):
            with run.step():
                sandbox.run(run.random.choice(_TEXTS), timeout=run.random.uniform(0.0005, 0.03))
                _look(run, sandbox, backend)


def _look(run: Run, sandbox: Sandbox, backend: str) -> None:
    run.expect(sandbox.run(_STATE).stdout, "kept\n", "state")
    if backend in ("namespaces", "bwrap"):  # the others see the processes of the whole machine
        run.expect(sandbox.run(_RUNNING).stdout, "0\n", "processes that go on")


async def _by_tasks(run: Run, backend: str, count: int) -> None:
    """Tasks in several sessions, cancelled one by one and all at once."""
    async with AsyncSandbox(backend=backend, best_effort=True) as sandbox:
        sessions = [await sandbox.session(f"s{number}") for number in range(_SESSIONS)]
        for session in sessions:
            await session.run("x=kept", check=True)
        for number in run.steps(max(1, count // _SESSIONS)):
            with run.step():
                tasks = [asyncio.create_task(one.run(run.random.choice(_TEXTS))) for one in sessions]
                if number % 2:
                    await asyncio.sleep(run.random.uniform(0, 0.02))
                    for task in tasks:
                        task.cancel()
                for task in tasks:
                    if not number % 2:
                        await asyncio.sleep(run.random.uniform(0, 0.01))
                        task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                run.done += len(sessions) - 1
                for session in sessions:
                    run.expect((await session.run(_STATE)).stdout, "kept\n", "state")
                if backend in ("namespaces", "bwrap"):
                    run.expect((await sandbox.run(_RUNNING)).stdout, "0\n", "processes that go on")


PARTS = tuple(
    Part(
        f"cancel-{backend}",
        3000,
        f"commands cancelled at random moments on `{backend}`",
        _storm(backend),
        least=12,
    )
    for backend in BACKENDS
)
