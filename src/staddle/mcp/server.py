"""The server: its tools and resources, over standard input and output or over HTTP on loopback."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.server import CacheHint, MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError

from .. import StaddleError, __version__
from ..errors import UsageError
from . import command_tools, file_tools, history_tools, layer_tools
from .calls import (
    ADDS,
    CHANGES,
    LEAVES,
    READS,
    REPLACES,
    RUNS,
    TESTS,
    ServedTool,
    handle_of,
    sendable,
    served,
)
from .command_tools import MOST_OUTPUT
from .error_text import ALLOW_IT, for_model, tool_error
from .file_tools import MOST_READ, media_type
from .layer_tools import diff_text
from .sandboxes import DEFAULT_TOOLS, SandboxRegistry, ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcp_types import ToolAnnotations

    from .sandboxes import ServedSandbox

#: mode: where changes go.
_WORKSPACE = {
    "overlay": "The workspace shows the user's directory: change files freely, nothing reaches the user "
    "before `commit`.",
    "bind": "The workspace is the user's directory: what you change there is changed for the user at once.",
    "readonly": "The workspace is the user's directory, and cannot be changed.",
}
#: Sentences about the whole server, each with the tools that it requires.
_INSTRUCTIONS: tuple[tuple[str, frozenset[str]], ...] = (
    ("A Linux computer of your own, confined by the kernel.", frozenset()),
    ("`bash` is a shell that remembers; the file tools see the same files.", frozenset(("bash",))),
    ("`snapshot` and `restore` take you back.", frozenset(("snapshot", "restore"))),
    ("`undo` takes back the last command that changed files.", frozenset(("undo",))),
    ("`fork` lets you try several ways: name one of its sandboxes in `sandbox`.", frozenset(("fork",))),
    ("`merge` brings the work of forks together.", frozenset(("fork", "merge"))),
    ("There is no network unless the user allows a host.", frozenset()),
)
#: For bash: a tool, the sentence if it is offered, the sentence if it is not.
_ABOUT_BASH = (
    (
        "read_output",
        "For a program that does not end, background=true, then read_output.",
        "For a program that does not end: `program >/tmp/log 2>&1 &`.",
    ),
    (
        "allow_host",
        "There is usually no network: allow_host asks the user for a host.",
        f"There is usually no network: only the user can allow a host ({ALLOW_IT}).",
    ),
)

#: name: (function, title, hints)
TOOLS: dict[str, tuple[Any, str, ToolAnnotations]] = {
    "bash": (command_tools.bash, "Run a shell command", RUNS),
    "read_output": (command_tools.read_output, "Read a background process", READS),
    "write_stdin": (command_tools.write_stdin, "Type to a background process", CHANGES),
    "kill": (command_tools.kill, "End a background process", REPLACES),
    "list_processes": (command_tools.list_processes, "List background processes", READS),
    "read_file": (file_tools.read_file, "Read a file", READS),
    "write_file": (file_tools.write_file, "Write a file", REPLACES),
    "edit_file": (file_tools.edit_file, "Replace text in a file", CHANGES),
    "glob": (file_tools.glob, "Find files", READS),
    "grep": (file_tools.grep, "Search in files", READS),
    "list_directory": (file_tools.list_directory, "List a directory", READS),
    "snapshot": (layer_tools.snapshot, "Save this moment", ADDS),
    "restore": (layer_tools.restore, "Go back to a snapshot", REPLACES),
    "history": (history_tools.history, "List what was done", READS),
    "undo": (history_tools.undo, "Take back a command", CHANGES),
    "bisect": (history_tools.bisect, "Find the command that broke a test", TESTS),
    "fork": (layer_tools.fork, "Fork the sandbox", ADDS),
    "merge": (history_tools.merge, "Merge the work of forks", RUNS),
    "diff": (layer_tools.diff, "Show the changes", READS),
    "commit": (layer_tools.commit, "Write the changes to the host", LEAVES),
    "discard": (layer_tools.discard, "Drop changes", REPLACES),
    "allow_host": (layer_tools.allow_host, "Ask for a network host", LEAVES),
    "status": (layer_tools.status, "Show what is enforced", READS),
    "open_sandbox": (layer_tools.open_sandbox, "Open another sandbox", ADDS),
    "close_sandbox": (layer_tools.close_sandbox, "Close a sandbox", REPLACES),
}
#: Lists are the same for everybody while the server runs.
_LISTS = CacheHint(ttl_ms=3_600_000, scope="public")


def tools_named(text: str) -> frozenset[str]:
    """The tools of `default`, of `all`, or of a comma-separated list."""
    if text in ("default", "all"):
        return DEFAULT_TOOLS if text == "default" else frozenset(TOOLS)
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        raise UsageError(
            f"there is no tool {unknown[0]!r}",
            why=f"the tools are {', '.join(TOOLS)}",
            fix="write --tools default, --tools all, or names of these with commas between them",
        )
    return frozenset(names)


class ToolServer(MCPServer[SandboxRegistry]):
    """A server that lists its tools to a model that calls an unknown one."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[SandboxRegistry, Any] | None = None
    ) -> Any:
        """Call a tool by its name."""
        offered = [tool.name for tool in await self.list_tools()]
        if name not in offered:
            raise tool_error(
                f"there is no tool {name[:80]!r}",
                why=f"the tools are {', '.join(offered)}",
                fix="the user can start `staddle mcp --tools all`" if name in TOOLS else "use one of these",
            )
        return await super().call_tool(name, arguments, context)


