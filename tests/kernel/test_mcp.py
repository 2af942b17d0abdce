"""`staddle mcp`, driven by the SDK's own client: over stdio and HTTP, in both protocol eras."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from staddle.mcp.sandboxes import SandboxRegistry, ServerSettings
from staddle.mcp.server import TOOLS, make_server
from tests.support.waiting import PATIENCE, unique_seconds, until, with_argument

pytestmark = pytest.mark.same_for_everyone

#: How the SDK's client names the stateless revision and the one before it.
ERAS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
SERVER = [sys.executable, "-m", "staddle", "mcp"]
ALL = frozenset(TOOLS)


class Person:
    """Answers the questions of a server."""

    def __init__(self, allow: bool = True, action: str = "accept") -> None:
        self.allow, self.action, self.asked = allow, action, []  # type: ignore[var-annotated]

    async def __call__(self, _: object, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        content = {"allow": self.allow} if self.action == "accept" else None
        return ElicitResult(action=self.action, content=content)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def served(
    workspace: Path, *options: str, tools: str | None = "all", **given: Any
) -> AsyncIterator[Client]:
    """A client of a server of its own, over stdio; `tools` None: it has those of no option."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    options = (*options, *(("--tools", tools) if tools is not None else ()))
    server = StdioServerParameters(
        command=SERVER[0], args=[*SERVER[1:], *options, str(workspace)], env=variables
    )
    async with Client(stdio_client(server, errlog=sys.stderr), **given) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a tool that succeeds."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content
    assert done.structured_content is not None
    return done.structured_content


async def said(client: Client, tool: str, **arguments: Any) -> str:
    """The words of a tool that succeeds."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content
    return done.content[0].text  # type: ignore[union-attr]


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The words of a tool that fails."""
    done = await client.call_tool(tool, arguments)
    assert done.is_error, done.structured_content
    return done.content[0].text  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_task_from_the_first_command_to_the_commit(era: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    person = Person()

    async def task() -> None:
        async with served(tmp_path, mode=era, elicitation_callback=person) as client:
            assert client.protocol_version == ERAS[era]
            await call(client, "bash", command="x=5; cd /workspace; echo two >> a.txt; echo oops >&2")
            ran = await call(client, "bash", command="echo $x $PWD; echo e >&2; (exit 3)")
            assert (ran["output"], ran["exit_code"]) == ("5 /workspace\ne\n", 3)
            await call(client, "edit_file", path="a.txt", old_text="two", new_text="three")
            read = await call(client, "read_file", path="a.txt", offset=2)
            assert (read["text"], read["total_lines"]) == ("three\n", 2)
            saved = await call(client, "snapshot", label="before")
            await call(client, "bash", command="rm a.txt")
            await call(client, "restore", snapshot=saved["snapshot"])
            [fork] = (await call(client, "fork", name="try"))["sandboxes"]
            await call(client, "bash", command="rm a.txt", sandbox=fork)
            assert await said(client, "diff", text=False) == "modified /workspace/a.txt\n"
            shown = await client.read_resource("staddle://default/diff")
            assert "+three" in shown.contents[0].text  # type: ignore[union-attr]
            assert (tmp_path / "a.txt").read_text() == "one\n"
            assert len((await call(client, "commit"))["committed"]) == 1
            assert (await call(client, "commit"))["committed"] == []

    asyncio.run(task())
    assert (tmp_path / "a.txt").read_text() == "one\nthree\n"
    assert len(person.asked) == 1
    assert "modified /workspace/a.txt" in person.asked[0]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_who_says_no_or_cannot_be_asked_gets_no_commit_and_no_host(era: str, tmp_path: Path) -> None:
    async def task(**given: Any) -> list[str]:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=ALL)), mode=era, **given) as client:
            await call(client, "bash", command="touch /workspace/made")
            return [await refused(client, "commit"), await refused(client, "allow_host", host="a.example")]

    for answer in (Person(allow=False), Person(action="decline"), Person(action="cancel")):
        assert asyncio.run(task(elicitation_callback=answer))
        assert len(answer.asked) == 2
    unable = asyncio.run(task())
    assert all("--yes" in words for words in unable)
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_background_processes_errors_and_repeated_calls(tmp_path: Path) -> None:
    async def task() -> None:
        async with served(tmp_path) as client:
            text = "echo up; read a; echo got $a; exec sleep 1000"
            pid = (await call(client, "bash", command=text, background=True))["pid"]
            first = await call(client, "read_output", pid=pid, wait=60)
            await call(client, "write_stdin", pid=pid, text="it\n")
            offset = first["next_offset"]
            second = await call(client, "read_output", pid=pid, offset=offset, wait=60)
            assert (first["output"], second["output"]) == ("up\n", "got it\n")
            assert [row["pid"] for row in (await call(client, "list_processes"))["processes"]] == [pid]
            await call(client, "kill", pid=pid, signal="KILL")
            ended = await call(client, "read_output", pid=pid, offset=second["next_offset"], wait=60)
            assert (ended["running"], ended["exit_code"]) == (False, 137)
            twice = [await call(client, "bash", command="echo x >> /tmp/f; cat /tmp/f", call_id="1")] * 2
            assert [ran["output"] for ran in twice] == ["x\n", "x\n"]
            assert "No such file or directory: /nope" in await refused(client, "read_file", path="/nope")
            assert "open are: default" in await refused(client, "bash", command="true", sandbox="other")
            await call(client, "open_sandbox", name="second")
            assert (await call(client, "close_sandbox", sandbox="second"))["was_open"]
            assert "open are: default" in await refused(client, "bash", command="true", sandbox="second")
            many = [call(client, "bash", command=f"echo {n}", session=f"s{n % 4}") for n in range(100)]
            assert [ran["output"] for ran in await asyncio.gather(*many)] == [f"{n}\n" for n in range(100)]

    asyncio.run(task())


