"""A scripted CodeAgent whose Python runs in a sandbox."""

from __future__ import annotations

import sys

import pytest
from documented import run_examples
from smolagents import CodeAgent
from smolagents.models import ChatMessage, Model
from smolagents.utils import AgentError

from staddle import Policy
from staddle.adapters.smolagents import StaddlePythonExecutor


@pytest.fixture
def executor():
    # The final answer needs Pillow inside, so the interpreter is that of the environment of the test.
    policy = Policy.agent().with_read(sys.prefix).with_limits(timeout=None)
    made = StaddlePythonExecutor(timeout=60, policy=policy, python=sys.executable)
    yield made
    made.cleanup()


def test_variables_persist_and_errors_come_back(executor):
    executor("x = 6")
    assert executor("print('hi'); x * 7").output == "42"
    executor.send_variables({"y": [1, 2]})
    assert executor("sum(y)").output == "3"
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("1 / 0")


def test_it_is_confined(executor):
    assert executor("import os; (os.getuid(), os.getcwd())").output == "(1000, '/workspace')"
    with pytest.raises(AgentError, match=r"OSError|Error"):
        executor("import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=5)")


class Scripted(Model):
    def __init__(self, cells):
        super().__init__()
        self.cells = iter(cells)

    def generate(self, messages, **options):
        return ChatMessage(role="assistant", content=f"Thought: go\n<code>\n{next(self.cells)}\n</code>")


def test_a_scripted_agent(executor):
    agent = CodeAgent(tools=[], model=Scripted(["x = 20", "final_answer(x + 22)"]), executor=executor)
    assert agent.run("compute") == 42


def test_the_documented_examples(tmp_path):
    run_examples("smolagents", tmp_path)
