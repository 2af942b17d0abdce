"""Google ADK: the environment, its toolset, the code executor, and a scripted agent."""

from __future__ import annotations

from pathlib import Path

from documented import run_examples
from google.adk.agents import LlmAgent
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

from staddle.adapters.google_adk import StaddleAdkCodeExecutor, StaddleAdkEnvironment


async def test_the_environment():
    environment = StaddleAdkEnvironment()
    await environment.initialize()
    await environment.write_file(Path("a/b.txt"), "hi")
    assert await environment.read_file(Path("a/b.txt")) == b"hi"
    done = await environment.execute("cd a; cat b.txt; echo e >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code, done.timed_out) == ("hi", "e\n", 3, False)
    assert (await environment.execute("pwd")).stdout == "/workspace/a\n"
    assert (await environment.execute("sleep 60", timeout=1)).timed_out
    await environment.close()


def test_the_code_executor():
    code = "print(open('in.txt').read()); open('out.txt', 'w').write('made'); x = 1"
    given = CodeExecutionInput(code=code, input_files=[File(name="in.txt", content="given")])
    result = StaddleAdkCodeExecutor().execute_code(None, given)
    assert result.stdout == "given\n"
    assert [(file.name, file.content) for file in result.output_files] == [("out.txt", b"made")]
    executor = StaddleAdkCodeExecutor(stateful=True)
    executor.execute_code(None, CodeExecutionInput(code="x = 41"))
    assert executor.execute_code(None, CodeExecutionInput(code="print(x + 1)")).stdout == "42\n"
    assert "ZeroDivisionError" in executor.execute_code(None, CodeExecutionInput(code="1/0")).stderr
    executor.close()


class Scripted(BaseLlm):
    model: str = "scripted"
    tool: str = ""

    async def generate_content_async(self, llm_request, stream=False):
        last = llm_request.contents[-1].parts[0]
        if last.function_response is not None:
            part = types.Part(text=str(last.function_response.response))
        else:
            arguments = {"command": "echo from $(id -un)"}
            part = types.Part(function_call=types.FunctionCall(name=self.tool, args=arguments))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def test_a_scripted_agent():
    environment = StaddleAdkEnvironment()
    await environment.initialize()
    toolset = EnvironmentToolset(environment=environment)
    names = [tool.name for tool in await toolset.get_tools()]
    name = next(each for each in names if "xec" in each or "ommand" in each)
    agent = LlmAgent(name="a", model=Scripted(tool=name), tools=[toolset])
    runner = InMemoryRunner(agent=agent, app_name="test")
    session = await runner.session_service.create_session(app_name="test", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    texts = []
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        texts += [part.text for part in event.content.parts if part.text]
    assert "from user" in texts[-1]
    await environment.close()


def test_the_documented_examples(tmp_path):
    run_examples("google_adk", tmp_path)
