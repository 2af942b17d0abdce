"""`staddle mcp` with odd arguments, odd files, repeated and cancelled calls, and clients that vanish."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from staddle.mcp.sandboxes import ServerSettings
from staddle.mcp.server import TOOLS, make_server
from tests.kernel.test_mcp import ALL, ERAS, SERVER, Person, call, refused, said, served
from tests.support.waiting import PATIENCE, next_line, unique_seconds, until, with_argument

pytestmark = pytest.mark.same_for_everyone

#: tool: (arguments, a part of what is said), with a file, a FIFO and a directory in the workspace.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"no_such_argument": 1}, f"{name} has no argument `no_such_argument`") for name in TOOLS),
    ("bash", {}, "bash needs the argument `command`: text"),
    ("bash", {"command": 5}, "`command` of bash must be text, not 5"),
    ("bash", {"command": ["ls"]}, 'must be text, not ["ls"]'),
    ("bash", {"command": "a\0b"}, "NUL"),
    ("bash", {"command": "true", "timeout": -1}, "must be a number above 0 up to 86400, not -1"),
    ("bash", {"command": "true", "timeout": 1e9}, "up to 86400, not 1000000000.0"),
    ("bash", {"command": "true", "output_limit": 1}, "a whole number from 100 up to 1000000, not 1"),
    ("bash", {"command": "true", "sandbox": ""}, "there is no sandbox ''"),
    ("bash", {"command": "true", "session": ""}, "empty"),
    ("read_output", {"pid": 1}, "no background process 1"),
    ("read_output", {"pid": 10**30}, "no background process"),
    ("write_stdin", {"pid": -1, "text": ""}, "no background process"),
    ("kill", {"pid": "x"}, 'a whole number, not "x"'),
    ("read_file", {"path": "fifo"}, "not a file"),
    ("read_file", {"path": "/dev/zero"}, "not a file"),
    ("read_file", {"path": "dir"}, "Is a directory"),
    ("read_file", {"path": "bin"}, "not text"),
    ("read_file", {"path": "\0"}, "NUL"),
    ("read_file", {"path": "a", "offset": 0}, "a whole number from 1, not 0"),
    ("read_file", {"path": "../../etc/shadow"}, "No such file"),
    ("write_file", {"path": "dir", "content": ""}, "Is a directory"),
    ("write_file", {"path": "/etc/passwd", "content": ""}, "denied"),
    ("edit_file", {"path": "fifo", "old_text": "a", "new_text": ""}, "not a file"),
    ("edit_file", {"path": "a", "old_text": "", "new_text": ""}, "text of at least 1 characters, not"),
    ("edit_file", {"path": "a", "old_text": "no", "new_text": ""}, "0 times"),
    ("glob", {"pattern": "../*"}, ".. segment"),
    ("glob", {"pattern": "["}, "["),
    ("grep", {"pattern": "["}, "the search failed"),
    ("grep", {"pattern": "a", "path": "-rf"}, "No such file"),
    ("list_directory", {"path": "nope"}, "No such file"),
    ("restore", {"snapshot": "nope"}, "there is no snapshot"),
    ("history", {"point": 9}, "there is no point 9"),
    ("undo", {"count": 0}, "a whole number from 1 up to 1000, not 0"),
    ("undo", {"count": 1000}, "`history` lists the points"),
    ("undo", {"redo": True}, "nothing is undone"),
    ("bisect", {"test": "true", "good": 0, "bad": 9}, "`history` lists the points"),
    ("bisect", {"test": "true", "bad": 0}, "an older point in `good`"),
    ("merge", {"forks": []}, "must be a list of texts"),
    ("merge", {"forks": ["nope"]}, "open are: default"),
    ("merge", {"forks": ["default"]}, "name sandboxes that `fork` made"),
    ("merge", {"forks": ["default"], "on_conflict": "both"}, "must be one of refuse, ours, theirs, not"),
    ("fork", {"count": 17}, "a whole number from 1 up to 16, not 17"),
    ("fork", {"name": "../x"}, "that matches"),
    ("open_sandbox", {"name": "a/b"}, "that matches"),
    ("diff", {"paths": ["/etc"]}, "not in the workspace"),
    ("commit", {"paths": ["nope"]}, "nope"),
    ("discard", {"paths": "a"}, 'a list of texts, not "a"'),
    ("allow_host", {"host": "a b"}, "that matches"),
    ("allow_host", {"host": "a.example:99999"}, "port"),
    ("status", {"sandbox": "nope"}, "open are: default"),
    ("close_sandbox", {}, "needs the argument `sandbox`"),
]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_every_tool_refuses_odd_arguments_with_words(era: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "bin").write_bytes(bytes(range(256)))
    (tmp_path / "dir").mkdir()
    assert {tool for tool, _, _ in REFUSED} == set(TOOLS)

    async def task() -> None:
        settings = ServerSettings(str(tmp_path), tools=ALL)
        async with Client(make_server(settings), mode=era, elicitation_callback=Person()) as client:
            await call(client, "bash", command="mkfifo fifo")
            for tool, arguments, part in REFUSED:
                words = await refused(client, tool, **arguments)
                assert part in words, (tool, arguments, words)
                assert "pydantic" not in words, words
            # A FIFO is nothing to search in, and no path is not all paths.
            assert (await call(client, "grep", pattern="one", path="fifo"))["matches"] == []
            assert (await call(client, "commit", paths=[]))["committed"] == []
            assert (await call(client, "discard", paths=[]))["discarded"] == []
            assert (await call(client, "bash", command="echo alive"))["output"] == "alive\n"

    asyncio.run(task())


@pytest.mark.slow
def test_names_that_are_no_utf8_and_output_without_end_do_not_end_the_server(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")

    async def task() -> None:
        async with served(tmp_path) as client:
            made = await call(client, "bash", command=r"echo x > $'\xff\xfe'; printf '\xff\0'; ls $'no\xff'")
            assert made["changed"] == [r"added /workspace/\xff\xfe"]
            assert made["output"].startswith("\ufffd\0")
            for tool, arguments in (("glob", {"pattern": "*"}), ("list_directory", {}), ("diff", {})):
                assert r"\xff\xfe" in await said(client, tool, **arguments)
            assert r"\xff" in (await client.read_resource("staddle://default/diff")).contents[0].text  # type: ignore[union-attr]
            huge = await call(client, "bash", command="head -c 100000000 /dev/zero | tr '\\0' x")
            assert huge["truncated"]
            assert len(huge["output"]) < 31_000
            stopped = await call(client, "bash", command="yes", timeout=0.5)
            assert stopped["reason"] in ("timeout", "output_limit")
            assert (await call(client, "discard"))["discarded"] == [r"added /workspace/\xff\xfe"]

    asyncio.run(task())


@pytest.mark.slow
def test_a_process_that_does_not_read_is_not_waited_for_without_end(tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=ALL))) as client:
            pid = (await call(client, "bash", command="exec sleep 1000", background=True))["pid"]
            words = await refused(client, "write_stdin", pid=pid, text="x" * 1_000_000, timeout=0.2)
            taken = int(words.partition("took ")[2].split()[0])
            assert 0 < taken < 1_000_000
            assert "does not read" in await refused(client, "write_stdin", pid=pid, text="y", timeout=0.2)
            reads = (await call(client, "bash", command="sleep 0.3; exec wc -c", background=True))["pid"]
            text = "x" * 1_000_000
            assert (await call(client, "write_stdin", pid=reads, text=text, close=True))["sent"] == len(text)
            assert (await call(client, "read_output", pid=reads, wait=60))["output"].strip() == "1000000"

    asyncio.run(task())


@pytest.mark.slow
def test_the_timeout_of_the_server_is_that_of_a_call_which_names_none(tmp_path: Path) -> None:
    async def task() -> list[str]:
        async with served(tmp_path, "--timeout", "0.3") as client:
            given: list[dict[str, Any]] = [{}, {"timeout": 60}]
            return [(await call(client, "bash", command="sleep 1", **more))["reason"] for more in given]

    assert asyncio.run(task()) == ["timeout", "exited"]


@pytest.mark.slow
def test_a_repeated_call_is_not_cancelled_with_the_first_one(tmp_path: Path) -> None:
    """The first is cancelled while the second waits for its answer: the second does the work."""
    text = "mkdir /tmp/began && sleep 1000; echo second"

    async def task() -> None:
        async with served(tmp_path) as client:
            first = asyncio.create_task(call(client, "bash", command=text, call_id="same"))
            while not (await call(client, "glob", pattern="/tmp/began"))["paths"]:
                await asyncio.sleep(0.05)
            second = asyncio.create_task(call(client, "bash", command=text, call_id="same"))
            await call(
                client, "status"
            )  # it is answered while a command runs; the second call is read by now
            first.cancel()
            assert (await second)["output"].endswith("second\n")
            again = await call(client, "bash", command=text, call_id="same")
            assert again == await second

    asyncio.run(task())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("how", ["touch /workspace/later{}", "echo evil{} > /workspace/first"])
def test_what_changes_while_a_person_is_asked_is_not_committed(era: str, how: str, tmp_path: Path) -> None:
    class Slow(Person):
        async def __call__(self, context: object, params: Any) -> Any:
            if len(self.asked) < 3:  # the newest revision asks again, about what there is now
                await call(client, "bash", command=how.format(len(self.asked)))
            return await super().__call__(context, params)

    person = Slow()

    async def task() -> None:
        nonlocal client
        settings = ServerSettings(str(tmp_path))
        async with Client(make_server(settings), mode=era, elicitation_callback=person) as client:
            await call(client, "bash", command="echo first > /workspace/first")
            if era == "legacy" and "evil" in how:
                assert "since the review" in await refused(client, "commit")
            else:
                await call(client, "commit")

    client: Any = None
    asyncio.run(task())
    shown = "\n".join(person.asked[-1:])
    assert all(name in shown for name in os.listdir(tmp_path))
    assert len(person.asked) == (1 if era == "legacy" else 4), "another content is another question"


_CLIENT = """
import asyncio, sys
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

