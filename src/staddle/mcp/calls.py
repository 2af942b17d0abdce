"""Shared by all tools: answers, hints about a tool, bounded text, progress, argument checks."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, ValidationError

from .. import StaddleError
from .error_text import for_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from .sandboxes import SandboxRegistry, ServedSandbox

P = ParamSpec("P")
T = TypeVar("T")


def _hints(*, reads: bool = False, destroys: bool, repeatable: bool, leaves: bool) -> ToolAnnotations:
    return ToolAnnotations(
        read_only_hint=reads, destructive_hint=destroys, idempotent_hint=repeatable, open_world_hint=leaves
    )


#: Changes nothing; reads and reaches nothing outside the sandbox.
READS = _hints(reads=True, destroys=False, repeatable=True, leaves=False)
#: Adds something; nothing existing is lost.
ADDS = _hints(destroys=False, repeatable=True, leaves=False)
#: May overwrite or end something in the sandbox. A second call changes nothing more.
REPLACES = _hints(destroys=True, repeatable=True, leaves=False)
#: As REPLACES, but a second call has another effect.
CHANGES = _hints(destroys=True, repeatable=False, leaves=False)
#: Runs anything in a fork; reaches hosts that are allowed.
TESTS = _hints(destroys=False, repeatable=True, leaves=True)
#: Runs anything; reaches hosts that the policy or a person has allowed.
RUNS = _hints(destroys=True, repeatable=False, leaves=True)
#: Affects the host's files or the network.
LEAVES = _hints(destroys=True, repeatable=True, leaves=True)

#: Seconds between two reports of progress.
_REPORT_EVERY = 0.25
_REPORTED = 400
#: Bytes in names that are not UTF-8, in Python's encoding.
_NO_TEXT = re.compile("[\ud800-\udfff]")


def sandboxes(ctx: Context[Any, Any]) -> SandboxRegistry:
    """The sandboxes of the called server."""
    return cast("SandboxRegistry", ctx.request_context.lifespan_context)


async def handle_of(ctx: Context[Any, Any], sandbox: str | None) -> ServedSandbox:
    """The sandbox that a call names."""
    return await sandboxes(ctx).get(sandbox)


def offers(ctx: Context[Any, Any], tool: str) -> bool:
    """Whether the called server has this tool."""
    return tool in sandboxes(ctx).settings.tools


def answer(facts: BaseModel, text: str) -> CallToolResult:
    """The answer of a tool: `text` for a model, `facts` for a program.

    Tools have no output schema: in the list of tools, these schemas were a third of the text that a model
    reads.
    """
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=facts.model_dump(mode="json")
    )


def readable(tool: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Show the model the errors of staddle and the file system, with reason and fix.

    The SDK only passes on the text of ToolError, because other errors could contain secrets of a server. The
    errors of staddle contain only names that the sandbox has.
    """

    @wraps(tool)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return sendable(await tool(*args, **kwargs))
        except StaddleError as error:
            raise ToolError(sendable(for_model(error))) from error
        except (OSError, UnicodeError) as error:
            raise ToolError(sendable(_of_system(error))) from error

    return called


def sendable(value: T) -> T:
    """The value with `\\xNN` for each byte of a name that is not UTF-8.

    The protocol is UTF-8: a single file with such a name would end the connection and the server.
    """
    made: Any = value
    if isinstance(value, str):
        if not value.isascii() and _NO_TEXT.search(value):
            made = _NO_TEXT.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            before = getattr(value, name)
            after = sendable(before)
            if after is not before:
                setattr(value, name, after)
    elif isinstance(value, list):
        made = [sendable(each) for each in value]
    elif isinstance(value, dict):
        made = {sendable(name): sendable(each) for name, each in value.items()}
    return made  # type: ignore[no-any-return]


