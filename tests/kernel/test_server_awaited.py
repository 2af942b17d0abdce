"""The awaited client of a server: the names of `AsyncSandbox`, and cancelled tasks."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from staddle import Result
from staddle.errors import CommandFailed, InvalidCall
from staddle.server.client import ServerCommand
from tests.support.server_process import ServerProcess
from tests.support.waiting import unique_seconds, with_argument

pytestmark = pytest.mark.both_users


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as found:
        yield found


def test_a_sandbox_has_the_names_and_types_of_a_local_one(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("before\n")

    async def use() -> None:
        client = await staddle.connect_async(server.path)
        async with client, await client.create(tmp_path, name="one", labels={"a": "b"}, history=True) as sb:
            result = await sb.run("echo out; echo err >&2; cd /tmp; exit 3")
            assert (type(result), result.exit_code, result.stderr) == (staddle.Result, 3, "err\n")
            assert ((await sb.state()).cwd, await sb.labels()) == ("/tmp", {"a": "b"})
            assert (await sb.exec(["printf", "a b"])).stdout == "a b"
            with pytest.raises(CommandFailed):
                await sb.run("false", check=True)
            await sb.run("cd /workspace; echo after > f")
            assert [each.path for each in await sb.diff()] == ["/workspace/f"]
            assert await sb.files.read("f") == "after\n"
            point = await sb.snapshot("point")
            assert (point.label, await point.parent()) == ("point", None)
            await sb.run("rm f")
            assert (await sb.undo()).point.number >= 1
            assert (await sb.restore(point)).ended == ()
            assert await sb.snapshots() == [point]
            (fork,) = await sb.fork()
            assert (await fork.run("cat f")).stdout == "after\n"
            await fork.close()
            chunks = [each.text async for each in sb.stream("echo a; sleep 0.05; echo b")]
            assert "".join(chunks) == "a\nb\n"
            heard: list[str] = []
            assert (await sb.run("echo c", on_stdout=heard.append)).exit_code == 0
            assert heard == ["c\n"]
            second = sb.session("second")
            await second.run("y=2")
            assert (await second.run("echo $y")).stdout == "2\n"
            process = await sb.start("read line; echo got $line")
            await process.send_stdin("x\n")
            assert [each.text async for each in process.stream()] == ["got x\n"]
            assert (await process.wait(), await process.running()) == (0, False)
            async with await sb.terminal(["sh", "-c", "echo on a terminal"]) as terminal:
                seen = b""
                while not terminal.at_end:
                    seen += await terminal.read()
                assert b"on a terminal" in seen
            archive = io.BytesIO()
            await sb.download_tar(archive)
            assert archive.getvalue()
            review = await sb.review()
            assert [each.path for each in review.changes] == ["/workspace/f"]
            await review.commit()
            assert (tmp_path / "f").read_text() == "after\n"
            assert [each.id for each in await client.list("a=b")] == [sb.id]
            assert (await client.get("one")).id == sb.id
            with pytest.raises(InvalidCall):
                await sb.bisect("true")

    asyncio.run(use())


def test_a_cancelled_task_ends_its_command_and_nothing_else(server: ServerProcess) -> None:
    name = unique_seconds()

    async def use() -> None:
        async with await staddle.connect_async(server.path) as client, await client.create() as sb:
            await sb.run("x=5")
            for begin in (lambda: sb.run(f"sleep {name}"), lambda: sb.exec(["sleep", name])):
                task = asyncio.create_task(begin())
                while not with_argument(name):
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not with_argument(name)
            stream = sb.stream(f"echo go; sleep {name}")
            assert (await anext(stream)).text == "go\n"
            task = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert stream.result.reason == "cancelled"
            assert (await sb.run("echo $x")).stdout == "5\n"

    asyncio.run(use())


def test_a_task_that_is_cancelled_before_the_answer_waits_for_its_command(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ServerCommand.result
    ended: list[str] = []

    def result(self: ServerCommand) -> Result:
        found = whole(self)
        ended.append(found.reason)
        return found

    monkeypatch.setattr(ServerCommand, "result", result)

    async def use() -> None:
        async with await staddle.connect_async(server.path) as client, await client.create() as sb:
            for begin in (lambda: sb.run("sleep 60"), lambda: anext(sb.stream("sleep 60"))):
                task = asyncio.ensure_future(begin())
                await asyncio.sleep(0)  # the request is on its way
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert ended == ["cancelled"] * 2

    asyncio.run(use())


def test_a_cancelled_creation_leaves_no_sandbox(server: ServerProcess) -> None:
    async def use() -> None:
        async with await staddle.connect_async(server.path) as client:
            task = asyncio.create_task(client.create(name="cancelled"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(500):
                if client._threads._work_queue.empty() and not await client.list():
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert await client.list() == []

    asyncio.run(use())


def test_a_hundred_commands_wait_at_the_same_time(server: ServerProcess) -> None:
    async def use() -> None:
        async with await staddle.connect_async(server.path) as client:
            boxes = [await client.create() for _ in range(4)]
            many = [
                box.exec(["sh", "-c", "sleep 0.3; echo $0", str(at)]) for at in range(25) for box in boxes
            ]
            found = await asyncio.gather(*many)
            assert sorted(int(each.stdout) for each in found) == sorted(at for at in range(25) for _ in boxes)
            for box in boxes:
                await box.close()

    asyncio.run(use())