@pytest.mark.slow
def test_a_cancelled_call_kills_its_command_and_a_client_that_is_gone_its_sandboxes(tmp_path: Path) -> None:
    first, second = unique_seconds(), unique_seconds()

    async def task() -> None:
        async with served(tmp_path) as client:
            waiting = asyncio.create_task(call(client, "bash", command=f"sleep {first}"))
            assert await asyncio.to_thread(until, lambda: with_argument(first))
            waiting.cancel()
            assert await asyncio.to_thread(until, lambda: not with_argument(first))
            await call(client, "bash", command=f"sleep {second}", background=True)
            assert await asyncio.to_thread(until, lambda: with_argument(second))

    asyncio.run(task())
    assert until(lambda: not with_argument(second))


@pytest.fixture
def http(tmp_path: Path) -> Any:
    """(address, headers) of a server over HTTP."""
    server = subprocess.Popen(
        [*SERVER, "--tools", "all", "--http", "0", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdout is not None
    try:
        said = json.loads(server.stdout.readline())
        yield said["url"], said["headers"]
    finally:
        server.terminate()
        server.wait(PATIENCE)
        server.stdout.close()


def status(url: str, headers: dict[str, str]) -> int:
    """The answer to a ping with these headers."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, body, {**usual, **headers})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_http_is_for_who_has_the_token_and_for_no_web_page(http: tuple[str, dict[str, str]]) -> None:
    url, headers = http

    async def task(mode: str) -> str:
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as web:
            transport: Callable[..., Any] = streamable_http_client
            async with Client(transport(url, http_client=web), mode=mode) as client:
                name = await call(client, "open_sandbox", name="shared")
                ran = await call(client, "bash", command="x=$x+; echo $x", sandbox=name["sandbox"])
                return str(ran["output"])

    assert [asyncio.run(task(mode)) for mode in ERAS] == ["+\n", "++\n"]  # one sandbox, two clients
    wrong = {"Authorization": headers["Authorization"] + "x"}
    assert [status(url, {}), status(url, wrong)] == [401, 401]
    assert status(url, {**headers, "Origin": "http://evil.example"}) == 403
    assert status(url, {**headers, "Host": "evil.example"}) == 421


def test_a_sandbox_that_has_ended_is_said_once_and_opened_again(tmp_path: Path) -> None:
    async def task() -> None:
        server = make_server(ServerSettings(str(tmp_path)))
        async with Client(server) as client:
            await call(client, "bash", command="x=1")
            [handle] = [made for made in opened if made.sandbox.alive]
            await handle.sandbox.close()
            assert "has stopped" in await refused(client, "bash", command="echo $x")
            assert (await call(client, "bash", command="echo $x"))["output"] == "\n"

    class Watched(SandboxRegistry):
        async def open(self, name: str | None, *, empty: bool = False) -> Any:
            opened.append(await super().open(name, empty=empty))
            return opened[-1]

    opened: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("staddle.mcp.server.SandboxRegistry", Watched)
        asyncio.run(task())
