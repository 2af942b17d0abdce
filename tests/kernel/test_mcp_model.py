"""`staddle mcp` as a model sees it: a short list of tools, and answers and errors that it can act on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from staddle.mcp.sandboxes import DEFAULT_TOOLS, ServerSettings
from staddle.mcp.server import TOOLS, make_server
from tests.kernel.test_mcp import ALL, ERAS, SERVER, Person, call, refused, said, served
from tests.support.in_a_child import captured
from tests.support.waiting import PATIENCE, unique_seconds, until, with_argument

pytestmark = pytest.mark.same_for_everyone

#: A model reads the list with every task.
MOST_TOOLS, MOST_CHARACTERS = 10, 12_000


async def listed(client: Client) -> dict[str, Any]:
    """The result of tools/list, as it is on the wire."""
    return (await client.list_tools()).model_dump(mode="json", by_alias=True, exclude_none=True)


def check_short(result: dict[str, Any], instructions: str | None) -> None:
    """The default list is short, and names no tool that is not in it."""
    tools = {tool["name"] for tool in result["tools"]}
    assert tools == DEFAULT_TOOLS
    assert len(tools) <= MOST_TOOLS
    text = json.dumps(result)
    assert len(text) <= MOST_CHARACTERS
    missing = [name for name in TOOLS if name not in tools and "_" in name] + ["fork", "discard"]
    assert not re.findall(rf"\b({'|'.join(missing)})\b", f"{text} {instructions}")
    assert '"sandbox"' not in text, "no tool makes another one"
    assert '"background"' not in text, "no tool reads its output"


@pytest.mark.parametrize("era", ERAS)
def test_the_default_list_of_tools_is_short_over_stdio(era: str, tmp_path: Path) -> None:
    async def task() -> None:
        async with served(tmp_path, tools=None, mode=era) as client:
            check_short(await listed(client), client.instructions)

    asyncio.run(task())


@pytest.mark.parametrize("era", ERAS)
def test_the_default_list_of_tools_is_short_over_http(era: str, tmp_path: Path) -> None:
    async def task(url: str, headers: dict[str, str]) -> None:
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as web:
            transport: Callable[..., Any] = streamable_http_client
            async with Client(transport(url, http_client=web), mode=era) as client:
                check_short(await listed(client), client.instructions)

    words = [*SERVER, "--http", "0", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            asyncio.run(task(**json.loads(server.stdout.readline())))
        finally:
            server.terminate()


def test_tools_can_be_chosen(tmp_path: Path) -> None:
    async def names(*words: str) -> set[str]:
        async with served(tmp_path, *words, tools=None) as client:
            return {tool["name"] for tool in (await listed(client))["tools"]}

    assert asyncio.run(names("--tools", "all")) == ALL
    assert asyncio.run(names("--tools", "bash, grep")) == {"bash", "grep"}
    assert asyncio.run(names("--yes", "allow_host")) == DEFAULT_TOOLS | {"allow_host"}
    for wrong in ("bash,nope", ""):
        done = captured([*SERVER, "--tools", wrong, str(tmp_path)])
        assert done.returncode == 125
        assert f"there is no tool {wrong.rpartition(',')[2]!r}" in done.stderr
        assert all(name in done.stderr for name in TOOLS)


def test_without_the_extra_one_sentence_names_the_command_that_installs_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from staddle.cli import main; sys.exit(main(sys.argv[1:]))"
    for words in (["mcp", str(tmp_path)], ["mcp", "--help"]):
        done = captured([sys.executable, "-c", code, *words])
        assert "pip install 'staddle[mcp]'" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("era", ERAS)
def test_answers_are_text_that_a_model_can_read(era: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path))), mode=era) as client:
            assert await said(client, "bash", command="true") == "(exit code 0, no output)"
            assert await said(client, "diff") == "(no changes)"
            assert await said(client, "write_file", path="empty", content="") == "created empty (0 bytes)"
            assert await said(client, "read_file", path="empty") == "(no line from 1: the file has 0)"
            edited = await said(client, "edit_file", path="a.txt", old_text="one", new_text="two")
            assert "-one\n+two\n" in edited
            shown = await client.call_tool("diff", {})
            assert "modified /workspace/a.txt\n" in shown.content[0].text  # type: ignore[union-attr]
            assert "-one\n+two\n" in shown.content[0].text  # type: ignore[union-attr]
            assert shown.structured_content is None, "clients that prefer it would show escaped newlines"
            await call(client, "snapshot", label="before")
            await call(client, "bash", command="seq 1000 > long; seq 1000 > b; rm a.txt")
            short = await said(client, "diff", output_limit=100)
            assert len(short) < 400
            assert "3 more changes" in short
            assert "added /workspace/long" in short
            await call(client, "restore", snapshot="before")
            assert await said(client, "bash", command="cat a.txt") == "two"

    asyncio.run(task())


def test_every_list_and_every_process_is_text(tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=ALL))) as client:
            assert await said(client, "list_directory") == "(empty)"
            assert await said(client, "glob", pattern="*") == "(nothing found)"
            assert await said(client, "list_processes") == "(no background process)"
            assert await said(client, "discard") == "(no changes to discard)"
            await call(client, "bash", command="mkdir d; printf 'one\\ntwo\\n' > f")
            assert await said(client, "list_directory") == "d/\nf (file, 8 bytes)"
            assert await said(client, "grep", pattern="o", limit=1) == (
                "./f:1:one\n[… more than 1: narrow it, or raise limit …]"
            )
            pid = (await call(client, "bash", command="echo up; exit 3", background=True))["pid"]
            assert await said(client, "read_output", pid=pid, wait=PATIENCE)
            assert (await said(client, "read_output", pid=pid, offset=3, wait=PATIENCE)).startswith(
                "[exit code 3;"
            )
            await call(client, "snapshot", label="here")
            await call(client, "fork", name="f")
            await call(client, "bash", command="rm f", sandbox="f-1")
            await call(client, "restore", snapshot="here", sandbox="f-1")
            assert "one" in await said(client, "bash", command="cat f", sandbox="f-1")

    asyncio.run(task())


@pytest.mark.parametrize("era", ERAS)
def test_a_model_lists_what_it_did_and_takes_it_back(era: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path))), mode=era) as client:
            none = await refused(client, "undo")
            assert "nothing was changed" in none
            assert "`history` lists the points" in none
            await call(client, "bash", command="echo two >> a.txt; cd /tmp")
            await call(client, "bash", command="cat a.txt; ls")
            await call(client, "edit_file", path="/workspace/a.txt", old_text="two", new_text="three")
            await call(client, "bash", command="rm /workspace/a.txt; false")
            points = (await call(client, "history"))["points"]
            assert [row["command"] for row in points] == [
                "rm /workspace/a.txt; false",
                "",
                "echo two >> a.txt; cd /tmp",
                "",
            ]
            assert [row["cause"] for row in points] == ["command", "files", "command", "start"]
            assert (points[0]["exit_code"], points[0]["changes"]) == (1, ["deleted /workspace/a.txt"])
            listed = (await said(client, "history")).splitlines()
            assert listed[0].startswith("3: ")
            assert "'rm /workspace/a.txt; false'  exit code 1  deleted /workspace/a.txt" in listed[0]
            assert "(files)  modified /workspace/a.txt" in listed[1]
            assert "+three" in await said(client, "history", point=2)
            assert "4 earlier points" not in await said(client, "history", output_limit=100)
            assert (await said(client, "history", output_limit=100)).endswith("earlier points …]")
            taken = await said(client, "undo", count=2)
            assert taken.endswith("files and shell are as at point 1")
            assert taken.startswith("taken back: 3: ")
            assert await said(client, "bash", command="pwd; cat /workspace/a.txt") == "/tmp\none\ntwo"
            again = await call(client, "undo", redo=True)
            assert [row["point"] for row in again["steps"]] == [2]
            assert "three" in await said(client, "read_file", path="/workspace/a.txt")

    asyncio.run(task())
    assert (tmp_path / "a.txt").read_text() == "one\n"


def test_an_undo_says_which_processes_it_ended_and_does_not_cross_a_commit(tmp_path: Path) -> None:
    async def task() -> None:
        settings = ServerSettings(str(tmp_path), tools=ALL)
        async with Client(make_server(settings), elicitation_callback=Person()) as client:
            await call(client, "bash", command="echo 1 > f")
            await call(client, "bash", command="sleep 1000", background=True)
            assert any("sleep" in command for command in (await call(client, "undo"))["ended"])
            await call(client, "bash", command="echo 2 > f")
            await call(client, "commit")
            assert "a commit has written the changes" in await refused(client, "undo")

    asyncio.run(task())
    assert (tmp_path / "f").read_text() == "2\n"


def test_a_model_finds_the_command_that_broke_a_test(tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=ALL))) as client:
            for number in range(8):
                await call(client, "bash", command=f"echo {number} > n")
            test = "echo n is $(cat n); test ! -e n || test $(cat n) -lt 5"
            found = await call(client, "bisect", test=test)
            assert (found["point"]["command"], found["output"]) == ("echo 5 > n", "n is 5\n")
            assert (found["last_good"], found["suspects"]) == (5, [6])
            told = await said(client, "bisect", test=test, good=2)
            assert told.startswith("the test fails since point 6: ")
            assert "name in `bad` a point" in await refused(client, "bisect", test="true")
            assert "name in `good` a point" in await refused(client, "bisect", test="sleep 9", timeout=0.1)
            assert await said(client, "bash", command="cat n") == "7"

    asyncio.run(task())


def test_a_model_merges_what_it_tried_in_forks(tmp_path: Path) -> None:
    (tmp_path / "prices").write_text("tea 3\ncake 4\nmilk 1\n")

    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=ALL))) as client:
            await call(client, "fork", count=3, name="try")
            for number, text in ((1, "tea 3/tea 5"), (2, "milk 1/milk 2"), (3, "tea 3/tea 9")):
                await call(client, "bash", command=f"sed -i 's/{text}/' prices", sandbox=f"try-{number}")
            done = await call(client, "merge", forks=["try-1", "try-2"], test="grep 'tea 5' prices")
            assert (done["written"], done["exit_code"], done["output"]) == (True, 0, "tea 5\n")
            assert await said(client, "bash", command="cat prices") == "tea 5\ncake 4\nmilk 2"
            conflict = await call(client, "merge", forks=["try-3"])
            assert not conflict["written"]
            assert conflict["conflicts"][0]["sandbox"] == "try-3"
            told = await said(client, "merge", forks=["try-3"])
            assert "<<<<<<< ours\ntea 5\n" in told
            assert "merge again with on_conflict" in told
            failed = await said(client, "merge", forks=["try-3"], on_conflict="theirs", test="echo no; false")
            assert failed.startswith("nothing was written: the test failed\nno\n")
            merged = await said(client, "merge", forks=["try-3"], on_conflict="theirs")
            assert "undo takes the merge back" in merged
            await call(client, "undo", count=2)
            assert await said(client, "bash", command="cat prices") == "tea 3\ncake 4\nmilk 1"
            assert await said(client, "merge", forks=["try-1"], paths=["other"]) == "(nothing to merge)"

    asyncio.run(task())


@pytest.mark.parametrize("mode", ["bind", "readonly"])
def test_without_layers_undo_says_why_and_what_else_there_is(mode: str, tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), mode=mode, tools=ALL))) as client:
            for tool in ("undo", "history"):
                assert f"no history: its mode is {mode}" in await refused(client, tool)
            made = (await call(client, "open_sandbox", empty=True))["sandbox"]
            assert len((await call(client, "history", sandbox=made))["points"]) == 1

    asyncio.run(task())


def test_on_a_host_without_layers_everything_else_works(tmp_path: Path) -> None:
    async def task() -> None:
        settings = ServerSettings(str(tmp_path), backend="landlock", best_effort=True)
        async with Client(make_server(settings)) as client:
            assert (await call(client, "bash", command="echo 1 > f; cat f"))["output"] == "1\n"
            words = await refused(client, "undo")
            assert "it has no layers" in words
            assert "snapshot before risks, and restore" in words
            saved = await call(client, "snapshot")
            await call(client, "bash", command="rm f")
            await call(client, "restore", snapshot=saved["snapshot"])
            assert (await call(client, "bash", command="cat f"))["output"] == "1\n"

    asyncio.run(task())


def test_a_cancelled_search_ends_with_the_test_that_runs(tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=ALL))) as client:
            for number in range(8):
                await call(client, "bash", command=f"echo {number} > n")
            seconds = unique_seconds()
            test = f"test ! -e n || exec sleep {seconds}"
            search = asyncio.create_task(call(client, "bisect", test=test))
            assert await asyncio.to_thread(until, lambda: with_argument(seconds))
            search.cancel()
            assert await asyncio.to_thread(until, lambda: not with_argument(seconds))
            await asyncio.sleep(0.5)
            assert not with_argument(seconds), "no other test was begun"

    asyncio.run(task())


def test_an_unknown_tool_is_answered_with_the_names(tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path)))) as client:
            words = await refused(client, "run_command", command="ls")
            assert all(name in words for name in DEFAULT_TOOLS)
            assert "staddle mcp --tools all" in await refused(client, "grep", pattern="x")
            assert "did you mean `command`?" in await refused(client, "bash", cmd="ls")
            assert "it takes paths, overwrite" in await refused(client, "commit", allow=[".git/hooks"])

    asyncio.run(task())


#: Words of the Python API, which no model has.
PYTHON = re.compile(r"\w\(|allow=|allow_protected|on_conflict|\bsb\.|limits\.|mode=|paths=")


@pytest.mark.parametrize("era", ERAS)
def test_a_refused_commit_names_what_a_model_or_its_user_can_do(era: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    async def task() -> None:
        person = Person()
        server = make_server(ServerSettings(str(tmp_path)))
        async with Client(server, mode=era, elicitation_callback=person) as client:
            hook = (
                "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo > t; chmod +x t; echo in > a.txt"
            )
            await call(client, "bash", command=f"cd /workspace; {hook}")
            (tmp_path / "a.txt").write_text("out\n")
            held = await refused(client, "commit")
            assert ".git/hooks/pre-commit" in held
            assert "`paths` (a new executable after chmod -x)" in held
            assert "--keep NAME" in held
            assert "--allow .git/hooks/pre-commit" in held
            assert not person.asked, "a yes would not have helped"
            conflict = await refused(client, "commit", paths=["a.txt"])
            assert "overwrite=true" in conflict
            for words in (held, conflict, await refused(client, "commit", paths=["/etc/passwd"])):
                assert not PYTHON.search(words), words
            await call(client, "commit", paths=["a.txt"], overwrite=True)
            await call(client, "bash", command="chmod -x t")
            await call(client, "commit", paths=["t"])

    asyncio.run(task())
    assert (tmp_path / "a.txt").read_text() == "in\n"
    assert (tmp_path / "t").exists()


def test_a_client_that_cannot_ask_is_told_which_command_commits(tmp_path: Path) -> None:
    """And that command does it, when the server has ended."""
    name = f"mcp-{os.getpid()}"

    async def task(*words: str) -> str:
        async with served(tmp_path, *words, tools=None) as client:
            await call(client, "bash", command="mkdir -p .git/hooks; echo x > .git/hooks/pre-commit")
            protected = await refused(client, "commit")
            await call(client, "bash", command="echo y > made")
            unasked = await refused(client, "commit", paths=["made"])
            assert "--keep NAME" in unasked or f"staddle commit {name}`" in unasked
            assert "--yes commit" in unasked or words
            return protected

    assert "is not kept" in asyncio.run(task())
    try:
        [command] = re.findall(r"`(staddle commit [^`]*)`", asyncio.run(task("--keep", name)))
        done = captured([sys.executable, "-m", *command.split(), "--yes"], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / ".git/hooks/pre-commit").read_text() == "x\n"
        assert (tmp_path / "made").read_text() == "y\n"
    finally:
        subprocess.run([sys.executable, "-m", "staddle", "rm", "--force", name], check=True)


@pytest.mark.parametrize("mode", ["bind", "readonly"])
def test_a_server_without_a_layer_does_not_promise_one(mode: str, tmp_path: Path) -> None:
    async def task() -> None:
        async with Client(make_server(ServerSettings(str(tmp_path), mode=mode))) as client:
            assert "before `commit`" not in json.dumps((await listed(client))["tools"][0])
            assert "before `commit`" not in str(client.instructions)
            words = await refused(client, "diff")
            assert "only the user can change this" in words
            assert "--mode overlay" in words

    asyncio.run(task())


def test_a_refused_host_is_said_to_be_the_users(tmp_path: Path) -> None:
    async def task(tools: frozenset[str]) -> str:
        async with Client(make_server(ServerSettings(str(tmp_path), tools=tools))) as client:
            # The gateway accepts a connection before it decides: without `recv` the program may end first.
            code = "import socket; socket.create_connection(('host.example', 443), 5).recv(1)"
            return await said(client, "bash", command=f'python3 -c "{code}"')

    assert "`staddle mcp --allow HOST`" in asyncio.run(task(DEFAULT_TOOLS))
    assert "allow_host asks the user" in asyncio.run(task(ALL))
