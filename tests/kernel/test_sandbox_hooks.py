"""Hooks and the audit log: every command is told, before it starts and when it is over, in order."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from staddle import AsyncSandbox, Network, Policy, Sandbox
from staddle.errors import AuditFailed, CommandFailed, InvalidCall
from staddle.observe.audit import AuditProblem, read
from tests.support.waiting import run_together, until

SECRET = "sk-0123456789abcdef"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def problems_of(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [found.why for found in read(file) if isinstance(found, AuditProblem)]


def test_hooks_are_called_around_each_command_in_order() -> None:
    told: list[tuple[str, str]] = []
    with Sandbox(
        on_command=lambda start: told.append(("command", str(start))),
        on_result=lambda result: told.append(("result", str(result.exit_code))),
    ) as sb:
        sb.run("true")
        sb.run("exit 3")
        sb.exec(["sh", "-c", "exit 4"])
        with sb.stream("echo a") as stream:
            assert [chunk.text for chunk in stream] == ["a\n"]
        sb.session("other").run("false")
        with pytest.raises(CommandFailed):
            sb.run("exit 5", check=True)
        sb.start("true").wait()
        sb.processes()  # which runs a program of ours
    assert told == [
        ("command", "true"), ("result", "0"),
        ("command", "exit 3"), ("result", "3"),
        ("command", "sh -c exit 4"), ("result", "4"),
        ("command", "echo a"), ("result", "0"),
        ("command", "false"), ("result", "1"),
        ("command", "exit 5"), ("result", "5"),
        ("command", "true"),
    ]  # fmt: skip


def test_an_error_in_a_hook_is_the_callers(tmp_path: Path) -> None:
    def refuse(start: object) -> None:
        if "forbidden" in str(start):
            raise PermissionError("not that")

    def complain(result: object) -> None:
        raise KeyError("seen")

    with Sandbox(on_command=refuse, audit=tmp_path / "log") as sb:
        with pytest.raises(PermissionError, match="not that"):
            sb.run("touch ~/forbidden")
        with pytest.raises(PermissionError, match="not that"):
            sb.exec(["touch", "/tmp/forbidden"])
        with pytest.raises(PermissionError, match="not that"):
            sb.stream("touch ~/forbidden")
        with pytest.raises(PermissionError, match="not that"):
            sb.start("touch ~/forbidden")
        assert sb.run("ls ~ /tmp | grep bidden").exit_code == 1
    found = [line["what"] for line in lines_of(tmp_path / "log")]
    assert found == ["opened", *["command", "failed"] * 3, "started", "command", "result", "closed"]
    with Sandbox(on_result=complain) as sb:
        with pytest.raises(KeyError, match="seen"):
            sb.run("x=1")
        with pytest.raises(KeyError, match="seen"):
            sb.exec(["true"])
    with Sandbox() as sb:
        assert sb.run("echo still here").ok


def test_violations_are_told_before_the_result() -> None:
    told: list[str] = []
    policy = Policy.agent().with_network(Network.allow("api.example.com"))
    with Sandbox(
        policy=policy,
        on_violation=lambda event: told.append(event.what),
        on_result=lambda result: told.append("result"),
    ) as sb:
        sb.run("(exec 3<>/dev/tcp/192.0.2.7/80) 2>/dev/null")
        sb.run("true")
    assert told == ["192.0.2.7:80", "result", "result"]


def test_the_audit_log_has_everything_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    log = tmp_path / "log"
    with Sandbox(tmp_path / "project", env={"API_KEY": SECRET}, audit=log) as sb:
        sb.run(f"echo $API_KEY {SECRET} > made")
        snapshot = sb.snapshot("one")
        sb.run("rm made", env={"TOKEN": "other"})
        sb.restore(snapshot)
        (other,) = sb.fork()
        other.close()
        sb.commit()
        sb.discard()
        sb.pause()
        sb.resume()
    assert SECRET not in log.read_text()
    assert problems_of(log) == []
    found = lines_of(log)
    ours = [line for line in found if line["log"] == found[0]["log"]]
    assert [line["what"] for line in ours] == [
        "opened", "command", "result", "snapshot", "command", "result", "restored", "snapshot", "forked",
        "committed", "discarded", "paused", "resumed", "closed",
    ]  # fmt: skip
    assert [line["what"] for line in found if line["log"] != found[0]["log"]] == ["opened", "closed"]
    assert ours[1]["command"] == "echo $API_KEY (hidden) > made"
    assert ours[2]["changes"] == ["added /workspace/made"]
    assert ours[4]["env"] == ["TOKEN"]
    assert ours[9]["changes"][0].startswith("added")


def test_every_kind_of_target(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    with Sandbox(audit=records.append) as sb:
        took = sb.run("true").duration
    assert [record["what"] for record in records] == ["opened", "command", "result", "closed"]
    assert records[2]["duration"] == pytest.approx(took, abs=2e-6)
    for mode in ("w", "ab", "wb"):
        with (tmp_path / mode).open(mode) as file, Sandbox(audit=file) as sb:
            sb.run("true")
        assert problems_of(tmp_path / mode) == []


def test_a_file_and_a_function_are_told_the_same(tmp_path: Path) -> None:
    def told(audit: Any) -> None:
        with Sandbox(tmp_path / "project", env={"API_KEY": SECRET}, audit=audit) as sb:
            for command in (
                "true",
                "exit 3",
                "echo é \udcff '\"'",
                f"echo {SECRET}",
                "kill $$",
                "x" * 11_000,
            ):
                sb.run(command)
            sb.run("echo a > made; echo b >&2")
            sb.run("pwd", cwd="/tmp", env={"A": "b"})
            sb.exec(["echo", SECRET])
            sb.session("other").run("true")

    (tmp_path / "project").mkdir()
    records: list[dict[str, Any]] = []
    told(records.append)
    told(tmp_path / "log")
    found = lines_of(tmp_path / "log")
    for line in found:
        line.pop("after")  # a record has no spelling to hash
    varying = ("log", "at", "duration", "user_time", "memory")
    at_times = ("user_time", "memory")  # where something was measured
    fields = [[[name for name in one if name not in at_times] for one in each] for each in (found, records)]
    assert fields[0] == fields[1], "the same fields, in order"
    for line in (*found, *records):
        for name in varying:
            line.pop(name, None)
    assert found == records
    assert SECRET not in repr(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["true", "sleep 1", "i=0; while ((i++ < 400000)); do :; done"])
def test_times_in_the_log_are_those_of_the_result(command: str) -> None:
    records: list[dict[str, Any]] = []
    with Sandbox(audit=records.append) as sb:
        result = sb.run(command)
    assert records[2]["duration"] == pytest.approx(result.duration, abs=2e-6)
    assert records[2]["user_time"] == pytest.approx(result.usage.user, abs=2e-6)
    assert abs(records[2]["at"] - records[1]["at"] - result.duration) < 0.5


def test_without_a_line_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(AuditFailed):
        Sandbox(audit="/dev/full")
    full = False

    def write(record: dict[str, Any]) -> None:
        if full:
            raise OSError("no room")

    with Sandbox(tmp_path, audit=write) as sb:
        full = True
        with pytest.raises(OSError, match="no room"):
            sb.run("touch made")
        full = False
        assert sb.run("ls").stdout == ""


def test_a_log_in_the_workspace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="in the workspace"):
        Sandbox(tmp_path, audit=tmp_path / "log")

    async def hook(_: object) -> None: ...

    with pytest.raises(InvalidCall, match="coroutine"):
        Sandbox(on_command=hook)
    with pytest.raises(InvalidCall, match="cannot be called"):
        Sandbox(on_result="print")  # type: ignore[arg-type]


def test_network_attempts_are_recorded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Sandbox(policy=Policy.agent().with_network(Network.allow("api.example.com")), audit=log) as sb:
        sb.run("(exec 3<>/dev/tcp/192.0.2.7/80) 2>/dev/null")
    found = lines_of(log)
    assert [line["what"] for line in found] == ["opened", "command", "refused", "result", "closed"]
    assert (found[2]["host"], found[2]["id"]) == ("192.0.2.7:80", found[1]["id"])


def test_refusals_that_no_result_reports_are_told(tmp_path: Path) -> None:
    policy = Policy.agent().with_network(Network.allow("api.example.com"))
    knock = "sleep 0.2; (exec 3<>/dev/tcp/192.0.2.7/80) 2>/dev/null"
    told: list[str] = []
    with Sandbox(
        policy=policy, on_violation=lambda event: told.append(event.what), audit=tmp_path / "log"
    ) as sb:
        sb.start(knock).wait()
        assert [event.what for event in sb.refusals()] == told == ["192.0.2.7:80"]
        sb.start(knock).wait()
    assert told == ["192.0.2.7:80"] * 2
    assert [line["host"] for line in lines_of(tmp_path / "log") if line["what"] == "refused"] == told

    async def hear(event: Any) -> None:
        await asyncio.sleep(0)
        told.append(event.what)

    async def main() -> None:
        async with AsyncSandbox(policy=policy, on_violation=hear) as sb:
            await (await sb.start(knock)).wait()
            assert len(await sb.refusals()) == 1
            await (await sb.start(knock)).wait()

    told.clear()
    asyncio.run(main())
    assert told == ["192.0.2.7:80"] * 2


def test_awaited_hooks(tmp_path: Path) -> None:
    told: list[str] = []

    async def before(start: object) -> None:
        await asyncio.sleep(0)
        told.append(f"command {start}")
        if "forbidden" in str(start):
            raise PermissionError("not that")

    async def after(result: Any) -> None:
        await asyncio.sleep(0)
        told.append(f"result {result.exit_code}")

    async def main() -> None:
        async with AsyncSandbox(on_command=before, on_result=after, audit=tmp_path / "log") as sb:
            await sb.run("exit 3")
            await sb.exec(["true"])
            async with sb.stream("echo a") as stream:
                async for _ in stream:
                    pass
            await (await sb.start("true")).wait()
            for refused in (sb.run("forbidden"), sb.exec(["forbidden"]), sb.start("forbidden")):
                with pytest.raises(PermissionError):
                    await refused
            task = asyncio.create_task(sb.run("sleep 1000"))
            while told[-1] != "command sleep 1000":
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert told == [
        "command exit 3", "result 3", "command true", "result 0", "command echo a", "result 0",
        "command true", "command forbidden", "command forbidden", "command forbidden", "command sleep 1000",
    ]  # fmt: skip
    assert problems_of(tmp_path / "log") == []
    assert [line["what"] for line in lines_of(tmp_path / "log")].count("failed") == 3


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Sandbox(audit=log) as sb:
        threads = [threading.Thread(target=lambda: [sb.run("true") for _ in range(20)]) for _ in range(4)]
        run_together(threads)
    assert problems_of(log) == []
    begun = {line["id"] for line in lines_of(log) if line["what"] == "command"}
    assert begun == {line["id"] for line in lines_of(log) if line["what"] == "result"} == set(range(1, 81))


@pytest.mark.slow
def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; from staddle import Sandbox\nsb = Sandbox(audit=sys.argv[1])\nwhile 1: sb.run(':')\n"
    with subprocess.Popen([sys.executable, "-c", code, str(log)]) as program:
        assert until(lambda: log.exists() and log.read_bytes().count(b"\n") > 20)
        program.send_signal(signal.SIGKILL)
    found = problems_of(log)
    assert len(found) == 1
    assert "no end after number" in found[0]
    assert os.path.getsize(log) > 0


@pytest.mark.slow
def test_a_command_that_has_begun_is_in_the_log_after_a_kill(tmp_path: Path) -> None:
    project, log = tmp_path / "project", tmp_path / "log"
    project.mkdir()
    code = (
        "import sys; from staddle import Sandbox\n"
        "sb = Sandbox(sys.argv[1], mode='bind', audit=sys.argv[2])\n"
        "sb.run('true'); sb.run('exit 3')\n"
        "sb.run('touch begun; sleep 1000')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(project), str(log)]) as program:
        assert until((project / "begun").exists)
        program.send_signal(signal.SIGKILL)
    told = [(line["what"], line.get("command", line.get("exit_code"))) for line in lines_of(log)]
    assert told[1:] == [
        ("command", "true"), ("result", 0), ("command", "exit 3"), ("result", 3),
        ("command", "touch begun; sleep 1000"),
    ]  # fmt: skip


@pytest.mark.same_for_everyone
def test_the_end_of_a_program_in_the_background_is_recorded_when_it_is_noticed(tmp_path: Path) -> None:
    with Sandbox(audit=tmp_path / "audit") as sb:
        sb.start("exit 4").wait(60)
        sb.start("sleep 1000")
        unasked = sb.start("exit 5")
        with sb.terminal(["true"]) as terminal:
            terminal.wait(60)
        assert until(lambda: select.select([unasked._spawned], [], [], 0)[0])  # it has ended
    lines = lines_of(tmp_path / "audit")
    ended = {line["id"]: line["exit_code"] for line in lines if line["what"] == "ended"}
    begun = [line["id"] for line in lines if line["what"] in {"started", "terminal"}]
    assert len(begun) == 4
    assert {number: ended.get(number) for number in begun} == dict(zip(begun, [4, None, 5, 0], strict=True))
    assert lines[-1]["what"] == "closed"
