"""Coding agents as data: their unattended command, the paths that they need, and the settings that they obey.

To add one, add a row to `AGENTS`, or pass your own `Agent` in `RunOpts(agent=...)`.

The rows follow the agents' own documentation. Our tests run a stand-in with the same paths, not the agents.

The agent's configuration is writable in its jail, or it could not log in or remember anything. The user's own
agent obeys a part of it outside: hooks, servers, instructions. staddle compares fingerprints of that part
before and after a run and reports a change. It does not undo the change, which may be the user's.
"""

from __future__ import annotations

import json
import os
import stat

from .._value import Value
from ..errors import PolicyError
from ..policy.presets import AGENT_CONFIG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from ..policy import Policy

#: Placeholder in `command` for the prompt.
PROMPT = "{prompt}"
#: Placeholders for the value in `model`, and in `session` and `resume`.
MODEL = "{model}"
SESSION = "{session}"
#: Means the agent's last conversation in its directory.
LATEST = "last"


class StateFile(Value):
    """A JSON file of an agent's home with things that it remembers, such as a login.

    The agent gets a copy. Members that it has changed are written back to the user's file: those of
    `members`, and of the project's own entry in `projects` those of `of_project`. `inside` and
    `project_inside` are members that are set in the copy, and never written back.
    """

    path: str
    members: tuple[str, ...]
    of_project: tuple[str, ...] = ()
    inside: tuple[tuple[str, Any], ...] = ()
    project_inside: tuple[tuple[str, Any], ...] = ()


class AgentKey(Value):
    """A key of an agent's model, in the variable `name`. Requests to `hosts` have it.

    They have it in `header` (default: `Authorization: Bearer {}`), or in the parameter `query`. The agent
    accepts keys that begin with `begin`. The variable `address` names another host for the requests.
    """

    name: str
    hosts: tuple[str, ...]
    header: str = ""
    query: str = ""
    begin: str = ""
    address: str = ""


_OPENROUTER = AgentKey("OPENROUTER_API_KEY", ("openrouter.ai",), begin="sk-or-v1-")


def _anthropic(address: str = "") -> AgentKey:
    hosts, begin = ("api.anthropic.com",), "sk-ant-api03-"
    return AgentKey("ANTHROPIC_API_KEY", hosts, "x-api-key", begin=begin, address=address)


def _openai(address: str = "", name: str = "OPENAI_API_KEY") -> AgentKey:
    return AgentKey(name, ("api.openai.com",), begin="sk-", address=address)


def _gemini(address: str = "", name: str = "GEMINI_API_KEY") -> AgentKey:
    hosts = ("generativelanguage.googleapis.com",)
    return AgentKey(name, hosts, "x-goog-api-key", begin="AIza", address=address)


