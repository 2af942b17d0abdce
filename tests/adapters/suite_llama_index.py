"""LlamaIndex: a CodeActAgent with a scripted model, and the shell tool."""

from __future__ import annotations

from documented import run_examples
from llama_index.core.agent.workflow import CodeActAgent
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM

from staddle import Sandbox
from staddle.adapters.llama_index import code_execute_fn, shell_tool


async def test_code_keeps_its_variables():
    with Sandbox() as sandbox:
        execute = code_execute_fn(sandbox)
        assert await execute("x = 6; print('hi')") == "hi"
        assert await execute("x * 7") == "42"
        assert "ZeroDivisionError" in await execute("1 / 0")


def test_the_shell_tool():
    with Sandbox() as sandbox:
        tool = shell_tool(sandbox)
        assert tool.metadata.name == "shell"
        assert tool(command="cd /tmp; false").content == "\n[exit code 1]"
        assert tool(command="pwd").content == "/tmp\n"


class Scripted(FunctionCallingLLM):
    answers: list[str]

    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=True)

    def _next(self):
        return ChatResponse(message=ChatMessage(role="assistant", content=self.answers.pop(0)))

    async def achat(self, messages, **options):
        return self._next()

    async def astream_chat(self, messages, **options):
        async def chunks():
            answer = self._next()
            answer.delta = answer.message.content
            yield answer

        return chunks()

    def chat(self, messages, **options):
        raise NotImplementedError

    stream_chat = complete = stream_complete = chat
    acomplete = astream_complete = chat

    def get_tool_calls_from_response(self, response, **options):
        return []

    def _prepare_chat_with_tools(self, tools, **options):
        return {}


async def test_a_scripted_agent():
    answers = ["<execute>\nx = 20\nprint('code ran', x + 22)\n</execute>", "It printed the answer."]
    with Sandbox() as sandbox:
        ran = []
        execute = code_execute_fn(sandbox)

        async def watched(code: str) -> str:
            ran.append(await execute(code))
            return ran[-1]

        agent = CodeActAgent(code_execute_fn=watched, llm=Scripted(answers=answers))
        result = await agent.run("go")
        assert ran == ["code ran 42"]
        assert "answer" in str(result)


def test_the_documented_examples(tmp_path):
    run_examples("llama_index", tmp_path)
