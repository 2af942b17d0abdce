"""The shell tool, by itself and called by an agent with a scripted model."""

from __future__ import annotations

import asyncio

from documented import run_examples
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from staddle import Sandbox
from staddle.adapters.langchain import StaddleShellTool


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


def test_an_agent_calls_it():
    def call(number, command):
        made = {"name": "shell", "args": {"command": command}, "id": str(number)}
        return AIMessage(content="", tool_calls=[made])

    script = [call(1, "cd /tmp; echo a; echo b >&2; false"), call(2, "pwd"), AIMessage(content="done")]
    with Sandbox() as sandbox:
        tool = StaddleShellTool(sandbox=sandbox)
        agent = create_agent(Scripted(messages=iter(script)), tools=[tool])
        messages = agent.invoke({"messages": [("user", "go")]})["messages"]
        answers = [message.content for message in messages if message.type == "tool"]
        assert answers == ["a\nb\n[exit code 1]", "/tmp\n"]


def test_it_is_awaited_and_bounded():
    with Sandbox() as sandbox:
        tool = StaddleShellTool(sandbox=sandbox, timeout=1, output_limit="1K")
        assert "[ended after" in asyncio.run(tool.ainvoke({"command": "sleep 60"}))
        assert "left out]" in tool.invoke({"command": "seq 10000"})


def test_the_documented_examples(tmp_path):
    run_examples("langchain", tmp_path)
