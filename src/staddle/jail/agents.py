"""Coding agents as data: how each is started unattended, and what of the home it needs.

A new one is a row in `AGENTS`, or an `Agent` of your own in `RunOpts(agent=...)`.

What the rows say comes from the agents' own documentation; the agents themselves do not run
in our tests, a stand-in with the same paths does.
"""

from __future__ import annotations

import os

from .._value import Value
from ..errors import PolicyError
from ..policy.presets import AGENT_CONFIG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy import Policy

#: Stands in `command` for what the agent is asked to do.
PROMPT = "{prompt}"


class Agent(Value):
    """One coding agent. `~` is the home of the user who starts it; paths that do not exist are left out.

    `write` is its own configuration and state, `read` its programs and data. `obeyed` are the
    places below `write` whose content makes the agent run commands when it starts: the user's own
    agent would obey them too, so a change there is reported after a run; `mixed` are JSON files
    that hold state as well, with the keys that are obeyed. `hosts` are what it has to reach, for a
    network that allows only those.
    """

    name: str
    command: tuple[str, ...]
    key: str
    write: tuple[str, ...]
    read: tuple[str, ...] = ()
    obeyed: tuple[str, ...] = ()
    mixed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    hosts: tuple[str, ...] = ()

    def asked(self, prompt: str) -> list[str]:
        """The command line that does `prompt` without asking back. The prompt stays one argument."""
        return [word.replace(PROMPT, prompt) for word in self.command]

    def needs(self, policy: Policy) -> Policy:
        """`policy` with this agent's places, and without those of every other agent."""
        mine = (*self.write, *self.read)
        return (
            policy.with_write(*_there(self.write))
            .with_read(*_there(self.read))
            .with_deny(*(path for path in AGENT_CONFIG if path not in mine))
        )


#: Each with the switches for unattended work: what holds it is the jail.
AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent(
            "claude",
            ("claude", "--print", "--permission-mode", "bypassPermissions", "--", PROMPT),
            "ANTHROPIC_API_KEY",
            write=("~/.claude", "~/.claude.json", "~/.local/state/claude"),
            read=("~/.local/share/claude",),
            obeyed=(
                *("~/.claude/settings.json", "~/.claude/settings.local.json", "~/.claude/CLAUDE.md"),
                *("~/.claude/agents", "~/.claude/commands", "~/.claude/hooks", "~/.claude/plugins"),
                *("~/.claude/output-styles", "~/.claude/skills"),
            ),
            mixed=(("~/.claude.json", ("apiKeyHelper", "env", "hooks", "mcpServers")),),
            hosts=("api.anthropic.com", "claude.ai", "platform.claude.com", "console.anthropic.com"),
        ),
        Agent(
            "codex",
            ("codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--", PROMPT),
            "CODEX_API_KEY",
            write=("~/.codex",),
            obeyed=(
                *("~/.codex/config.toml", "~/.codex/AGENTS.md", "~/.codex/hooks.json"),
                *("~/.codex/prompts", "~/.codex/rules", "~/.codex/skills"),
            ),
            hosts=("api.openai.com", "chatgpt.com", "auth.openai.com"),
        ),
        Agent(
            "gemini",
            ("gemini", "--approval-mode=yolo", f"--prompt={PROMPT}"),
            "GEMINI_API_KEY",
            write=("~/.gemini",),
            obeyed=(
                *("~/.gemini/settings.json", "~/.gemini/GEMINI.md", "~/.gemini/trustedFolders.json"),
                *("~/.gemini/commands", "~/.gemini/extensions", "~/.gemini/policies", "~/.gemini/.env"),
            ),
            hosts=(
                *("generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com"),
                *("oauth2.googleapis.com", "accounts.google.com"),
            ),
        ),
        Agent(
            "qwen",
            ("qwen", "--approval-mode=yolo", f"--prompt={PROMPT}"),
            "OPENAI_API_KEY",
            write=("~/.qwen",),
            obeyed=("~/.qwen/settings.json", "~/.qwen/QWEN.md", "~/.qwen/commands", "~/.qwen/extensions"),
            hosts=("chat.qwen.ai", "portal.qwen.ai", "dashscope.aliyuncs.com"),
        ),
        Agent(
            "cursor",
            ("cursor-agent", "--print", "--force", "--", PROMPT),
            "CURSOR_API_KEY",
            write=("~/.cursor", "~/.config/cursor"),
            read=("~/.local/share/cursor-agent",),
            obeyed=("~/.cursor/mcp.json", "~/.cursor/hooks.json", "~/.cursor/cli-config.json"),
            hosts=("*.cursor.sh", "cursor.com", "*.cursor.com"),
        ),
        Agent(
            "copilot",
            ("copilot", "--allow-all-tools", f"--prompt={PROMPT}"),
            "COPILOT_GITHUB_TOKEN",
            write=("~/.copilot",),
            obeyed=("~/.copilot/mcp-config.json", "~/.copilot/config.json", "~/.copilot/agents"),
            hosts=("api.github.com", "github.com", "*.githubcopilot.com"),
        ),
        Agent(
            "opencode",
            ("opencode", "run", "--", PROMPT),
            "ANTHROPIC_API_KEY",
            write=("~/.config/opencode", "~/.local/share/opencode", "~/.local/state/opencode"),
            read=("~/.opencode",),
            obeyed=("~/.config/opencode",),
            hosts=("api.anthropic.com", "opencode.ai", "models.dev"),
        ),
        Agent(
            "goose",
            ("goose", "run", f"--text={PROMPT}"),
            "OPENAI_API_KEY",
            write=("~/.config/goose", "~/.local/share/goose", "~/.local/state/goose"),
            obeyed=("~/.config/goose",),
            hosts=("api.openai.com",),
        ),
        Agent(
            "crush",
            ("crush", "run", "--", PROMPT),
            "ANTHROPIC_API_KEY",
            write=("~/.config/crush", "~/.local/share/crush"),
            obeyed=("~/.config/crush", "~/.local/share/crush/crush.json"),
            hosts=("api.anthropic.com", "catwalk.charm.sh"),
        ),
        Agent(
            "amp",
            ("amp", "--dangerously-allow-all", f"--execute={PROMPT}"),
            "AMP_API_KEY",
            write=("~/.config/amp", "~/.local/share/amp"),
            obeyed=("~/.config/amp",),
            hosts=("ampcode.com", "*.ampcode.com"),
        ),
        Agent(
            "aider",
            ("aider", "--yes-always", f"--message={PROMPT}"),
            "ANTHROPIC_API_KEY",
            write=("~/.aider", "~/.aider.conf.yml"),
            obeyed=("~/.aider.conf.yml",),
            hosts=("api.anthropic.com",),
        ),
    )
}


def agent_named(name: str) -> Agent:
    """The row of that name, or PolicyError that lists the known."""
    if name not in AGENTS:
        raise PolicyError(
            f"there is no agent {name!r}",
            why=f"staddle knows {', '.join(AGENTS)}",
            fix="choose one, or give the command yourself",
        )
    return AGENTS[name]


def _there(paths: tuple[str, ...]) -> list[str]:
    """Those that exist: a policy does not grant what is not there."""
    return [path for path in paths if os.path.exists(os.path.expanduser(path))]