class Agent(Value):
    """One coding agent. `~` is the home of the user who starts it; missing paths are left out.

    `write` is its own configuration and state, `read` its programs and data. `obeyed` are paths below `write`
    whose content makes the agent run commands when it starts. The user's own agent would obey them too, so a
    change there is reported after a run. `mixed` are JSON files that also contain state, with the keys that
    are obeyed. `hosts` are the hosts that it needs, for a network that allows only listed hosts.

    `model` are the words that choose a model, `session` those that give a new conversation our id, `resume`
    those that continue a conversation by id, `latest` those that continue the last one in the directory.
    `interactive` is the command for a person at a terminal. Empty means that we know none. With
    `interactive`, `interactive_latest` replaces `latest`, and `interactive_model` is True if `model` works.

    The remaining fields are for `staddle NAME`, which runs all of it on a layer. `memory` is the directory of
    the project's conversations, which it may write: `{slug}` is the project's path in its spelling.
    `sessions` are patterns of conversations that are copied to the user's home. `files` are files with things
    that it remembers. What is in `obeyed` is read-only. `servers` are files with the user's MCP servers, each
    with the keys that lead to them. `logins` are variables that it needs, `set` others that are set. `keys`
    are those of `logins` whose values can stay outside. `elsewhere` is a variable that moves its
    configuration, which is not supported.

    `free` are words that switch off its prompts and its own sandbox, each with the user's words that replace
    them: the sandbox around it stands for both. `{project}` is the quoted path of the project. They come
    before the user's words, or after the first word if that is one of the subcommands `free_of`.
    """

    name: str
    command: tuple[str, ...]
    key: str
    write: tuple[str, ...]
    read: tuple[str, ...] = ()
    obeyed: tuple[str, ...] = ()
    mixed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    hosts: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    session: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    latest: tuple[str, ...] = ()
    interactive: tuple[str, ...] = ()
    interactive_latest: tuple[str, ...] = ()
    interactive_model: bool = True
    title: str = ""
    memory: str = ""
    sessions: tuple[str, ...] = ()
    files: tuple[StateFile, ...] = ()
    servers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    logins: tuple[str, ...] = ()
    keys: tuple[AgentKey, ...] = ()
    set: tuple[tuple[str, str], ...] = ()
    elsewhere: str = ""
    free: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    free_of: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The name of its program."""
        return self.command[0]

    def freely(self, words: Sequence[str], project: str) -> list[str]:
        """The user's words with those that switch off its prompts and its own sandbox, unless given."""
        given, quoted = {word.partition("=")[0] for word in words}, json.dumps(project, ensure_ascii=False)
        more = [word for added, others in self.free if not given & {*others} for word in added]
        more = [word.replace("{project}", quoted) for word in more]
        at = 1 if words and words[0] in self.free_of else 0
        return [*words[:at], *more, *words[at:]]

    def asked(
        self, prompt: str, *, model: str | None = None, session: str | None = None, resume: str | None = None
    ) -> list[str]:
        """The command line that does `prompt` without asking back. The prompt stays one argument.

        `session` names a new conversation, `resume` continues the one with that id, or the "last" one. Raises
        PolicyError if this agent has no option for it.
        """
        extra = [*self._chosen(model), *self._continued(resume)]
        if session is not None and resume is None:
            extra += self._filled("session", SESSION, session)
        at = next(at for at, word in enumerate(self.command) if word == "--" or PROMPT in word)
        words = [word.replace(PROMPT, prompt) for word in self.command]
        return [*words[:at], *extra, *words[at:]]

    def attached(self, *, model: str | None = None, resume: str = LATEST) -> list[str]:
        """The command line with which a person at a terminal continues a conversation."""
        if not self.interactive:
            raise PolicyError(
                f"{self.name} cannot be attached to",
                why="its row has no interactive command",
                fix="use a shell",
            )
        if model is not None and not self.interactive_model:
            raise PolicyError(
                f"{self.name} has no words for the model of a conversation at a terminal",
                why="it takes one only for a single prompt",
                fix="leave the model out, or choose it in the conversation",
            )
        if resume == LATEST and self.interactive_latest:
            return [*self.interactive, *self._chosen(model), *self.interactive_latest]
        return [*self.interactive, *self._chosen(model), *self._continued(resume)]

    def _chosen(self, model: str | None) -> list[str]:
        return [] if model is None else self._filled("model", MODEL, model)

    def _continued(self, resume: str | None) -> list[str]:
        if resume is None:
            return []
        return self._filled("latest", "", "") if resume == LATEST else self._filled("resume", SESSION, resume)

    def _filled(self, field: str, mark: str, value: str) -> list[str]:
        words: tuple[str, ...] = getattr(self, field)
        if not words:
            raise PolicyError(
                f"{self.name} has no words for {field}",
                why="its row has none",
                fix="give the command yourself",
            )
        if value.startswith("-") or "\0" in value or (mark and not value):
            raise PolicyError(
                f"the {field} {value!r} cannot be passed on",
                why="it is empty or like an option",
                fix="write it without a leading dash",
            )
        return [word.replace(mark, value) if mark else word for word in words]

    def needs(self, policy: Policy) -> Policy:
        """`policy` with this agent's paths, and without those of every other agent."""
        mine = (*self.write, *self.read)
        return (
            policy.with_write(*_there(self.write))
            .with_read(*_there(self.read))
            .with_deny(*(path for path in AGENT_CONFIG if path not in mine))
        )


