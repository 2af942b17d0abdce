"""`staddle mcp`: a server for the Model Context Protocol whose tools are sandboxes."""

from __future__ import annotations

import os

from ..errors import ExtraMissing, UsageError
from .options import KEEP, RUNNING, Option, help_rows, parse, reworded, sandbox_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LEFT_OUT = ("json", "output-cap", "audit", "workdir")
_OPTIONS = (
    Option("http", "PORT", "serve HTTP on 127.0.0.1:PORT instead of standard input; 0 is any free port"),
    Option("tools", "NAMES", "default (10 tools), all, or names with commas between them"),
    Option(
        "yes", "TOOL", "offer this, and do it without asking: commit or allow_host (repeatable)", many=True
    ),
    Option("sandboxes", "N", "at most so many sandboxes at a time (default: 32)"),
    KEEP,
    *reworded(
        tuple(option for option in RUNNING if option.name not in _LEFT_OUT),
        timeout="of a command that names none: 90, 2m, none (default: 120)",
        mode="the workspace: overlay (default, in a layer), bind (written directly), readonly",
        disk="limit what a sandbox writes to its own layer, or none",
    ),
)
_INSTALL = "pip install 'staddle[mcp]'"
_HELP = """\
Serve sandboxes as tools of the Model Context Protocol (MCP), for any agent that speaks it.
It needs the package mcp: {install}

usage: staddle mcp [options] [WORKSPACE]

Without --http the client starts it and speaks on its standard input and output. With --http, the first
line of standard output is JSON with the address and the header that a client needs. WORKSPACE (default:
the current directory) is shown in a layer: nothing is written to it before the tool `commit`,
which asks the person at the client. Sandboxes end with the server.

{options}

  staddle mcp                                    in the client's settings: command `staddle`, arguments `mcp`
  staddle mcp --allow pypi.org ~/project         a host that is allowed from the beginning
  staddle mcp --tools all                        every tool: background processes, forks, searches, and others
  staddle mcp --http 8930
"""


def main(words: Sequence[str]) -> int:
    """Parse the arguments, then serve until the client disconnects."""
    parsed = parse(words, _OPTIONS, "mcp")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS), install=_INSTALL), end="")
        return 0
    if len(parsed.words) > 1 or (parsed.words and parsed.on("workspace")):
        raise UsageError("more than one workspace is named", fix="staddle mcp [options] WORKSPACE")
    options = {**parsed.options}
    if parsed.words:
        options["workspace"] = [parsed.words[0]]
    options.setdefault("mode", ["overlay"])
    policy, workspace, mode = sandbox_from(parsed.replace(options=options))
    unknown = [tool for tool in parsed.many("yes") if tool not in ("commit", "allow_host")]
    if unknown:
        raise UsageError(f"--yes {unknown[0]!r} names no tool that asks", fix="choose commit or allow_host")
    most = parsed.one("sandboxes") or "32"
    if not (most.isdigit() and int(most)):
        raise UsageError(f"--sandboxes {most!r} is not a number above 0", fix="write digits, as in 8")
    port = parsed.one("http")
    if port is not None and not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"--http {port!r} is not a port", fix="choose a number, 0 for any free port")
    try:
        from ..mcp.sandboxes import ServerSettings
        from ..mcp.server import serve_stdio, tools_named
    except ImportError as error:
        raise ExtraMissing("staddle mcp needs the package mcp", why=str(error), fix=_INSTALL) from None
    tools = tools_named("default" if (names := parsed.one("tools")) is None else names)
    settings = ServerSettings(
        workspace=workspace,
        policy=policy,
        mode=mode,
        backend=parsed.one("backend") or "auto",
        best_effort=parsed.on("best-effort"),
        keep=parsed.one("keep"),
        tools=tools | set(parsed.many("yes")),
        unasked=frozenset(parsed.many("yes")),
        most_sandboxes=int(most),
    )
    if port is None:
        serve_stdio(settings)
    else:
        from ..mcp.http import serve_http

        serve_http(settings, int(port), os.environ.get("STADDLE_MCP_TOKEN"))
    return 0
