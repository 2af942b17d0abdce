"""Resources: the files, the changes and the log of a sandbox, by address.

`staddle://{sandbox}/…`, where `default` is the default sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError

from staddle import StaddleError

from .calls import handle_of, sendable
from .command_tools import MOST_OUTPUT
from .error_text import for_model
from .file_tools import MOST_READ, media_type
from .layer_tools import diff_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server import MCPServer

    from .sandboxes import ServedSandbox

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
    """Offer them."""
    functions: tuple[Callable[..., Any], ...] = (changes_of, log_of, file_of)
    for (address, (name, description, kind)), function in zip(TEMPLATES.items(), functions, strict=True):
        app.resource(address, name=name, description=description, mime_type=kind)(function)
