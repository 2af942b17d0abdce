"""A model on loopback that asks for given commands, one after the other, and then stops.

`staddle agent NAME --check` and the tests drive a real coding agent with it, without network and key: the
agent really calls its own tools. It implements the agents' protocols: Anthropic's messages, OpenAI's
responses and chat completions, Gemini's generateContent.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    #: (name of a tool, its schema)
    Offer = tuple[str, dict[str, Any]]

MODEL = "scripted"
#: Tools that run a shell command, by the agents' names for them.
SHELLS = (
    *(
        "mcp__staddle__bash",
        "staddle_bash",
        "mcp_staddle_bash",
        "Bash",
        "bash",
        "exec_command",
        "shell_command",
    ),
    *("shell", "local_shell", "run_shell_command", "execute_command", "run_command", "run_in_terminal"),
)
_LARGEST_REQUEST = 64 << 20


class ToolCall:
    """A request by the model: a shell command, or a call of a tool by one of several names."""

    def __init__(self, *names: str, **arguments: object) -> None:
        self.names, self.arguments = names, arguments

    def among(self, offers: list[Offer]) -> tuple[str, dict[str, object]] | None:
        """The first offered tool and its arguments; None if no name is offered."""
        for name in self.names:
            for offered, schema in offers:
                if offered == name:
                    return name, _arguments(schema, self.arguments)
        return None


def shell(command: str) -> ToolCall:
    """Ask for a shell command."""
    return ToolCall(*SHELLS, command=command)


def _arguments(schema: dict[str, Any], given: dict[str, object]) -> dict[str, object]:
    """The arguments under the tool's own names: each shell tool names its command differently."""
    known = schema.get("properties", {})
    if "command" not in given:
        return given
    made: dict[str, object] = {}
    for name, kind in known.items():
        if name in ("command", "cmd", "script"):
            line = given["command"]
            made[name] = ["bash", "-lc", line] if kind.get("type") == "array" else line
        elif name == "description" and name in schema.get("required", ()):
            made[name] = "a command"
    return made or given


