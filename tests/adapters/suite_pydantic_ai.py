"""pydantic-ai's conformance suite of workspace backends, the capability, and refs from another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from documented import run_examples
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from staddle.adapters.pydantic_ai import StaddleSandbox, StaddleWorkspace


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


class TestConformance(WorkspaceBackendSuite):
    keep = False

    @pytest.fixture
    async def backend(self, anyio_backend):
        made = StaddleWorkspace(keep=self.keep)
        yield made
        await made.destroy()

    @pytest.fixture
    def fresh_backend(self):
        return lambda: StaddleWorkspace(keep=self.keep)

    @pytest.fixture
    def attach_backend(self):
        return lambda ref: StaddleWorkspace(ref=ref)

    @pytest.fixture
    def destroy_environment(self):
        return lambda backend: backend.destroy()


class TestConformanceKept(TestConformance):
    keep = True


ANOTHER_PROCESS = """
import asyncio, sys
from pydantic_ai.workspaces import WorkspaceRef
from staddle.adapters.pydantic_ai import StaddleWorkspace
async def main():
    found = StaddleWorkspace(ref=WorkspaceRef(provider="staddle", id=sys.argv[1]))
    print((await found.read_bytes("/workspace/a.txt")).decode(), end="")
    await found.destroy()
asyncio.run(main())
"""


def test_a_kept_ref_is_found_by_another_process():
    async def first():
        made = StaddleWorkspace(keep=True)
        await made.write_bytes("/workspace/a.txt", b"kept")
        await made._sandbox.close()
        return made.ref

    ref = asyncio.run(first())
    words = [sys.executable, "-c", ANOTHER_PROCESS, ref.id]
    assert subprocess.run(words, capture_output=True, check=True, text=True).stdout == "kept"

    async def again():
        with pytest.raises(WorkspaceUnavailableError, match="removed"):
            await StaddleWorkspace(ref=ref).working_dir()

    asyncio.run(again())


class TestConformanceServed(TestConformance):
    """The same, in the server of this user."""

    @pytest.fixture
    async def backend(self, anyio_backend):
        made = StaddleWorkspace(server=True)
        yield made
        await made.destroy()

    @pytest.fixture
    def fresh_backend(self):
        return lambda: StaddleWorkspace(server=True)


def test_a_ref_of_a_server_is_found_by_another_process():
    """With what runs in it, and by a name. Afterwards nothing is found."""

    async def first():
        made = StaddleWorkspace(server=True, name="of-pydantic-ai")
        await made.write_bytes("/workspace/a.txt", b"served")
        return made.ref

    ref = asyncio.run(first())

    async def by_name():
        found = StaddleWorkspace(ref=WorkspaceRef(provider="staddle", id="server:of-pydantic-ai"))
        assert (await found.run(["cat", "a.txt"])).stdout == "served"

    asyncio.run(by_name())
    words = [sys.executable, "-c", ANOTHER_PROCESS, ref.id]
    assert subprocess.run(words, capture_output=True, check=True, text=True).stdout == "served"

    async def again():
        with pytest.raises(WorkspaceUnavailableError, match="no sandbox"):
            await StaddleWorkspace(ref=ref).working_dir()
        await StaddleWorkspace(ref=ref).destroy()

    asyncio.run(again())
    with pytest.raises(ValueError, match="one of them"):
        StaddleWorkspace(server=True, keep=True)


def test_a_ref_of_another_process_that_is_not_kept_is_refused():
    async def attach():
        with pytest.raises(WorkspaceUnavailableError, match="not kept"):
            await StaddleWorkspace(ref=WorkspaceRef(provider="staddle", id="0" * 32)).working_dir()

    asyncio.run(attach())


def test_an_agent_works_in_it(tmp_path):
    """A scripted model calls a tool that runs a command; the workspace on the host does not change."""
    (tmp_path / "in.txt").write_text("host")

    def model(messages, info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(
                parts=[ToolCallPart("shell", {"command": "cat in.txt; echo x > in.txt; id -un"})]
            )
        return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])

    agent = Agent(FunctionModel(model), capabilities=[StaddleSandbox(tmp_path)])

    @agent.tool
    async def shell(ctx: RunContext, command: str) -> str:
        return (await ctx.workspace.run(command, shell=True)).stdout

    async def run():
        first = await agent.run("go")
        assert first.output == "hostuser\n"

    asyncio.run(run())
    assert (tmp_path / "in.txt").read_text() == "host"


def test_the_documented_examples(tmp_path):
    run_examples("pydantic_ai", tmp_path)
