"""The awaited sandbox: the same promises, driven by the event loop, whole after every cancellation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from staddle import AsyncSandbox, Reason
from staddle.errors import CommandFailed, InvalidCall, SandboxClosed, SessionBusy, SessionError
from tests.support.sandboxes import descriptors, every_backend
from tests.support.waiting import PATIENCE, unique_seconds, until, with_argument


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On `native` a terminal reads the start files of whoever runs the tests: they are nobody's here."""
    monkeypatch.setenv("HOME", str(tmp_path))


def awaited(backend: str, test: Callable[[AsyncSandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncSandbox(backend=backend) as sb:
            await test(sb)

    asyncio.run(asyncio.wait_for(main(), 60))


async def _with_timeout(seconds: float, command: Awaitable[object]) -> None:
    async with asyncio.timeout(seconds):
        await command


@pytest.mark.same_for_everyone
@every_backend
def test_commands_programs_and_state(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        await sb.run("cd /usr; x=1; export y=2")
        got = await sb.run("pwd; echo $x; cat", stdin="in", check=True)
        assert (got.stdout, got.cwd) == ("/usr\n1\nin", "/usr")
        assert (await sb.exec(["sh", "-c", "pwd; echo $y"])).stdout == "/usr\n2\n"
        assert (await sb.exec(["no-such-program"])).exit_code == 127
        assert (await sb.state).cwd == "/usr"
        with pytest.raises(CommandFailed):
            await sb.run("false", check=True)
        with pytest.raises(InvalidCall):
            await sb.run("a\0b")
        late = await sb.run("echo begun; sleep 1239.1", timeout=0.3)
        assert (late.reason, late.stdout) == (Reason.timeout, "begun\n")
        ended = await sb.run("exit 4")
        assert (ended.exit_code, ended.shell_exited) == (4, True)
        assert (await sb.run("echo $x")).stdout == "1\n"

    awaited(backend, test)


@pytest.mark.same_for_everyone
@every_backend
def test_concurrent_runs_take_turns_and_sessions_do_not_wait_for_each_other(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        await sb.run("n=0")
        await asyncio.gather(*(sb.run("m=$n; sleep 0.01; n=$((m + 1))") for _ in range(10)))
        assert (await sb.run("echo $n")).stdout == "10\n"
        dev = await sb.session("dev")
        assert await sb.session("dev") is dev
        long = asyncio.create_task(sb.run("sleep 1239.2", timeout=30))
        await asyncio.sleep(0.2)
        assert (await dev.run('echo "${n-unset}"')).stdout == "unset\n"
        await sb.interrupt()
        assert (await long).reason is Reason.cancelled
        await dev.restart()
        await dev.close()
        with pytest.raises(SandboxClosed):
            await dev.run("true")

    awaited(backend, test)


@pytest.mark.same_for_everyone
@every_backend
def test_cancelling_interrupts_the_command_and_leaves_the_session_whole(backend: str) -> None:
    mark, other_mark, third_mark = unique_seconds(), unique_seconds(), unique_seconds()

    async def test(sb: AsyncSandbox) -> None:
        await sb.run(f"x=1; sleep {mark} &")
        for command in (
            f"x=2; sleep {other_mark}; x=3",
            f"x=2; (trap '' INT TERM; sleep {other_mark}; sleep {other_mark})",
        ):
            task = asyncio.create_task(sb.run(command))
            assert await asyncio.to_thread(until, lambda: with_argument(other_mark))
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # asked twice
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(until, lambda: not with_argument(other_mark))
            assert (await sb.run("echo $x")).stdout == "2\n"
        assert with_argument(mark)  # an earlier job is not part of it
        waiting = asyncio.create_task(sb.exec(["sleep", third_mark]))
        assert await asyncio.to_thread(until, lambda: with_argument(third_mark))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(until, lambda: not with_argument(third_mark))

    awaited(backend, test)


@pytest.mark.same_for_everyone
@every_backend
def test_cancelling_at_any_moment(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        await sb.run("x=1")
        # What is known of the shell survives even bash's own crash, which an interrupt at an unlucky
        # moment can bring about.
        assert (await sb.state).variables["x"] == "1"
        for turns in range(12):
            task = asyncio.create_task(sb.run("x=1; sleep 5"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sb.run("echo $x")).stdout == "1\n"

    awaited(backend, test)


@pytest.mark.same_for_everyone
@every_backend
def test_a_timeout_of_asyncio_is_a_cancellation(backend: str) -> None:
    mark = unique_seconds()

    async def test(sb: AsyncSandbox) -> None:
        async def read() -> None:
            async for _ in sb.stream(f"echo a; sleep {mark}"):
                pass

        for command in (sb.run(f"sleep {mark}"), read()):
            with pytest.raises(TimeoutError):
                await _with_timeout(0.3, command)
        assert (await sb.run("echo fine")).ok
        assert await asyncio.to_thread(until, lambda: not with_argument(mark))

    awaited(backend, test)


@pytest.mark.same_for_everyone
@every_backend
def test_waiting_in_the_queue_can_be_cancelled(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        go = f"/tmp/go-{unique_seconds()}"
        first = asyncio.create_task(sb.run(f"while ! [ -e {go} ]; do sleep 0.05; done; rm {go}; echo first"))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(sb.run("echo second"))
        await asyncio.sleep(0.1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        await sb.files.write(go, "")
        assert (await first).stdout == "first\n"

    awaited(backend, test)


@pytest.mark.same_for_everyone
@every_backend
def test_streams(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        stream = sb.stream(r"printf 'caf\303'; sleep 0.2; printf '\251\n'; echo err >&2; exit 3")
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.text for chunk in chunks if chunk.stream == "stdout") == "café\n"
        assert stream.result is not None
        assert stream.result.exit_code == 3
        async with sb.stream("echo first; sleep 1240.0") as slow:
            assert (await slow.__anext__()).text == "first\n"
            assert slow.result is None
        async with sb.stream("yes") as endless:
            async for _ in endless:
                break
        assert endless.result is not None
        assert endless.result.reason is Reason.cancelled
        async for _ in sb.stream("yes"):
            break  # and it is forgotten
        assert (await asyncio.wait_for(sb.run("echo fine"), 60)).ok
        async for _ in sb.stream("yes"):
            break
        assert (await sb.run("echo fine")).ok  # in the same task
        async with sb.stream("echo a; sleep 0.1") as mine:
            await mine.__anext__()
            with pytest.raises(SessionBusy):
                await sb.run("true")
        assert (await sb.run("echo fine")).ok

    awaited(backend, test)


@pytest.mark.slow
@pytest.mark.same_for_everyone
@every_backend
def test_the_loop_goes_on_while_a_command_prints_without_end(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        task = asyncio.create_task(sb.run("yes", timeout=1))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert (await task).stdout_truncated
        assert turns > 10

    awaited(backend, test)


@every_backend
def test_processes_and_terminals(backend: str) -> None:
    async def test(sb: AsyncSandbox) -> None:
        process = await sb.start("read line; echo got $line; exec sleep 1239.7")
        await process.send_stdin("hello\n")
        assert await process.wait(0.3) is None
        assert process.output() == "got hello\n"
        both = asyncio.gather(process.wait(), process.wait())
        await asyncio.sleep(0)
        process.kill()
        assert await both == [137, 137]
        counting = await sb.start("sleep 0.2; wc -c")
        await counting.send_stdin("x" * 500_000)
        counting.close_stdin()
        assert await counting.wait(60) == 0
        assert counting.output().strip() == "500000"
        await sb.run("sleep 1239.8 &")
        assert [each.running for each in await sb.processes()] == [False, False, True]
        async with await sb.terminal(rows=30, cols=90) as terminal:
            await terminal.write("stty size; exit 5\n")
            seen = b""
            while data := await terminal.read(10):
                seen += data
            assert b"30 90" in seen
            assert await terminal.wait(60) == 5
            assert await terminal.read(0.01) == b""

    awaited(backend, test)


@every_backend
def test_close_and_reset(backend: str) -> None:
    async def main() -> None:
        sb = AsyncSandbox(backend=backend)
        with pytest.raises(SessionError):
            _ = sb.enforced
        assert (await sb.run("x=1; echo lazily")).stdout == "lazily\n"
        assert sb.enforced.backend == backend
        await sb.reset()
        assert (await sb.run('echo "${x-unset}"')).stdout == "unset\n"
        task = asyncio.create_task(sb.run("echo begun; sleep 1239.9"))
        await asyncio.sleep(0.3)
        await sb.close()
        got = await task
        assert (got.reason, got.stdout) == (Reason.closed, "begun\n")
        await sb.close()
        with pytest.raises(SandboxClosed):
            await sb.run("true")
        with pytest.raises(SandboxClosed):
            sb.stream("true")

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.same_for_everyone
@every_backend
def test_a_stream_that_nobody_reads_does_not_hold_up_the_end(backend: str) -> None:
    async def main() -> None:
        async with AsyncSandbox(backend=backend) as sb:
            stream = sb.stream("echo first; sleep 1240.2")
            assert (await stream.__anext__()).text == "first\n"
        assert [chunk async for chunk in stream] == []
        assert stream.result is not None
        assert stream.result.reason is Reason.closed

    asyncio.run(asyncio.wait_for(main(), 30))


def test_changes_snapshots_and_forks(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")

    async def main() -> None:
        async with AsyncSandbox(tmp_path) as sb:
            await sb.run("x=1; echo b > b")
            before = await sb.snapshot("before")
            await sb.run("x=2; rm a b")
            first, second = await sb.fork(2)
            async with first, second:
                await first.run("echo first > c")
                assert (await first.run("ls; echo $x")).stdout == "c\n2\n"
                assert (await second.run("ls; echo $x")).stdout == "2\n"
            started = await sb.start(["sleep", "1000"])
            assert (await sb.restore(before, processes="keep")).ended == ()
            ended = (await sb.restore(before)).ended
            assert [(one.pid, one.command) for one in ended] == [(started.pid, "sleep 1000")]
            assert not await sb.drift()
            assert await started.wait(30) == 137
            assert (await sb.run("ls; echo $x")).stdout == "a\nb\n1\n"
            assert [change.path for change in await sb.diff()] == ["/workspace/b"]
            await sb.commit()
            await sb.run("echo c > a")
            await sb.discard()
            assert (await sb.run("cat a b")).stdout == "a\nb\n"

    asyncio.run(asyncio.wait_for(main(), 60))
    assert (tmp_path / "b").read_text() == "b\n"


def test_opening_can_be_cancelled_and_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(tmp_path, backend="bwrap", mode="bind") as sb:
            await sb.run("true")
        before = descriptors()
        for turns in range(3):
            sb = AsyncSandbox(tmp_path, backend="bwrap", mode="bind")
            task = asyncio.create_task(sb.run("true"))
            await asyncio.sleep(0.005 * turns)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await sb.close()
        assert await asyncio.to_thread(until, lambda: descriptors() <= before)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.same_for_everyone
def test_no_thread_waits_for_a_command(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(backend="native") as sb:
            sessions = [await sb.session(f"s{number}") for number in range(8)]
            await sb.run("true")  # the thread that measures memory is there, one for all
            before = threading.active_count()
            ready = [tmp_path / f"{number}" for number in range(8)]
            command = "> {}; while ! [ -e {}/go ]; do sleep 0.05; done; echo done"
            tasks = [
                asyncio.create_task(session.run(command.format(file, tmp_path)))
                for session, file in zip(sessions, ready, strict=True)
            ]
            while not all(file.exists() for file in ready):
                await asyncio.sleep(0.02)
            busy = [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]
            assert all(not task.done() for task in tasks)
            assert threading.active_count() <= before + len(busy)
            # Every thread of the executor is free for others, while eight commands run.
            await asyncio.gather(*(asyncio.to_thread(int) for _ in range(64)))
            (tmp_path / "go").touch()
            assert [(await task).stdout for task in tasks] == ["done\n"] * 8

    asyncio.run(asyncio.wait_for(main(), 60))


# ---------------------------------------------------------------- no callback takes long


#: Prints the most CPU time, in ms, that one callback of the loop took, and how many threads opened
#: a sandbox before the first one was open. CPU time of the loop's own thread: other programs do not matter.
METER = """
import asyncio, gc, sys, threading, time
from asyncio import events
from staddle import AsyncSandbox, Sandbox
from staddle.adapters._common import READ_LIMIT

worst = 0.0
run = events.Handle._run
def metered(handle):
    global worst
    began = time.thread_time()
    try:
        return run(handle)
    finally:
        worst = max(worst, time.thread_time() - began)
events.Handle._run = metered

make, beside, most, first = Sandbox._of, set(), 0, threading.Event()
def counted(settings):
    global most
    beside.add(threading.get_ident())
    if not first.is_set():
        most = max(most, len(beside))
    try:
        made = make(settings)
        first.set()
        return made
    finally:
        beside.discard(threading.get_ident())
Sandbox._of = counted

kept = []  # until the end: giving back the memory of the program takes the kernel a while

async def use(sandbox):
    async with sandbox:
        assert (await sandbox.exec(["echo", "hi"])).stdout == "hi\\n"

async def main():
    # A collection is of the program's objects, and comes when it comes.
    gc.disable()
    await asyncio.gather(*(use(AsyncSandbox()) for _ in range(int(sys.argv[1]))))
    async with AsyncSandbox() as sandbox:
        data = bytes(200 << 20)
        kept.append(data)
        await sandbox.files.write("/tmp/big", data)
        kept.append(await sandbox.files.read_bytes("/tmp/big", limit=READ_LIMIT))
        assert len(kept[-1]) == len(data)

asyncio.run(main())
print(worst * 1000, most)
"""


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_no_callback_takes_long_and_the_first_sandbox_is_opened_alone(tmp_path: Path) -> None:
    program = tmp_path / "meter.py"
    program.write_text(METER)
    words = [sys.executable, str(program), "50"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    worst, most = done.stdout.split()
    assert float(worst) < 20
    assert int(most) == 1