async def main():
    seconds, era, text, *command = sys.argv[1:]
    server = StdioServerParameters(command=command[0], args=command[1:])
    async with Client(stdio_client(server), mode=era) as client:
        await client.call_tool("open_sandbox", {"name": "other"})
        started = {"command": f"exec sleep {seconds}", "background": True, "sandbox": "other"}
        await client.call_tool("bash", started)
        await client.call_tool("bash", {"command": text})

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("era", "text"), [("auto", "sleep {0}; true"), ("legacy", "sleep {0} & yes; true")], ids=ERAS
)
def test_a_client_that_is_killed_leaves_nothing(era: str, text: str, tmp_path: Path) -> None:
    seconds = unique_seconds()
    server = [*SERVER, "--tools", "all", str(tmp_path)]
    words = [sys.executable, "-c", _CLIENT, seconds, era, text.format(seconds), *server]
    with open(tmp_path / "said", "wb") as errors:
        client = subprocess.Popen(words, stderr=errors)
    assert until(lambda: len(with_argument(seconds)) >= 3)  # the client and both commands
    servers = _children(client.pid)
    client.kill()
    client.wait(PATIENCE)
    assert until(lambda: not with_argument(seconds))
    assert len(servers) == 1
    assert until(lambda: not Path(f"/proc/{servers[0]}").exists())
    assert b"bug" not in (tmp_path / "said").read_bytes()