#: Each has the switches for unattended work: the jail confines it.
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
            model=("--model", MODEL),
            session=("--session-id", SESSION),
            resume=("--resume", SESSION),
            latest=("--continue",),
            interactive=("claude", "--permission-mode", "bypassPermissions"),
            title="Claude Code",
            memory="~/.claude/projects/{slug}",
            files=(
                StateFile("~/.claude/.credentials.json", ("claudeAiOauth",)),
                StateFile(
                    "~/.claude.json",
                    (
                        *("oauthAccount", "userID", "hasCompletedOnboarding", "lastOnboardingVersion"),
                        *("numStartups", "firstStartTime", "tipsHistory", "theme", "customApiKeyResponses"),
                    ),
                    ("history", "lastSessionId", "hasCompletedProjectOnboarding"),
                    inside=(("bypassPermissionsModeAccepted", True), ("autoUpdates", False)),
                    project_inside=(("hasTrustDialogAccepted", True),),
                ),
            ),
            servers=(
                ("~/.claude.json", ("mcpServers",)),
                ("~/.claude.json", ("projects", "{project}", "mcpServers")),
            ),
            logins=(
                *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"),
                *("CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
            ),
            keys=(
                _anthropic("ANTHROPIC_BASE_URL"),
                AgentKey("ANTHROPIC_AUTH_TOKEN", ("api.anthropic.com",), address="ANTHROPIC_BASE_URL"),
                AgentKey(
                    "CLAUDE_CODE_OAUTH_TOKEN",
                    ("api.anthropic.com",),
                    begin="sk-ant-oat01-",
                    address="ANTHROPIC_BASE_URL",
                ),
            ),
            elsewhere="CLAUDE_CONFIG_DIR",
            set=(("IS_SANDBOX", "1"), ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")),
            free=(
                (
                    ("--permission-mode", "bypassPermissions"),
                    ("--permission-mode", "--dangerously-skip-permissions"),
                ),
                (
                    (
                        "--settings",
                        '{"sandbox": {"enabled": false}, "skipDangerousModePermissionPrompt": true}',
                    ),
                    ("--settings",),
                ),
            ),
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
            model=("--model", MODEL),
            resume=("resume", SESSION),
            latest=("resume", "--last"),
            interactive=("codex", "--dangerously-bypass-approvals-and-sandbox"),
            # Without it, `codex resume` skips conversations that `codex exec` began.
            interactive_latest=("resume", "--last", "--include-non-interactive"),
            title="Codex CLI",
            sessions=("~/.codex/sessions/**/rollout-*.jsonl",),
            files=(
                StateFile("~/.codex/auth.json", ("auth_mode", "OPENAI_API_KEY", "tokens", "last_refresh")),
            ),
            servers=(("~/.codex/config.toml", ("mcp_servers",)),),
            logins=("OPENAI_API_KEY", "CODEX_API_KEY", "OPENAI_BASE_URL"),
            keys=(_openai("OPENAI_BASE_URL"), _openai("OPENAI_BASE_URL", "CODEX_API_KEY")),
            elsewhere="CODEX_HOME",
            free=(
                (
                    ("--dangerously-bypass-approvals-and-sandbox",),
                    ("--dangerously-bypass-approvals-and-sandbox", "--sandbox", "-s", "--full-auto"),
                ),
                (("-c", 'projects={{project}={trust_level="trusted"}}'), ()),
            ),
            free_of=("exec", "e", "resume"),
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
            model=("--model", MODEL),
            resume=("--resume", SESSION),
            latest=("--resume", "latest"),
            interactive=("gemini", "--approval-mode=yolo"),
            title="Gemini CLI",
            sessions=("~/.gemini/tmp/*/chats/session-*.jsonl",),
            files=(
                StateFile(
                    "~/.gemini/oauth_creds.json",
                    (
                        *("access_token", "refresh_token", "id_token", "token_type", "scope"),
                        "expiry_date",
                    ),
                ),
                StateFile("~/.gemini/google_accounts.json", ("active", "old")),
            ),
            servers=(("~/.gemini/settings.json", ("mcpServers",)),),
            logins=(
                *("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_CLOUD_PROJECT"),
                *("GOOGLE_CLOUD_LOCATION", "GOOGLE_GENAI_USE_VERTEXAI", "GEMINI_MODEL"),
            ),
            keys=(
                _gemini("GOOGLE_GEMINI_BASE_URL"),
                _gemini("GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
            ),
            elsewhere="GEMINI_CLI_HOME",
            set=(("GEMINI_SANDBOX", "false"), ("GEMINI_CLI_TRUST_WORKSPACE", "true")),
            free=((("--approval-mode=yolo",), ("--approval-mode", "--yolo", "-y")),),
        ),
        Agent(
            "qwen",
            ("qwen", "--approval-mode=yolo", f"--prompt={PROMPT}"),
            "OPENAI_API_KEY",
            write=("~/.qwen",),
            obeyed=("~/.qwen/settings.json", "~/.qwen/QWEN.md", "~/.qwen/commands", "~/.qwen/extensions"),
            hosts=("chat.qwen.ai", "portal.qwen.ai", "dashscope.aliyuncs.com"),
            model=("--model", MODEL),
            resume=("--resume", SESSION),
            latest=("--continue",),
            interactive=("qwen", "--approval-mode=yolo"),
        ),
        Agent(
            "cursor",
            ("cursor-agent", "--print", "--force", "--", PROMPT),
            "CURSOR_API_KEY",
            write=("~/.cursor", "~/.config/cursor"),
            read=("~/.local/share/cursor-agent",),
            obeyed=("~/.cursor/mcp.json", "~/.cursor/hooks.json", "~/.cursor/cli-config.json"),
            hosts=("*.cursor.sh", "cursor.com", "*.cursor.com"),
            model=("--model", MODEL),
            resume=(f"--resume={SESSION}",),
            latest=("--continue",),
            interactive=("cursor-agent", "--force"),
        ),
        Agent(
            "copilot",
            ("copilot", "--allow-all-tools", f"--prompt={PROMPT}"),
            "COPILOT_GITHUB_TOKEN",
            write=("~/.copilot",),
            obeyed=("~/.copilot/mcp-config.json", "~/.copilot/config.json", "~/.copilot/agents"),
            hosts=("api.github.com", "github.com", "*.githubcopilot.com"),
            model=("--model", MODEL),
            resume=("--resume", SESSION),
            latest=("--continue",),
            interactive=("copilot", "--allow-all-tools"),
        ),
        Agent(
            "opencode",
            ("opencode", "run", "--", PROMPT),
            "ANTHROPIC_API_KEY",
            write=("~/.config/opencode", "~/.local/share/opencode", "~/.local/state/opencode"),
            read=("~/.opencode",),
            obeyed=("~/.config/opencode",),
            hosts=("api.anthropic.com", "opencode.ai", "models.dev"),
            model=("--model", MODEL),
            resume=("--session", SESSION),
            latest=("--continue",),
            interactive=("opencode",),
            title="opencode",
            files=(
                StateFile(
                    "~/.local/share/opencode/auth.json",
                    ("anthropic", "openai", "google", "opencode", "openrouter", "github-copilot"),
                ),
            ),
            servers=(
                ("~/.config/opencode/opencode.json", ("mcp",)),
                ("~/.config/opencode/opencode.jsonc", ("mcp",)),
            ),
            logins=("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
            keys=(_anthropic(), _openai(), _gemini(), _OPENROUTER),
            elsewhere="OPENCODE_CONFIG_DIR",
            set=(("OPENCODE_PERMISSION", '{"*": "allow"}'), ("OPENCODE_DISABLE_AUTOUPDATE", "1")),
        ),
        Agent(
            "goose",
            ("goose", "run", f"--text={PROMPT}"),
            "OPENAI_API_KEY",
            write=("~/.config/goose", "~/.local/share/goose", "~/.local/state/goose"),
            obeyed=("~/.config/goose",),
            hosts=("api.openai.com",),
            model=("--model", MODEL),
            session=("--name", SESSION),
            # No `latest`: without a name goose continues the last conversation of any directory.
            resume=("--resume", "--name", SESSION),
            interactive=("goose", "session"),
            interactive_model=False,
        ),
        Agent(
            "crush",
            ("crush", "run", "--", PROMPT),
            "ANTHROPIC_API_KEY",
            write=("~/.config/crush", "~/.local/share/crush"),
            obeyed=("~/.config/crush", "~/.local/share/crush/crush.json"),
            hosts=("api.anthropic.com", "catwalk.charm.sh"),
            model=("--model", MODEL),
            resume=("--session", SESSION),
            latest=("--continue",),
            interactive=("crush", "--yolo"),
            interactive_model=False,
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
            model=("--model", MODEL),
            latest=("--restore-chat-history",),
            interactive=("aider",),
            title="Aider",
            logins=(
                *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
                *("DEEPSEEK_API_KEY", "OPENAI_API_BASE", "AIDER_MODEL"),
            ),
            keys=(
                *(_anthropic(), _openai("OPENAI_API_BASE"), _OPENROUTER),
                AgentKey("GEMINI_API_KEY", ("generativelanguage.googleapis.com",), query="key", begin="AIza"),
                AgentKey("DEEPSEEK_API_KEY", ("api.deepseek.com",), begin="sk-"),
            ),
            # Its library has prices of models as well. The list on the web is refused, after the question.
            set=(
                *(("AIDER_CHECK_UPDATE", "false"), ("AIDER_ANALYTICS", "false")),
                ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
            ),
            free=((("--yes-always",), ("--yes-always", "--yes")),),
        ),
    )
}


def agent_named(name: str) -> Agent:
    """The row of that name, or PolicyError with the known names."""
    if name not in AGENTS:
        raise PolicyError(
            f"there is no agent {name!r}",
            why=f"staddle knows {', '.join(AGENTS)}",
            fix="choose one, or give the command yourself",
        )
    return AGENTS[name]


def _there(paths: tuple[str, ...]) -> list[str]:
    """The paths that exist: a policy cannot grant others."""
    return [path for path in paths if os.path.exists(os.path.expanduser(path))]


#: Larger files are compared by size, mtime and ctime; a program cannot set the ctime.
MOST_BYTES = 4 << 20
MOST_BYTES_IN_ALL = 64 << 20
#: Files beyond this number are not compared; a settings directory has fewer.
MOST_FILES = 100_000

Fingerprint = dict[str, tuple[object, ...]]


def fingerprint(paths: Iterable[str], mixed: Iterable[tuple[str, tuple[str, ...]]] = ()) -> Fingerprint:
    """A digest of every file at and below `paths`. Follows no link and never raises.

    `mixed` are (JSON file, keys): files with state and settings. Only the values of these keys, at any depth,
    are compared.
    """
    keys = {os.path.expanduser(path): names for path, names in mixed}
    seen: Fingerprint = {}
    pending = [*(os.path.expanduser(path) for path in paths), *keys]
    left = MOST_BYTES_IN_ALL
    while pending and len(seen) < MOST_FILES:
        path = pending.pop()
        try:
            info = os.lstat(path)
            if stat.S_ISDIR(info.st_mode):
                pending += sorted((f"{path}/{name}" for name in os.listdir(path)), reverse=True)
            elif stat.S_ISLNK(info.st_mode):
                seen[path] = ("link", os.readlink(path))
            elif not stat.S_ISREG(info.st_mode):
                seen[path] = (stat.S_IFMT(info.st_mode),)
            elif info.st_size > min(MOST_BYTES, left):
                seen[path] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
            else:
                left -= info.st_size
                seen[path] = (info.st_mode & 0o111, _digest(path, keys.get(path, ())))
        except OSError:
            continue
    return seen


def changed_settings(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """The added, removed and changed paths, sorted."""
    return tuple(sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p)))


def _digest(path: str, keys: tuple[str, ...]) -> bytes:
    import hashlib

    # The agent of another run may have replaced the file since the check.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    return hashlib.sha256(_only(content, keys) if keys else content).digest()


def _only(content: bytes, keys: tuple[str, ...]) -> bytes:
    """The values of these keys as canonical JSON; the whole content if it is not JSON."""
    try:
        found = list(_under(json.loads(content), keys, ()))
    except (ValueError, RecursionError):
        return content
    return json.dumps(found, sort_keys=True).encode()


def _under(
    data: object, keys: tuple[str, ...], way: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(data, dict):
        for name in sorted(data):
            if name in keys:
                if data[name]:  # an empty list of servers counts as none
                    yield (*way, name), data[name]
            else:
                yield from _under(data[name], keys, (*way, name))
    elif isinstance(data, list):
        for item in data:
            yield from _under(item, keys, way)