class ScriptedModel:
    """Serves the calls of `script` in order, then `text`. `results` are the answers, as JSON or text."""

    def __init__(self, script: Sequence[ToolCall | str], text: str = "done") -> None:
        self.script, self.text = self.of(script), text
        self.results: list[str] = []
        self.requests: list[str] = []
        self.offers: list[str] = []
        self.missing: list[tuple[str, ...]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @staticmethod
    def of(script: Sequence[ToolCall | str]) -> list[ToolCall]:
        """The calls of a script, in which a text is a shell command."""
        return [shell(item) if isinstance(item, str) else item for item in script]

    @property
    def url(self) -> str:
        """Its URL, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next_call(
        self, offers: list[Offer], answers: list[object]
    ) -> tuple[int, tuple[str, dict[str, object]] | None]:
        """(number of the step, the next call; None at the end)."""
        with self._lock:
            if offers:
                self.offers = [name for name, _ in offers]
            step = len(answers)
            if step > len(self.results):
                self.results += [_text(answer) for answer in answers[len(self.results) :]]
            if not offers or step >= len(self.script):
                return step, None
            chosen = self.script[step].among(offers)
            if chosen is None:
                self.missing.append(self.script[step].names)
            return step, chosen

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text(answer: object) -> str:
    """The text of a tool's answer."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, list):
        return "\n".join(_text(part) for part in answer)
    if isinstance(answer, dict):
        for key in ("text", "output", "content", "error"):
            if key in answer:
                return _text(answer[key])
    return json.dumps(answer)


def _handler_of(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(ModelHandler):
        scripted = model

    return Handler


class ModelHandler(BaseHTTPRequestHandler):
    """One request from an agent to its model."""

    protocol_version = "HTTP/1.1"
    scripted: ScriptedModel

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Return a list of models; for other paths an empty object."""
        listed = {"object": "list", "data": [{"id": MODEL, "object": "model"}], "models": []}
        self._json(listed if self.path.partition("?")[0].endswith("/models") else {})

    def do_HEAD(self) -> None:
        """Return an empty response with status 200."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """Choose the protocol by the path."""
        size = min(int(self.headers.get("Content-Length") or 0), _LARGEST_REQUEST)
        try:
            body = json.loads(self.rfile.read(size) or b"{}")
        except ValueError:
            body = {}
        path = self.path.partition("?")[0]
        self.scripted.requests.append(path)
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": 10})
        elif path.endswith("/messages"):
            self._messages(body)
        elif path.endswith("/responses"):
            self._responses(body)
        elif path.endswith("/chat/completions"):
            self._chat(body)
        elif "enerateContent" in path:
            self._gemini(body, streamed="stream" in path)
        else:
            self._json({})

    # ------------------------------------------------------------ Anthropic: messages

    def _messages(self, body: dict[str, Any]) -> None:
        offers = [(tool.get("name", ""), tool.get("input_schema") or {}) for tool in body.get("tools") or ()]
        blocks = [
            block
            for message in body.get("messages", ())
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        answers = [block.get("content") for block in blocks if block.get("type") == "tool_result"]
        step, call = self.scripted.next_call(offers, answers)
        usage = {"input_tokens": 10, "output_tokens": 5}
        message: dict[str, Any] = {
            "id": f"msg_{step}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
        }
        message |= {"stop_sequence": None, "usage": usage}
        if call is None:
            block: dict[str, Any] = {"type": "text", "text": self.scripted.text}
            empty = {**block, "text": ""}
            delta: dict[str, Any] = {"type": "text_delta", "text": self.scripted.text}
        else:
            block = {"type": "tool_use", "id": f"toolu_{step}", "name": call[0], "input": call[1]}
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        stop = "end_turn" if call is None else "tool_use"
        if not body.get("stream"):
            self._json({**message, "content": [block], "stop_reason": stop})
            return
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        self._events(events)

    # ------------------------------------------------------------ OpenAI: responses, chat completions

    def _responses(self, body: dict[str, Any]) -> None:
        offers = [
            (tool.get("name") or tool.get("type", ""), tool.get("parameters") or {})
            for tool in body.get("tools") or ()
        ]
        given = [item for item in body.get("input", ()) if isinstance(item, dict)]
        answers = [item.get("output") for item in given if str(item.get("type", "")).endswith("call_output")]
        step, call = self.scripted.next_call(offers, answers)
        if call is None:
            said = {"type": "output_text", "text": self.scripted.text, "annotations": []}
            item: dict[str, Any] = {"type": "message", "id": "m1", "role": "assistant", "content": [said]}
        else:
            item = {"type": "function_call", "id": f"fc_{step}", "call_id": f"call_{step}", "name": call[0]}
            item["arguments"] = json.dumps(call[1])
        item["status"] = "completed"
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage |= {"input_tokens_details": {"cached_tokens": 0}}  # type: ignore[dict-item]
        usage |= {"output_tokens_details": {"reasoning_tokens": 0}}  # type: ignore[dict-item]
        whole = {"id": f"resp_{step}", "object": "response", "created_at": 0, "model": MODEL, "usage": usage}
        begun = {**whole, "status": "in_progress", "output": []}
        ended = {**whole, "status": "completed", "output": [item]}
        self._events(
            [
                {"type": "response.created", "response": begun},
                {"type": "response.output_item.added", "output_index": 0, "item": item},
                {"type": "response.output_item.done", "output_index": 0, "item": item},
                {"type": "response.completed", "response": ended},
            ]
        )

    def _chat(self, body: dict[str, Any]) -> None:
        functions = [tool["function"] for tool in body.get("tools") or ()]
        offers = [(each["name"], each.get("parameters") or {}) for each in functions]
        answers = [each.get("content") for each in body["messages"] if each["role"] == "tool"]
        step, call = self.scripted.next_call(offers, answers)
        delta: dict[str, Any] = {"role": "assistant", "content": self.scripted.text if call is None else None}
        if call is not None:
            function = {"name": call[0], "arguments": json.dumps(call[1])}
            delta["tool_calls"] = [
                {"index": 0, "id": f"call_{step}", "type": "function", "function": function}
            ]
        stop = "stop" if call is None else "tool_calls"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole: dict[str, Any] = {"id": f"c{step}", "created": 0, "model": MODEL}
        if not body.get("stream"):
            choice: dict[str, Any] = {"index": 0, "message": delta, "finish_reason": stop}
            self._json({**whole, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        chunk = {**whole, "object": "chat.completion.chunk"}
        first = {"index": 0, "delta": delta, "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": stop}
        events = [{**chunk, "choices": [first]}, {**chunk, "choices": [last], "usage": usage}]
        self._events(events, named=False, end=b"data: [DONE]\n\n")

    # ------------------------------------------------------------ Google: generateContent

    def _gemini(self, body: dict[str, Any], *, streamed: bool) -> None:
        declared = [each for tool in body.get("tools") or () for each in tool.get("functionDeclarations", ())]
        offers = [
            (each["name"], each.get("parametersJsonSchema") or each.get("parameters") or {})
            for each in declared
        ]
        parts = [part for content in body.get("contents", ()) for part in content.get("parts", ())]
        answers = [part["functionResponse"].get("response") for part in parts if "functionResponse" in part]
        _, call = self.scripted.next_call(offers, answers)
        part = (
            {"text": self.scripted.text}
            if call is None
            else {"functionCall": {"name": call[0], "args": call[1]}}
        )
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL}
        if streamed:
            self._events([answer], named=False)
        else:
            self._json(answer)

    # ------------------------------------------------------------ bytes

    def _json(self, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self, events: Sequence[dict[str, Any]], *, named: bool = True, end: bytes = b"") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            if named:
                self.wfile.write(f"event: {event['type']}\n".encode())
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(end)
        self.wfile.flush()
        self.close_connection = True
