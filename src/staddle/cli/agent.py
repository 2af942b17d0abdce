"""`staddle agent`: start a coding agent confined, or change its settings so that it always is."""

from __future__ import annotations

import os
import sys

from ..agents.table import CODING_AGENTS, INSIDE, MCP, SHELL
from ..display import counted
from ..errors import UsageError
from ..jail.agents import AGENTS
from .options import KEEP, RUNNING, Option, Parsed, asked_of, help_rows, parse, reworded, working_directory
from .report import say, say_gaps, say_violations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..agents.table import CodingAgent
    from ..policy import Policy
    from ..sandbox.sandbox import Sandbox

_LEFT_OUT = ("json", "output-cap", "timeout", "workdir")
_DOING = ("install", "remove", "print", "check")
_OPTIONS = (
    Option("way", "WAY", "what is confined: inside (all of it), shell (its commands) or mcp (its tools)"),
    Option("install", "", "change the agent's settings; the change is shown and confirmed first"),
    Option("remove", "", "undo --install, byte for byte"),
    Option("print", "", "print the settings that --install would write"),
    Option("check", "", "drive the agent with a scripted model, and prove that its shell is confined"),
    Option("yes", "", "with --install: do not ask"),
    Option("continue", "", "go on with the agent's last conversation in this project"),
    Option("ssh-agent", "", "let it use your ssh-agent, to push and to sign commits; each use is shown"),
    Option("key-inside", "", "let it have the key of its model itself, instead of a placeholder"),
    KEEP,
    Option("serve", "PID", "open the sandbox for the agent above this process", hidden=True),
    *reworded(
        tuple(option for option in RUNNING if option.name not in _LEFT_OUT),
        mode="the project: overlay (a copy; default), bind (written directly), readonly",
        disk="limit what the sandbox writes to its own layer, or none (--mode overlay)",
    ),
)
_HELP = """\
Let a coding agent work on a copy of this project, fully confined, and review what it did.

usage: staddle NAME [options] [ARGUMENTS OF THE AGENT]
       staddle NAME --continue
       staddle agent NAME --way shell|mcp [options] [-- ARGUMENTS OF THE AGENT]
       staddle agent NAME --install | --remove | --print | --check

{agents}

The project is the git repository around the current directory, or that directory. The agent works on a
copy, at the project's own path, without permission prompts. Its settings are yours, read-only; its login and
its conversations are shared with the one outside. It reaches its model, package indexes and the hosts of your
git remotes. When it ends, a review commits its work to your project, keeps it, or discards it. The next
`staddle NAME` goes on with what was kept.

Other ways, which confine less:
  shell     the agent runs outside; each of its shell commands runs in one sandbox, which writes the project
  mcp       the agent runs outside without its own tools, with those of `staddle mcp`

`staddle docs agent-settings` compares them. Options of the agent itself come after `--`.

{options}

  staddle claude
  staddle claude 'fix the failing test'
  staddle codex exec 'fix the failing test'
  staddle claude --allow api.example.com --ssh-agent -- --model opus
  staddle review                          what it did, also later
"""


def main(words: Sequence[str]) -> int:
    """Parse the arguments, then start the agent, change its settings or check it."""
    name, rest = (words[0], words[1:]) if words else ("--help", ())
    if name in ("--help", "-h"):
        rows = [
            f"  {agent.name:<9} {agent.title}: {', '.join(agent.ways)}" for agent in CODING_AGENTS.values()
        ]
        print(_HELP.format(agents="\n".join(rows), options=help_rows(_OPTIONS)), end="")
        return 0 if words else 125
    if name not in CODING_AGENTS:
        raise UsageError(f"staddle knows no agent {name!r}", fix=f"choose {', '.join(CODING_AGENTS)}")
    agent = CODING_AGENTS[name]
    try:
        parsed = parse(rest, _OPTIONS, f"agent {name}")
    except UsageError as error:
        if " has no option " in error.what:
            error.fix = f"an option of {agent.title} comes after `--`: staddle {name} -- {' '.join(rest)}"
        raise
    if parsed.on("help"):
        return main(["--help"])
    doing = [each for each in (*_DOING, "serve") if parsed.on(each)]
    way = parsed.one("way") or (agent.installed if doing else agent.default)
    if way not in agent.ways:
        raise UsageError(f"{agent.title} has no way {way!r}", fix=f"choose {', '.join(agent.ways)}")
    if way == MCP and parsed.on("audit"):
        raise UsageError(
            "--audit is not for --way mcp",
            why="the server opens several sandboxes, and a log is of one",
            fix="use --way shell or inside",
        )
    if len(doing) > 1 or (doing and parsed.words):
        raise UsageError(f"--{doing[0]} stands alone", fix=f"staddle agent {name} --{doing[0]}")
    if doing:
        return _settings(doing[0], agent, way, parsed)
    return _start(agent, way, parsed)