def _children(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_connection_that_is_dropped_in_a_call_ends_its_command(tmp_path: Path) -> None:
    """Of the newest revision; before it, the protocol says that this is no cancellation."""
    seconds = unique_seconds()
    words = [*SERVER, "--http", "0", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        said = json.loads(next_line(server))
        host = said["url"].split("/")[2]
        name, _, port = host.partition(":")
        prefix = "io.modelcontextprotocol"
        meta = {
            f"{prefix}/protocolVersion": ERAS["auto"],
            f"{prefix}/clientInfo": {"name": "test", "version": "1"},
            f"{prefix}/clientCapabilities": {},
        }
        params = {"name": "bash", "arguments": {"command": f"sleep {seconds}; true"}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        headers = {
            **said["headers"],
            "Host": host,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Content-Length": str(len(body)),
            "MCP-Protocol-Version": ERAS["auto"],
            "Mcp-Method": "tools/call",
            "Mcp-Name": "bash",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection((name, int(port)), PATIENCE) as connection:
            connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
            assert until(lambda: with_argument(seconds))
        assert until(lambda: not with_argument(seconds))
        server.terminate()
        server.wait(PATIENCE)


@pytest.mark.slow
def test_a_hundred_calls_at_once_are_all_answered(tmp_path: Path) -> None:
    """Of one shell, which serves them one after the other; of files; and of a hundred shells."""

    async def task() -> None:
        async with served(tmp_path) as client:
            await call(client, "bash", command="n=0")
            calls = [call(client, "bash", command="n=$((n + 1)); echo $n") for _ in range(100)]
            printed = sorted(int(ran["output"]) for ran in await asyncio.gather(*calls))
            assert printed == list(range(1, 101))
            files = [call(client, "write_file", path=f"/tmp/{n}", content=f"{n}") for n in range(100)]
            assert all(made["created"] for made in await asyncio.gather(*files))
            shells = [call(client, "bash", command=f"cat /tmp/{n}", session=f"s{n}") for n in range(100)]
            assert [ran["output"] for ran in await asyncio.gather(*shells)] == [f"{n}" for n in range(100)]

    asyncio.run(task())