def make_server(settings: ServerSettings) -> ToolServer:
    """A server that opens its sandboxes with `settings`, and closes them when it ends."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[SandboxRegistry]) -> AsyncIterator[SandboxRegistry]:
        registry = SandboxRegistry(settings)
        try:
            yield registry
        finally:
            # The transport's scope is cancelled by now; close the sandboxes nevertheless.
            await asyncio.shield(registry.close_all())

    app = ToolServer(
        "staddle",
        title="staddle",
        description="A confined computer for an agent",
        instructions=_instructions(settings),
        version=__version__,
        lifespan=lifespan,
        tools=[_tool(name, settings) for name in TOOLS if name in settings.tools],
        log_level="WARNING",
        cache_hints={
            "tools/list": _LISTS,
            "resources/list": _LISTS,
            "resources/templates/list": _LISTS,
            "prompts/list": _LISTS,
        },
    )
    add_resources(app)
    return app


def _instructions(settings: ServerSettings) -> str:
    about = [text for text, needs in _INSTRUCTIONS if needs <= settings.tools]
    return " ".join([*about, _WORKSPACE[settings.mode]])


def _tool(name: str, settings: ServerSettings) -> ServedTool:
    function, title, hints = TOOLS[name]
    text = " ".join((function.__doc__ or "").split())
    if name == "bash":
        about = [there if tool in settings.tools else else_ for tool, there, else_ in _ABOUT_BASH]
        text = " ".join([text, _WORKSPACE[settings.mode], *about])
    made = ServedTool.from_function(function, name=name, title=title, description=text, annotations=hints)
    return served(made, settings.tools)  # type: ignore[arg-type]


def serve_stdio(settings: ServerSettings) -> None:
    """Serve one client on standard input and output until it closes them, or is killed."""
    try:
        make_server(settings).run("stdio")
    except* (BrokenPipeError, ConnectionResetError):
        # The client is gone. Redirect stdout so that the interpreter's exit does not fail on the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


# Resources: the files, the changes and the log of a sandbox, by address.
# `staddle://{sandbox}/…`, where `default` is the default sandbox.


#: address: (name, description, media type)
TEMPLATES = {
    "staddle://{sandbox}/diff": ("diff", "Changes that are not in the user's directory.", "text/x-diff"),
    "staddle://{sandbox}/log": ("log", "Commands that were run, and what was refused.", "text/plain"),
    "staddle://{sandbox}/files/{+path}": (
        "file",
        "A file of the sandbox, by its path below /.",
        "application/octet-stream",
    ),
}


async def _found(ctx: Context[Any, Any], sandbox: str) -> ServedSandbox:
    try:
        return await handle_of(ctx, sandbox)
    except ToolError as error:
        raise ResourceNotFoundError(str(error)) from error
    except StaddleError as error:
        raise ResourceError(for_model(error)) from error


async def changes_of(sandbox: str, ctx: Context[Any, Any]) -> str:
    """Return the changes of a sandbox as a unified diff."""
    handle = await _found(ctx, sandbox)
    try:
        return sendable(diff_text(await handle.sandbox.diff(), MOST_OUTPUT))
    except StaddleError as error:
        raise ResourceError(for_model(error)) from error


async def log_of(sandbox: str, ctx: Context[Any, Any]) -> str:
    """Return the last commands of a sandbox, one a line."""
    return sendable("\n".join((await _found(ctx, sandbox)).log))


async def file_of(sandbox: str, path: str, ctx: Context[Any, Any]) -> str | bytes:
    """Return a file of a sandbox: as text if it is text."""
    handle = await _found(ctx, sandbox)
    try:
        data: bytes = await handle.sandbox.files.read_bytes(f"/{path}", limit=MOST_READ)
    except FileNotFoundError as error:
        raise ResourceNotFoundError(f"there is no file /{path}") from error
    except StaddleError as error:
        raise ResourceError(for_model(error)) from error
    except OSError as error:
        raise ResourceError(str(error)) from error
    return data.decode("utf-8", "replace") if media_type(data) == "text/plain" else data


def add_resources(app: MCPServer[Any]) -> None:
    """Add the resources to the server."""
    functions: tuple[Callable[..., Any], ...] = (changes_of, log_of, file_of)
    for (address, (name, description, kind)), function in zip(TEMPLATES.items(), functions, strict=True):
        app.resource(address, name=name, description=description, mime_type=kind)(function)