def _settings(doing: str, agent: CodingAgent, way: str, parsed: Parsed) -> int:
    if doing == "serve":
        from ..agents.serve import serve

        return serve(agent, int(parsed.one("serve") or "0"), lambda workspace: _sandbox(parsed, workspace))
    if doing == "check":
        from ..agents.check import check

        return check(agent, way, lambda workspace: _sandbox(parsed, workspace))
    from ..agents import install

    if doing == "remove":
        for line in install.remove(agent):
            print(line)
        return 0
    if parsed.on("workspace"):
        raise UsageError(
            "--workspace is not for settings",
            why="the sandbox is opened for the directory in which the agent is started",
            fix="leave it out",
        )
    plan = install.plan(agent, way, _option_words(parsed))
    if doing == "print":
        print(install.printed(plan), end="")
        return 0
    print(install.difference(plan), end="")
    say(f"warning: not confined: {agent.ways[way].outside}; they can reach your home, keys included")
    if not parsed.on("yes") and not _confirmed():
        say("nothing was changed")
        return 1
    install.install(plan)
    say(f"installed; `staddle agent {agent.name} --check` proves it, --remove undoes it")
    return 0


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on", fix="add --yes")
    print("Change these settings? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _start(agent: CodingAgent, way: str, parsed: Parsed) -> int:
    from ..agents import launch

    if way == INSIDE:
        from ..sandbox.open import ahead

        ahead.begin(parsed.one("backend") or "auto", only=True)
        from .agent_session import run

        return run(AGENTS[agent.name], parsed)
    for option in ("continue", "ssh-agent", "key-inside"):
        if parsed.on(option):
            raise UsageError(f"--{option} is for a whole agent", fix="leave it out, or use --way inside")
    workspace = _workspace(parsed)
    if agent.ways[way].untried or agent.name == "vscode":
        raise UsageError(
            f"{agent.title} is not started by staddle", fix=f"staddle agent {agent.name} --install"
        )
    if agent.name == "aider" and way == SHELL and not os.isatty(0):
        raise UsageError(
            "Aider uses its shell only on a terminal",
            why="without one it runs commands with /bin/sh, outside",
            fix="use --way inside",
        )
    if agent.ways[way].outside != "nothing":
        say(f"warning: not confined: {agent.ways[way].outside}; they can reach your home, keys included")
    if way == MCP:
        return _with_mcp(agent, workspace, parsed)
    sandbox = _sandbox(parsed, workspace)
    say_gaps(sandbox.enforced)
    return launch.run_with_shell(agent, sandbox, parsed.words, ended=lambda: _say_changes(parsed, sandbox))


def _with_mcp(agent: CodingAgent, workspace: str, parsed: Parsed) -> int:
    """Start it with the tools of `staddle mcp`, whose sandbox is kept: its work outlives the agent."""
    from ..agents import launch
    from ..sandbox.workspace.persistent import workspace_of
    from .agent_session import free_name
    from .review import at_the_end

    if parsed.on("mode"):
        server = launch.server_words(workspace, *_option_words(parsed))
        return launch.run_with_mcp(agent, server, parsed.words)
    name = parsed.one("keep") or free_name(agent.name, workspace)
    options = _option_words(parsed.replace(options={**parsed.options, "keep": [name]}))
    try:
        return launch.run_with_mcp(agent, launch.server_words(workspace, *options), parsed.words)
    finally:
        if workspace_of(name) is not None:
            at_the_end(name)


def _say_changes(parsed: Parsed, sandbox: Sandbox) -> None:
    """Report refusals of the agent's commands, and what becomes of their changes."""
    say_violations((*sandbox.violations(), *sandbox.refusals()))
    if parsed.one("mode") == "overlay" or parsed.on("keep"):
        count, name = len(sandbox.diff()), parsed.one("keep")
        if name:
            say(f"{counted(count, 'change')} kept: `staddle diff {name}`, then `staddle commit {name}`")
        elif count:
            say(f"{counted(count, 'change')} dropped; --keep NAME keeps them")


#: Options of the sandbox. `staddle mcp` also accepts them.
_PASSED = (
    KEEP,
    *(option for option in RUNNING if option.name not in (*_LEFT_OUT, "workspace", "help")),
)
#: Options whose values are paths, which must be valid from another directory.
_PATHS = ("policy", "read", "write", "deny", "socket", "audit")


def _option_words(parsed: Parsed) -> list[str]:
    """Return the options of the sandbox as words with absolute paths."""
    words: list[str] = []
    for option in _PASSED:
        for value in parsed.many(option.name):
            path = option.name in _PATHS or (option.name == "base" and "/" in value)
            words.append(f"--{option.name}")
            words += [os.path.abspath(value) if path else value] if option.value else ()
    return words


def _workspace(parsed: Parsed) -> str:
    workspace = os.path.realpath(parsed.one("workspace") or working_directory())
    if not os.path.isdir(workspace):
        raise UsageError(f"the workspace {workspace!r} is not a directory", fix="name one that exists")
    return workspace


def _policy(parsed: Parsed, workspace: str) -> Policy:
    from ..policy import Policy
    from ..policy.installation import default_policy

    file = parsed.one("policy")
    policy = Policy.from_file(file, workspace=workspace) if file else default_policy()
    return asked_of(policy, parsed).with_limits(timeout=None)


def _sandbox(parsed: Parsed, workspace: str | None = None) -> Sandbox:
    """Return the sandbox for an agent's shell, with the workspace at its own path."""
    from ..agents.table import codex_program
    from ..sandbox.sandbox import Sandbox

    place = workspace or _workspace(parsed)
    policy, mode = _policy(parsed, place), parsed.one("mode") or "bind"
    codex = codex_program()
    if codex is not None:
        policy = policy.with_read(codex)
    options: dict[str, Any] = {
        "best_effort": parsed.on("best-effort"),
        "backend": parsed.one("backend") or "auto",
        "audit": parsed.one("audit"),
    }
    if parsed.on("keep") and parsed.one("mode") not in (None, "overlay"):
        raise UsageError(
            "--keep needs --mode overlay", why="there is no layer to keep", fix="leave --mode out"
        )
    if mode == "overlay" or parsed.on("keep"):
        kept = parsed.one("keep")
        return Sandbox(place, policy, keep=kept, workspace_at=place, **options)
    if mode not in ("bind", "readonly"):
        raise UsageError(f"there is no mode {mode!r}", fix="choose bind, readonly or overlay")
    granted = policy.with_write(place) if mode == "bind" else policy.with_read(place)
    return Sandbox(None, granted, **options)
