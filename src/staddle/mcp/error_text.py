"""Errors in words that a model can act on.

The library's errors suggest fixes for a Python program. A model has only the tools of the server and their
arguments. Its errors name these, or say that the user must act, with the option or command.
"""

from __future__ import annotations

import re

from mcp.server.mcpserver.exceptions import ToolError

from staddle.errors import SandboxClosed, StaddleError, rendered

#: The user's way to allow a host, for servers without the tool allow_host.
ALLOW_IT = "`staddle mcp --allow HOST`, or `--tools all` for a tool that asks"
#: A part of a library error's `fix`, and the fix for a caller of tools.
_INSTEAD = (
    ("with paths=, or discard", "name the other changes in `paths`: these are left out then"),
    (
        "on_conflict=",
        "compare them with the user's files; overwrite=true replaces those, `paths` with the other changes "
        "leaves these out",
    ),
    ("diff() does", "name paths as `diff` lists them"),
    ("sb.files.read()", "name paths of the workspace"),
    ("Network.allow(", "write a host such as api.example.com, or host:port"),
    ("stdin=", "write such bytes with printf '\\0'"),
    ("sb.session(", "use another `session`"),
    ("session, and open another", "use another `session`"),
    ("as good=, a newer one as bad=", "name an older point in `good`, and a newer one in `bad`"),
    (
        "as bad=, or repeat=",
        "name in `bad` a point at which it fails; `repeat` is for one that fails sometimes",
    ),
    ("as good=, or correct", "name in `good` a point at which it passes, or correct the test"),
    ("points with sb.history()", "`history` lists the points; the first is the beginning"),
    ("that sb.history() lists", "`history` lists the points"),
    ("redo() follows undo()", "redo only what undo took back, before the next change"),
    ("sb.merge(a, b)", "name sandboxes that `fork` made, each of them once"),
)
#: Options and variables of the user, in the spelling of the command line.
_SPELLINGS = (
    (re.compile(r"timeout=, limits\.timeout"), "`timeout`"),
    (re.compile(r"\blimits\.(\w+)"), lambda found: f"--{found[1].replace('_', '-')}"),
    (re.compile(r"\b(mode|backend|keep)=(['\"])([\w-]+)\2"), r"--\1 \3"),
    (re.compile(r"\bbest_effort=True"), "--best-effort"),
    (re.compile(r"policy\.with_(read|write|deny)\((?:'([^']*)')?\)"), r"--\1 \2"),
    (re.compile(r"Network\.allow\('([^']+)'\)"), r"--allow \1"),
    (re.compile(r", or (?:set Limits\.none\(\)|leave on_connect out)"), ""),
)
#: Words for things that only a user can change.
_OF_USER = re.compile(
    r"staddle |--[a-z]|\$[A-Z]|STADDLE_|ulimit|Linux|ext4"
    r"|\b(?:backend|policy|install|limit|host|make room|make the place)\b"
)
#: Words of the Python API.
_PYTHON = re.compile(r"\w\(|\w=|\b(?:sb|os|json)\.\w|\brb\b")


def tool_error(what: str, *, why: str = "", fix: str = "") -> ToolError:
    """An error of a tool, with a `fix` for a model."""
    return ToolError(rendered(what, why, fix))


def for_model(error: StaddleError) -> str:
    """An error of the library, with a fix that a model can apply, or tell the user."""
    what, why, fix = (spelled(text) for text in (error.what, error.why, error.fix))
    if isinstance(error, SandboxClosed):
        return rendered(what, why, "call again: what was not committed is lost")
    for part, instead in _INSTEAD:
        if part in error.fix:
            return rendered(what, why, instead)
    if _OF_USER.search(fix):
        return rendered(what, why, f"only the user can change this: {fix}")
    return rendered(what, why, "" if _PYTHON.search(fix) else fix)


def spelled(text: str) -> str:
    """The text with the options of `staddle mcp` instead of Python's names."""
    for python, option in _SPELLINGS:
        text = python.sub(option, text)
    return text
