"""AutoGen: blocks of code, cancellation, component configuration, and a CodeExecutorAgent."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from documented import run_examples

from staddle.adapters.autogen import StaddleCodeExecutor


async def test_blocks_run_until_one_fails():
    async with StaddleCodeExecutor(timeout=30) as executor:
        blocks = [
            CodeBlock("echo hi; id -un", "bash"),
            CodeBlock("print(6*7); raise SystemExit(3)", "python"),
        ]
        result = await executor.execute_code_blocks(
            [*blocks, CodeBlock("echo never", "sh")], CancellationToken()
        )
        assert (result.exit_code, result.output) == (3, "hi\nuser\n42\n")
        unknown = await executor.execute_code_blocks([CodeBlock("x", "cobol")], CancellationToken())
        assert unknown.exit_code == 1


async def test_a_cancelled_token_ends_the_program():
    async with StaddleCodeExecutor() as executor:
        token = CancellationToken()
        block = CodeBlock("echo $$ > /tmp/pid; exec sleep 600", "sh")
        running = asyncio.ensure_future(executor.execute_code_blocks([block], token))
        for _ in range(600):
            if await executor.sandbox.files.exists("/tmp/pid"):
                break
            await asyncio.sleep(0.05)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        left = await executor.sandbox.exec(["sh", "-c", "kill -0 $(cat /tmp/pid)"])
        assert left.exit_code != 0
        await executor.restart()
        assert not await executor.sandbox.files.exists("/tmp/pid")


def test_it_is_a_component():
    made = CodeExecutor.load_component(StaddleCodeExecutor(timeout=7).dump_component())
    assert made._to_config().timeout == 7


async def test_a_code_executor_agent():
    async with StaddleCodeExecutor() as executor:
        agent = CodeExecutorAgent("coder", code_executor=executor)
        message = TextMessage(content="```python\nprint('from', 'agent')\n```", source="user")
        answer = await agent.on_messages([message], CancellationToken())
        assert "from agent" in answer.chat_message.content


def test_the_documented_examples(tmp_path):
    run_examples("autogen", tmp_path)
