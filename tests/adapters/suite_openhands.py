"""A conversation of OpenHands: server and tools in a sandbox, a scripted model on the host's loopback."""

from __future__ import annotations

import http.server
import json
import os
import threading

import pytest
from documented import run_examples

os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

from staddle import Network, Policy
from staddle.adapters.openhands import StaddleRemoteWorkspace


def answer(asked):
    """First a command, then the end; no command for questions without tools, such as for a title."""
    first = "tools" in asked and not any(message["role"] == "tool" for message in asked["messages"])
    if first:
        arguments = json.dumps({"command": "id -un > who.txt; cat who.txt"})
        call = {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
    else:
        message = {"role": "assistant", "content": "done"}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if first else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


@pytest.fixture
def model():
    """A server that speaks as a model does; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer(asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def test_a_conversation_with_a_scripted_model(model, tmp_path):
    (tmp_path / "given.txt").write_text("host")
    policy = Policy.agent().with_limits(timeout=None).with_network(Network.loopback(ports=(model,)))
    with StaddleRemoteWorkspace(workspace=str(tmp_path), policy=policy) as workspace:
        done = workspace.execute_command("cat given.txt; id -un; exit 3")
        assert (done.stdout.strip(), done.exit_code) == ("hostuser", 3)
        llm = LLM(model="openai/m", base_url=f"http://127.0.0.1:{model}/v1", api_key=SecretStr("x"))
        agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)])
        conversation = Conversation(agent=agent, workspace=workspace)
        conversation.send_message("who are you?")
        conversation.run()
        assert workspace.sandbox.files.read("/workspace/who.txt") == "user\n"
        conversation.close()
    assert not (tmp_path / "who.txt").exists()


def test_the_documented_examples(tmp_path):
    run_examples("openhands", tmp_path)
