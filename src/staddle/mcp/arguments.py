"""Tools as the server lists and calls them: short schemas, and words about arguments that do not fit."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp.server.mcpserver import Context

#: argument: the tools without which it is of no use, so that it is not offered.
_USEFUL_WITH = {
    "sandbox": frozenset(("open_sandbox", "fork", "close_sandbox")),
    "background": frozenset(("read_output", "write_stdin", "kill")),
}
#: Characters of a value that are repeated to the model.
_MOST_REPEATED = 80
_TYPES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


class ServedTool(Tool):
    """A tool that says in a sentence which argument it cannot use."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        """Check the names, then run it."""
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
        """One sentence for each argument: its name, what was given, what is accepted."""
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
    """The tool with a schema as short as it can be, for a server that offers these tools."""
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
    """The schema of an argument without its title, and without null: it is left out instead."""
    either = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    short = {**schema, **(either[0] if len(either) == 1 else {})}
    return {
        name: value
        for name, value in short.items()
        if name not in ("title", "anyOf") and not (name == "default" and value is None)
    }


def accepted(schema: dict[str, Any]) -> str:
    """The values that an argument takes, in words."""
    kind = schema.get("type", "")
    if kind == "array":
        return "a list of texts"
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