def _of_system(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror


def clipped(text: str, limit: int) -> tuple[str, bool]:
    """(at most `limit` characters: beginning, mark and end; whether it was cut)."""
    if len(text) <= limit:
        return text, False
    head = text[: limit // 2]
    tail = text[len(text) - (limit - limit // 2) :]
    # Cut at line ends if possible: half a line looks like a whole one.
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left_out} characters left out …]\n{tail}", True


class ProgressReports:
    """Reports a command's output to the client, at most a few times a second."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._printed, self._last = 0, ""
        self._task: asyncio.Task[None] | None = None

    def heard(self, text: str) -> None:
        """Add output. For `on_stdout`."""
        self._printed += len(text)
        self._last = (self._last + text)[-_REPORTED:]
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._report())

    async def _report(self) -> None:
        told = 0
        while True:
            if told != self._printed:
                told = self._printed
                await self._ctx.report_progress(told, None, sendable(self._last))
            await asyncio.sleep(_REPORT_EVERY)

    def close(self) -> None:
        """Stop: the command has ended, and its result has everything."""
        if self._task is not None:
            self._task.cancel()


# Tools as the server lists and calls them: short schemas, and readable errors about arguments.


#: argument: the tools that make it useful. Without them it is not offered.
_USEFUL_WITH = {
    "sandbox": frozenset(("open_sandbox", "fork", "close_sandbox")),
    "background": frozenset(("read_output", "write_stdin", "kill")),
}
#: Characters of a value to repeat to the model.
_MOST_REPEATED = 80
_TYPES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


class ServedTool(Tool):
    """A tool that describes in a sentence which argument it cannot use."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        """Check the argument names, then run it."""
        known = self.parameters["properties"]
        unknown = [name for name in arguments if name not in known]
        if unknown:
            raise ToolError("; ".join(_no_argument(self.name, name, known) for name in unknown))
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                raise ToolError(self._not_usable(cause, arguments)) from None
            # The SDK puts the tool's name in front, which the caller knows.
            raise (cause if isinstance(cause, ToolError) else error) from None

    def _not_usable(self, found: ValidationError, arguments: dict[str, Any]) -> str:
        """One sentence for each argument: its name, the given and the accepted values."""
        said: dict[str, str] = {}
        for problem in found.errors(include_url=False):
            name = str(problem["loc"][0]).removeprefix("field_")
            wanted = accepted(self.parameters["properties"].get(name, {}))
            if problem["type"] == "missing":
                said.setdefault(name, f"{self.name} needs the argument `{name}`: {wanted}")
            else:
                said.setdefault(
                    name, f"`{name}` of {self.name} must be {wanted}, not {_repeated(arguments[name])}"
                )
        return "; ".join(said.values())


def served(tool: ServedTool, offered: Collection[str]) -> ServedTool:
    """The tool with a minimal schema, for a server that offers these tools."""
    known = tool.parameters["properties"]
    left_out = [name for name, others in _USEFUL_WITH.items() if not others.intersection(offered)]
    tool.parameters = {
        "type": "object",
        "properties": {name: _short(each) for name, each in known.items() if name not in left_out},
        "required": tool.parameters.get("required", []),
        "additionalProperties": False,
    }
    return tool


def _short(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an argument without its title, and without null: callers omit it instead."""
    either = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    short = {**schema, **(either[0] if len(either) == 1 else {})}
    return {
        name: value
        for name, value in short.items()
        if name not in ("title", "anyOf") and not (name == "default" and value is None)
    }


def accepted(schema: dict[str, Any]) -> str:
    """The accepted values of an argument, in words."""
    kind = schema.get("type", "")
    if kind == "array":
        return "a list of texts"
    if choices := schema.get("enum"):
        return f"one of {', '.join(choices)}"
    words = [_TYPES.get(kind, "a value")]
    bounds = (
        ("minimum", "from {}"),
        ("exclusiveMinimum", "above {}"),
        ("maximum", "up to {}"),
        ("minLength", "of at least {} characters"),
        ("maxLength", "of at most {} characters"),
        ("pattern", "that matches {}"),
    )
    words += [text.format(schema[name]) for name, text in bounds if name in schema]
    return " ".join(words)


def _no_argument(tool: str, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    meant = f", did you mean `{near[0]}`?" if near else ""
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    return f"{tool} has no argument `{name[:_MOST_REPEATED]}`{meant or f': {takes}'}"


def _repeated(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_REPEATED else f"{text[:_MOST_REPEATED]}… ({len(text)} characters)"
