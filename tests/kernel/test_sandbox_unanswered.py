"""Nothing waits without a bound: a second cancellation, a stopped agent, a run that is not driven."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Sandbox
from staddle.errors import SandboxLost, StaddleError
from staddle.ipc import agent_client
from staddle.linux.process import has_ended, parent_of
from staddle.sandbox.aio.event_loop import in_thread
from staddle.sandbox.open import via_backend
from staddle.shell import bash_process, shell
from staddle.shell.command import CommandSpec
from tests.support.waiting import unique_seconds, until, with_argument

#: Its own launcher, others' launchers, one without namespaces, and none at all.
everywhere = pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock", "native"])
#: On native nothing ties what an agent has started to its end but the agent itself.
confined = pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
#: What "in seconds" means here: far more than the steps of an end take, far less than a wait for ever.
BOUND = 120.0


def bounded(work: Callable[[], object]) -> None:
    """`work` in a thread of its own, which must end: a test that hangs would tell nothing."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND)
    assert not thread.is_alive(), "it waits without a bound"
    if raised:
        raise raised[0]


def awaited(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    bounded(lambda: asyncio.run(main()))


@contextmanager
def stopped_agent(sb: Sandbox) -> Iterator[int]:
    """The agent of a sandbox, stopped: it neither answers nor hears that its socket was closed."""
    agent = parent_of(sb._inside.first_shell.host_pid)
    assert agent > 1
    assert agent != os.getpid()
    os.kill(agent, signal.SIGSTOP)
    try:
        yield agent
    finally:
        if parent_of(agent):
            os.kill(agent, signal.SIGCONT)


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is stopped need not be waited for as long as one on a busy machine."""
    for module, name in (
        (shell, "_PATIENCE"),
        (bash_process, "_LAST_PATIENCE"),
        (agent_client, "_LAST_PATIENCE"),
        (agent_client, "_SWAP_PATIENCE"),
    ):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(via_backend, "_PATIENCE", 1.0)


stopped = pytest.mark.usefixtures("in_haste")


def test_what_a_thread_has_not_begun_is_undone_all_the_same() -> None:
    """A task that is cancelled a second time, while the thread that undoes its work has yet to begin."""
    undone = threading.Event()
    made, hold, begin = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        made.set()
        assert begin.wait(60)
        return 1

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        task = asyncio.create_task(in_thread(work, undo=lambda _: undone.set()))
        assert await asyncio.sleep(0, True)
        while not made.is_set():
            await asyncio.sleep(0.001)
        loop.run_in_executor(None, hold.wait, 10)  # the one thread is taken before the work can be undone
        task.cancel()
        begin.set()
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.01)
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undone.is_set()

    awaited(main)


@pytest.mark.slow
@pytest.mark.same_for_everyone
@everywhere
def test_cancelled_again_and_again_at_any_moment(backend: str) -> None:
    """The pipes of the shell are new for each command, because of the job: it begins in a thread."""
    mark = unique_seconds()
    chosen = random.Random(7)  # noqa: S311 - moments, not secrets

    async def main() -> None:
        async with AsyncSandbox(backend=backend) as sb:
            await sb.run("x=0")
            for turn in range(25):
                await sb.run("sleep 1251.3 &")
                task = asyncio.create_task(sb.run(f"x=1; sleep {mark}"))
                for _ in range(chosen.randrange(1, 4)):
                    await asyncio.sleep(chosen.choice([0, 0, 0.001, 0.003, 0.01]))
                    task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await sb.run("echo fine")).stdout == "fine\n", turn
            assert await asyncio.to_thread(until, lambda: not with_argument(mark))

    awaited(main)


@stopped
@everywhere
def test_an_agent_that_does_not_answer_ends_with_its_sandbox(backend: str) -> None:
    mark = unique_seconds()

    def main() -> None:
        with Sandbox(backend=backend) as sb:
            sb.run("x=1")
            with stopped_agent(sb) as agent:
                with pytest.raises(SandboxLost, match="answer"):
                    sb.run(f"sleep {mark}", timeout=0.3)
                assert until(lambda: not with_argument(mark))
                assert until(lambda: has_ended(agent))
            assert not sb.alive

    bounded(main)


def test_an_agent_that_was_stopped_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash_process, "_LAST_PATIENCE", 3600.0)

    def main() -> None:
        with Sandbox() as sb:
            sb.run("x=1")
            with stopped_agent(sb), pytest.raises(SandboxLost, match="stopped"):
                sb.run("sleep 1000", timeout=0.3)

    bounded(main)


@pytest.mark.same_for_everyone
@stopped
@everywhere
def test_a_program_whose_agent_does_not_answer(backend: str) -> None:
    mark = unique_seconds()

    def main() -> None:
        with Sandbox(backend=backend) as sb:
            errors: list[BaseException] = []

            def run() -> None:
                try:
                    sb.exec(["sleep", mark], timeout=2)
                except StaddleError as error:
                    errors.append(error)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            assert until(lambda: with_argument(mark))
            with stopped_agent(sb):
                thread.join()
                assert isinstance(errors[0], SandboxLost)
                assert until(lambda: not with_argument(mark))

    bounded(main)


@stopped
@everywhere
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_close_ends_though_the_agent_is_stopped(backend: str, busy: bool) -> None:
    mark, other_mark = unique_seconds(), unique_seconds()

    def main() -> None:
        sb = Sandbox(backend=backend)
        sb.start(f"sleep {mark}")
        assert until(lambda: with_argument(mark))
        thread = threading.Thread(target=_tried, args=(lambda: sb.run(f"sleep {other_mark}"),), daemon=True)
        if busy:
            thread.start()
            assert until(lambda: with_argument(other_mark))
        with stopped_agent(sb):
            sb.close()
            assert until(lambda: not with_argument(mark) and not with_argument(other_mark))
        if busy:
            thread.join()

    bounded(main)


@pytest.mark.same_for_everyone
@stopped
@everywhere
def test_a_task_is_cancelled_though_the_agent_is_stopped(backend: str) -> None:
    mark = unique_seconds()

    async def main() -> None:
        async with AsyncSandbox(backend=backend) as sb:
            task = asyncio.create_task(sb.run(f"sleep {mark}"))
            assert await asyncio.to_thread(until, lambda: with_argument(mark))
            with stopped_agent(sb._sandbox):
                task.cancel()
                with pytest.raises((asyncio.CancelledError, SandboxLost)):
                    await task
            assert await asyncio.to_thread(until, lambda: not with_argument(mark))

    awaited(main)


@confined
def test_an_agent_that_is_killed_gives_the_turn_back(backend: str) -> None:

    async def main() -> None:
        async with AsyncSandbox(backend=backend) as sb:
            for begin in (sb.run, lambda command: _read(sb, command)):
                mark = unique_seconds()
                task = asyncio.create_task(begin(f"sleep {mark}"))
                assert await asyncio.to_thread(until, partial(with_argument, mark))
                os.kill(parent_of(sb._sandbox._inside.first_shell.host_pid), signal.SIGKILL)
                with pytest.raises(SandboxLost):
                    await task
                assert not sb.alive
                await sb.reset()

    awaited(main)


@stopped
@pytest.mark.parametrize("backend", ["namespaces", pytest.param("bwrap", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["snapshot", "restore", "discard"])
def test_files_are_not_waited_for_longer_than_others(tmp_path: Path, backend: str, what: str) -> None:
    """In layers the agent exchanges them, beside a copy it stops what runs."""

    def main() -> None:
        with Sandbox(tmp_path, backend=backend, mode="overlay") as sb:
            sb.run("echo 1 > file")
            point = sb.snapshot()
            sb.run("echo 2 > file")
            calls = {"snapshot": sb.snapshot, "restore": lambda: sb.restore(point), "discard": sb.discard}
            with stopped_agent(sb), pytest.raises(SandboxLost):
                calls[what]()

    bounded(main)


@pytest.mark.same_for_everyone
@stopped
@everywhere
def test_a_run_that_is_not_driven_does_not_keep_its_session_from_closing(backend: str) -> None:
    mark = unique_seconds()

    def main() -> None:
        with Sandbox(backend=backend) as sb:
            other = sb.session("other")
            other._shell.begin(CommandSpec(f"sleep {mark}".encode(), out=lambda _: None, err=lambda _: None))
            assert until(lambda: with_argument(mark))
            began = time.monotonic()
            other.close()
            assert time.monotonic() - began < BOUND / 2
            assert until(lambda: not with_argument(mark))
            assert sb.run("echo fine").stdout == "fine\n"

    bounded(main)


async def _read(sb: AsyncSandbox, command: str) -> None:
    async for _ in sb.stream(command):
        pass


def _tried(work: Callable[[], object]) -> None:
    try:
        work()
    except StaddleError:
        pass
