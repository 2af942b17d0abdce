"""The Agent Client Protocol in process: an agent on the other side of a pair of streams."""

from __future__ import annotations

import asyncio
import socket

import pytest
from acp import RequestError, connect_to_agent, run_agent
from acp.schema import EnvVariable, InitializeResponse, NewSessionResponse, PromptResponse, TextContentBlock
from documented import run_examples

from staddle.adapters.acp import StaddleAcpClient


@pytest.fixture
async def client(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    made = StaddleAcpClient(tmp_path)
    yield made
    await made.close()


async def test_files(client, tmp_path):
    path = str(tmp_path / "a.txt")
    assert (await client.read_text_file("s", path)).content == "one\ntwo\nthree\n"
    assert (await client.read_text_file("s", path, line=2, limit=1)).content == "two\n"
    await client.write_text_file("s", path, "changed")
    assert (await client.read_text_file("s", "/workspace/a.txt")).content == "changed"
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\nthree\n"
    with pytest.raises(RequestError):
        await client.read_text_file("s", "/none")


async def test_terminals(client, tmp_path):
    env = [EnvVariable(name="X", value="1")]
    made = await client.create_terminal(
        "s", "sh", ["-c", "echo out $X; echo err >&2; exit 3"], env, str(tmp_path)
    )
    ended = await client.wait_for_terminal_exit("s", made.terminal_id)
    assert (ended.exit_code, ended.signal) == (3, None)
    shown = await client.terminal_output("s", made.terminal_id)
    assert (shown.output, shown.truncated, shown.exit_status.exit_code) == ("out 1\nerr\n", False, 3)
    await client.release_terminal("s", made.terminal_id)
    with pytest.raises(RequestError):
        await client.terminal_output("s", made.terminal_id)


async def test_a_killed_terminal_stays_readable_and_output_is_bounded(client):
    made = await client.create_terminal("s", "seq 100000; sleep 600", output_byte_limit=100)
    for _ in range(600):
        shown = await client.terminal_output("s", made.terminal_id)
        if shown.output.endswith("100000\n"):
            break
        await asyncio.sleep(0.1)
    assert shown.exit_status is None
    assert shown.truncated
    assert len(shown.output) <= 100
    await client.kill_terminal("s", made.terminal_id)
    shown = await client.terminal_output("s", made.terminal_id)
    assert shown.output.endswith("100000\n")
    assert shown.exit_status.signal == "SIGKILL"


class Agent:
    """Runs a command and reads a file through the client, as coding agents do."""

    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, client_capabilities=None, **options):
        assert client_capabilities.terminal
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd, **options):
        self.cwd = cwd
        return NewSessionResponse(session_id="s")

    async def prompt(self, session_id, prompt, **options):
        made = await self.client.create_terminal(session_id, "id -un > who.txt", cwd=self.cwd)
        await self.client.wait_for_terminal_exit(session_id, made.terminal_id)
        self.read = (await self.client.read_text_file(session_id, f"{self.cwd}/who.txt")).content
        return PromptResponse(stop_reason="end_turn")


async def test_an_agent_on_the_other_side(client, tmp_path):
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    other_reader, other_writer = await asyncio.open_connection(sock=theirs)
    agent = Agent()
    serving = asyncio.ensure_future(run_agent(agent, input_stream=other_writer, output_stream=other_reader))
    connection = connect_to_agent(client, writer, reader)
    await connection.initialize(1, client_capabilities=client.capabilities)
    session = await connection.new_session(cwd=str(tmp_path), mcp_servers=[])
    done = await connection.prompt(
        session_id=session.session_id, prompt=[TextContentBlock(type="text", text="go")]
    )
    assert done.stop_reason == "end_turn"
    assert agent.read == "user\n"
    await connection.close()
    serving.cancel()


def test_the_documented_examples(tmp_path):
    run_examples("acp", tmp_path)
