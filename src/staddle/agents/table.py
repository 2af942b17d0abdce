"""Coding agents and the ways in which each can be used with staddle, as data.

There are three ways. `inside`: the whole agent runs in a sandbox, on a layer of the project. `shell`: the
agent runs outside, and its shell commands run in a sandbox. `mcp`: the agent runs outside without its own
tools, and uses those of `staddle mcp`. The rows of `jail.agents` have the rest about each agent.

The rows were tested by driving each agent with a scripted model (`make test-agents`), except where `untried`
gives a reason.
"""

from __future__ import annotations

import json
import os
import shlex
import sys

from .._value import Value
from ..jail.agents import AGENTS
from .shim import BASH, PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHELL, MCP, INSIDE = "shell", "mcp", "inside"
#: Claude Code's own tools, which the mcp way switches off in its settings.
CLAUDE_TOOLS = (
    *("Bash", "Read", "Edit", "Write", "NotebookEdit", "Glob", "Grep", "LSP", "Monitor", "WebFetch"),
    *("WebSearch", "Agent", "Workflow", "EnterWorktree", "ExitWorktree"),
)


class SettingsEdit(Value):
    """A change to an agent's settings file: JSON to merge into it, or the text of a new file.

    `whole` are the members to replace instead of merge, such as lists of permissions: in a merged list, the
    user's permissions would stay allowed.
    """

    path: str  # ~ is the user's home
    merge: dict[str, Any] | None = None
    whole: tuple[tuple[str, ...], ...] = ()
    text: str | None = None


class Way(Value):
    """One way to use an agent.

    `variables` and `words` are for a single start, `edits` for its settings. Each gets the directory of the
    shims; `edits` also gets the words that start `staddle mcp`. `closed` is True if the agent runs no command
    outside when the shim or server is missing or fails. `outside` lists what still runs outside.
    """

    closed: bool
    outside: str
    variables: Callable[[str], dict[str, str]] = lambda _: {}
    words: Callable[[str, list[str]], list[str]] = lambda _home, _server: []
    edits: Callable[[str, list[str]], list[SettingsEdit]] | None = None
    untried: str = ""


class CodingAgent(Value):
    """One coding agent. `check` returns the words and variables for one run with a scripted model."""

    name: str
    title: str
    program: str
    ways: dict[str, Way]
    check: Callable[[str], tuple[list[str], dict[str, str]]] | None = None

    @property
    def default(self) -> str:
        """The default way: the first."""
        return next(iter(self.ways))

    @property
    def installed(self) -> str:
        """The default way of its settings: the first that settings can describe."""
        return next((name for name, way in self.ways.items() if way.edits is not None), self.default)


def mcp_server(workspace: str | None) -> list[str]:
    """The words that start `staddle mcp`, even if `staddle` is not on the PATH."""
    return [sys.executable, "-m", "staddle", "mcp", *([workspace] if workspace else ())]


def _servers(server: list[str]) -> dict[str, Any]:
    return {"mcpServers": {"staddle": {"command": server[0], "args": server[1:]}}}


def _claude_shell(home: str, _: list[str]) -> list[SettingsEdit]:
    return [
        SettingsEdit("~/.claude/settings.json", {"env": {"CLAUDE_CODE_SHELL_PREFIX": f"{home}/{PREFIX}"}})
    ]


def _claude_mcp(_: str, server: list[str]) -> list[SettingsEdit]:
    return [
        SettingsEdit("~/.claude/settings.json", {"permissions": {"deny": list(CLAUDE_TOOLS)}}),
        SettingsEdit("~/.claude.json", _servers(server)),
    ]


def codex_program() -> str | None:
    """The Codex binary that its launcher would start; it needs no other files."""
    import glob
    import shutil

    found = shutil.which("codex")
    if found is None:
        return None
    real = os.path.realpath(found)
    pattern = f"{os.path.dirname(os.path.dirname(real))}/../codex-linux-*/vendor/*/bin/codex"
    nested = f"{os.path.dirname(os.path.dirname(real))}/**/vendor/*/bin/codex"
    binaries = sorted(glob.glob(pattern)) or sorted(glob.glob(nested, recursive=True))
    return os.path.realpath(binaries[0]) if binaries else real


def codex_environments(home: str) -> str:
    """The text of environments.toml: Codex's commands and files go through an exec-server in the sandbox.

    Without `include_local = false` Codex would use the host if the server cannot be started.
    """
    program = shlex.quote(codex_program() or "codex")
    line = f"export CODEX_HOME=/tmp/codex-home; mkdir -p $CODEX_HOME; exec {program}"
    words = json.dumps(["-c", f"{line} exec-server --listen stdio"])
    return (
        'include_local = false\ndefault = "staddle"\n\n[[environments]]\nid = "staddle"\n'
        f"program = {json.dumps(f'{home}/{BASH}')}\nargs = {words}\n"
    )


def _codex(home: str, _: list[str]) -> list[SettingsEdit]:
    where = os.environ.get("CODEX_HOME", "~/.codex")
    return [SettingsEdit(f"{where}/environments.toml", text=codex_environments(home))]


def _opencode_mcp(server: list[str]) -> dict[str, Any]:
    served = {"type": "local", "command": server, "enabled": True, "timeout": 60_000}
    return {"mcp": {"staddle": served}, "permission": {"*": "deny", "staddle_*": "allow"}}


def gemini_mcp(server: list[str]) -> dict[str, Any]:
    """Settings that give Gemini CLI a task list and the tools of staddle, and no other tool."""
    return {**_servers(server), "tools": {"core": ["write_todos", "mcp_staddle_*"]}}


