"""The server: its tools and resources, over standard input and output or over HTTP on loopback."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.server import CacheHint, MCPServer
from mcp.server.mcpserver.tools import Tool
from pydantic import BaseModel, ConfigDict, create_model

from staddle import __version__

from . import command_tools, file_tools, layer_tools
from .calls import ADDS, CHANGES, LEAVES, READS, REPLACES, RUNS
from .resources import add_resources
from .sandboxes import SandboxRegistry, ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_types import ToolAnnotations

INSTRUCTIONS = """\
A Linux computer of your own, confined by the kernel. `bash` is a shell that remembers; the file tools see the
same files. The workspace shows the user's directory: nothing you do reaches the user before `commit`, which
asks the user. `snapshot` and `restore` take you back, `fork` lets you try several ways. Each tool takes
`sandbox`; leave it out unless you opened or forked another one. There is no network unless the user allows
a host."""

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
    "fork": (layer_tools.fork, "Fork the sandbox", ADDS),
    "diff": (layer_tools.diff, "Show the changes", READS),
    "commit": (layer_tools.commit, "Write the changes to the host", LEAVES),
    "discard": (layer_tools.discard, "Drop changes", REPLACES),
    "allow_host": (layer_tools.allow_host, "Ask for a network host", LEAVES),
    "status": (layer_tools.status, "Show what is enforced", READS),
    "open_sandbox": (layer_tools.open_sandbox, "Open another sandbox", ADDS),
    "close_sandbox": (layer_tools.close_sandbox, "Close a sandbox", REPLACES),
}
#: Lists are the same for everybody for as long as the server runs.
_LISTS = CacheHint(ttl_ms=3_600_000, scope="public")


def make_server(settings: ServerSettings) -> MCPServer[SandboxRegistry]:
    """A server that opens its sandboxes as `settings` say, and closes them when it ends."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[SandboxRegistry]) -> AsyncIterator[SandboxRegistry]:
        registry = SandboxRegistry(settings)
        try:
            yield registry
        finally:
            # The transport's scope is cancelled by now; sandboxes are closed all the same.
            await asyncio.shield(registry.close_all())

    app: MCPServer[SandboxRegistry] = MCPServer(
        "staddle",
        title="staddle",
        description="A confined computer for an agent",
        instructions=INSTRUCTIONS,
        version=__version__,
        lifespan=lifespan,
        tools=[
            _strict(Tool.from_function(function, name=name, title=title, annotations=hints))
            for name, (function, title, hints) in TOOLS.items()
        ],
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


class _Exact(BaseModel):
    """Arguments, and no others."""

    model_config = ConfigDict(extra="forbid")


def _strict(tool: Tool) -> Tool:
    """The tool, which refuses arguments that it does not have: a misspelt `sandbox` would be another one."""
    loose = tool.fn_metadata.arg_model
    exact: Any = create_model(loose.__name__, __base__=(loose, _Exact))
    tool.fn_metadata.arg_model = exact
    tool.parameters = exact.model_json_schema(by_alias=True)
    return tool


def serve_stdio(settings: ServerSettings) -> None:
    """Serve one client on standard input and output until it closes them, or is killed."""
    try:
        make_server(settings).run("stdio")
    except* (BrokenPipeError, ConnectionResetError):
        # What it was about to be told is lost. Nothing is left in the buffer for the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
