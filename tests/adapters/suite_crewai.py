"""CrewAI: the three tools, and a crew with a scripted model that calls one."""

from __future__ import annotations

import os

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TESTING="true")

import pytest
from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from documented import run_examples

from staddle import Sandbox
from staddle.adapters.crewai import staddle_tools


@pytest.fixture
def sandbox():
    with Sandbox() as made:
        yield made


def test_the_tools(sandbox):
    shell, interpreter, files = staddle_tools(sandbox)
    assert shell.run(command="cd /tmp; echo a; exit 3")["exit_code"] == 3
    assert interpreter.run(code="x = 6") == {"stdout": "", "stderr": "", "result": None, "error": None}
    assert interpreter.run(code="x * 7")["result"] == "42"
    assert files.run(action="write", path="/workspace/a/b.txt", content="one") == "done"
    assert files.run(action="append", path="/workspace/a/b.txt", content="two") == "done"
    assert files.run(action="read", path="/workspace/a/b.txt") == "onetwo"
    assert files.run(action="list", path="/workspace/a") == [{"name": "b.txt", "kind": "file", "size": 6}]
    assert files.run(action="delete", path="/workspace/a") == "done"
    assert files.run(action="exists", path="/workspace/a") is False
    assert "error" in files.run(action="read", path="/workspace/a")


class Scripted(BaseLLM):
    def call(self, messages, *args, **options):
        said = str(messages)
        if "exit_code" not in said.rsplit("Observation", 1)[-1]:
            return 'Thought: look\nAction: sandbox_exec\nAction Input: {"command": "echo from $(id -un)"}'
        found = "from user" in said
        return f"Thought: I now know the final answer\nFinal Answer: {'it works' if found else 'it failed'}"

    def supports_function_calling(self):
        return False


def test_a_scripted_crew(sandbox):
    agent = Agent(
        role="tester",
        goal="test",
        backstory="none",
        tools=staddle_tools(sandbox),
        llm=Scripted(model="scripted"),
    )
    task = Task(description="Run a command.", expected_output="a word", agent=agent)
    assert "it works" in Crew(agents=[agent], tasks=[task]).kickoff().raw


def test_the_documented_examples(tmp_path):
    run_examples("crewai", tmp_path)