def _vscode(home: str, _: list[str]) -> list[SettingsEdit]:
    profile = {"path": f"{home}/{BASH}"}
    merge = {
        "chat.tools.terminal.terminalProfile.linux": profile,
        "terminal.integrated.profiles.linux": {"staddle": profile},
        "terminal.integrated.defaultProfile.linux": "staddle",
    }
    return [SettingsEdit("~/.config/Code/User/settings.json", merge)]


def _opencode_check(url: str) -> tuple[list[str], dict[str, str]]:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "scripted", "options": options}
    config: dict[str, Any] = {"model": "scripted/scripted", "small_model": "scripted/scripted"}
    config |= {"permission": "allow", "autoupdate": False, "share": "disabled"}
    config["provider"] = {"scripted": {**provider, "models": {"scripted": {"name": "scripted"}}}}
    quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return ["run", "go"], {"OPENCODE_CONFIG_CONTENT": json.dumps(config), **quiet}


def _codex_check(url: str) -> tuple[list[str], dict[str, str]]:
    settings = {
        "model": "scripted",
        "model_provider": "scripted",
        "model_providers.scripted.name": "scripted",
        "model_providers.scripted.base_url": f"{url}/v1",
        "model_providers.scripted.wire_api": "responses",
        "model_providers.scripted.env_key": "SCRIPTED_API_KEY",
    }
    chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    trusted = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [*trusted, *chosen, "go"], {"SCRIPTED_API_KEY": "none"}


def _of_row(
    name: str, ways: dict[str, Way], check: Callable[[str], tuple[list[str], dict[str, str]]] | None = None
) -> CodingAgent:
    row = AGENTS[name]
    return CodingAgent(name, row.title, row.program, ways, check)


_ALL_OUTSIDE = "the agent's file tools, its web tools and its hooks"
CODING_AGENTS: dict[str, CodingAgent] = {
    agent.name: agent
    for agent in (
        _of_row(
            "claude",
            {
                INSIDE: Way(True, "nothing"),
                SHELL: Way(
                    True,
                    "the tools Read, Edit, Write, WebFetch, and hooks",
                    variables=lambda home: {"CLAUDE_CODE_SHELL_PREFIX": f"{home}/{PREFIX}"},
                    # In addition to the variable, which a project's settings would replace.
                    words=lambda home, _: ["--settings", json.dumps(_claude_shell(home, [])[0].merge)],
                    edits=_claude_shell,
                ),
                MCP: Way(
                    True,
                    "hooks",
                    words=lambda _, server: [
                        *("--mcp-config", json.dumps(_servers(server)), "--strict-mcp-config"),
                        *("--tools", "", "--allowed-tools", "mcp__staddle"),
                    ],
                    edits=_claude_mcp,
                ),
            },
            lambda url: (
                ["-p", "go", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-5"],
                {
                    "ANTHROPIC_BASE_URL": url,
                    "ANTHROPIC_API_KEY": "none-0123456789",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                    "DISABLE_AUTOUPDATER": "1",
                    "IS_SANDBOX": "1",
                },
            ),
        ),
        _of_row(
            "codex",
            {
                INSIDE: Way(True, "nothing"),
                SHELL: Way(True, "MCP servers and hooks", edits=_codex),
            },
            _codex_check,
        ),
        _of_row(
            "opencode",
            {
                INSIDE: Way(True, "nothing"),
                SHELL: Way(
                    False,
                    _ALL_OUTSIDE,
                    variables=lambda home: {"SHELL": f"{home}/{BASH}"},
                    edits=lambda home, _: [
                        SettingsEdit("~/.config/opencode/opencode.json", {"shell": f"{home}/{BASH}"})
                    ],
                ),
                MCP: Way(
                    True,
                    "plugins",
                    edits=lambda _, server: [
                        SettingsEdit(
                            "~/.config/opencode/opencode.json", _opencode_mcp(server), (("permission",),)
                        )
                    ],
                ),
            },
            _opencode_check,
        ),
        _of_row(
            "gemini",
            {
                INSIDE: Way(True, "nothing"),
                SHELL: Way(
                    False,
                    _ALL_OUTSIDE,
                    variables=lambda home: {"PATH": f"{home}:{os.environ.get('PATH', os.defpath)}"},
                ),
                MCP: Way(
                    True,
                    "hooks and extensions",
                    edits=lambda _, server: [
                        SettingsEdit("~/.gemini/settings.json", gemini_mcp(server), (("tools", "core"),))
                    ],
                ),
            },
            lambda url: (
                ["-p", "go", "--yolo", "-m", "gemini-2.5-flash"],
                {
                    "GOOGLE_GEMINI_BASE_URL": url,
                    "GEMINI_API_KEY": "none-0123456789",
                    "GEMINI_CLI_NO_RELAUNCH": "1",
                    "GEMINI_CLI_TRUST_WORKSPACE": "true",
                },
            ),
        ),
        _of_row(
            "aider",
            {
                INSIDE: Way(True, "nothing"),
                SHELL: Way(
                    False,
                    "edits of files; and every command, if standard input is not a terminal",
                    variables=lambda home: {"SHELL": f"{home}/{BASH}"},
                ),
            },
        ),
        CodingAgent(
            "vscode",
            "VS Code (Copilot agent mode)",
            "code",
            {
                SHELL: Way(
                    False,
                    "file edits, extensions and tasks",
                    edits=_vscode,
                    untried="no package registry has VS Code, and code-server has no agent mode",
                ),
            },
        ),
    )
}
