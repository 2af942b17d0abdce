"""`staddle jail run` and `jail shell`: a command, an agent or a person in a workspace, confined."""

from __future__ import annotations

import os
import sys

from ..errors import CommandNotFound, UsageError
from ..jail.agents import AGENTS, agent_named
from ..jail.jail import ConfinedJail, RunOpts, new_jail
from ..policy import Network, Policy
from .options import HELP, RUNNING, Option, Parsed, asked_of, help_rows, reworded
from .report import attended, captured, print_report, say_gaps, say_violations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..jail.agents import Agent
    from ..jail.workspace import Workspace
    from ..jail.workspace_run import Runner, WorkspaceRun
    from ..wrapping import WrappedCommand

#: What a jail says itself.
_NOT_HERE = ("workspace", "mode", "timeout", "help")
_SHARED = reworded(
    (option for option in RUNNING if option.name not in _NOT_HERE),
    disk="refused: a jail writes to its tree directly",
    network="deny (default), open, loopback[=PORT,...], packages, allow (and the agent's hosts)",
)
_AGENT = (
    Option("agent", "NAME", "grant what this coding agent needs of your home (see `staddle jail agents`)"),
    Option("key-env", "NAME", "give the agent the API key from this environment variable"),
    Option("key-file", "FILE", "give the agent the API key from this file"),
)
RUN_OPTIONS = (
    Option("prompt", "TEXT", "run the --agent on this task"),
    *_AGENT,
    Option("timeout", "SECONDS", "kill it after this time: 90, 2m, 1h (default: none, or the policy file's)"),
    *_SHARED,
    HELP,
)
SHELL_OPTIONS = (*_AGENT, *(item for item in _SHARED if item.name not in ("json", "output-cap")), HELP)
#: Options that name paths. Relative ones are relative to where the user stands, not to the workspace.
_PATHS = ("read", "write", "deny", "socket")

_RUN_HELP = """\
Run a command, or a coding agent, in a workspace: it can write the tree, your home is hidden.

usage: staddle jail run WS [options] -- COMMAND [ARGUMENTS]
       staddle jail run WS --agent NAME --prompt TEXT [options]

Standard output and error are passed through, standard input is not connected. There is no
timeout unless you set one. The exit status is the command's; 124 is a timeout, 125 means that
staddle could not run it (and prints the reason).

{options}
"""

_SHELL_HELP = """\
Work in a workspace yourself, in a shell that is confined as an agent would be.

usage: staddle jail shell WS [options] [-- COMMAND [ARGUMENTS]]

On a terminal it is bash with job control. When standard input is not a terminal, bash reads
its commands from there.

{options}
"""
#: Statuses of what was ended by a signal that asks for an end: 128 + HUP, INT, QUIT, TERM.
_ASKED_TO_END = (129, 130, 131, 143)


def run(workspace: Workspace, parsed: Parsed) -> int:
    """The command, or the agent with its prompt."""
    agent = _agent(parsed)
    prompt = parsed.one("prompt")
    if prompt is not None:
        if agent is None or parsed.words:
            raise UsageError("--prompt needs --agent, and no command", fix=f"choose {', '.join(AGENTS)}")
        command = agent.asked(prompt)
    elif parsed.words and parsed.dashed:
        command = list(parsed.words)
    else:
        raise UsageError(
            "there is nothing to run",
            fix="write staddle jail run WS -- COMMAND, or --agent NAME --prompt TEXT",
        )
    opts, jail = _opts(workspace, command, parsed, command[0])
    try:
        with jail.prepare(opts) as running:
            status = _captured(running, opts) if parsed.on("json") else _attended(running, opts, parsed)
    except CommandNotFound as error:
        return _refuse(error)
    if not parsed.on("json"):
        say_violations(running.events)
    return status


def shell(workspace: Workspace, parsed: Parsed) -> int:
    """bash, or the given command, on the user's terminal."""
    from ..jail.pty_launch import PtyLaunch, on_its_own

    command = list(parsed.words) or ["bash"]
    on_terminal = os.isatty(0) and os.isatty(1)
    opts, jail = _opts(workspace, on_its_own(command) if on_terminal else command, parsed, command[0])
    if on_terminal:
        opts = opts.replace(env=(f"TERM={os.environ.get('TERM', 'dumb')}", *opts.env))
    try:
        with jail.prepare(opts) as running:
            if not on_terminal:
                status = _attended(running, opts, parsed, stdin=True)
            else:
                from .terminal import on_this_terminal

                lent: Any = PtyLaunch(running.command.launch())
                try:
                    status = on_this_terminal(lent, None)
                finally:
                    lent.close()
                running.ended(status)
    except CommandNotFound as error:
        return _refuse(error)
    say_violations(running.events)
    return status


def _opts(
    workspace: Workspace, command: list[str], parsed: Parsed, program: str
) -> tuple[RunOpts, ConfinedJail]:
    """The run and its jail. `program` is what must be there: what starts it may be in front of it."""
    agent = _agent(parsed)
    file = parsed.one("policy")
    home = os.path.expanduser("~")
    policy = Policy.from_file(file, workspace=workspace.path) if file else Policy.coding_agent(home)
    policy = asked_of(policy, _from_here(parsed))
    if agent is not None and (parsed.one("network") == "allow" or parsed.on("allow")):
        policy = policy.with_network(Network.allow(*parsed.many("allow"), *agent.hosts))
    # A policy file says how long; without one an agent has all the time it needs.
    timed = parsed.on("timeout") or file is not None
    opts = RunOpts(
        workspace,
        tuple(command),
        api_key=_key(parsed),
        timeout=policy.limits.timeout if timed else None,
        policy=policy,
        agent=agent,
        best_effort=parsed.on("best-effort"),
    )
    return opts, new_jail(parsed.one("backend") or "auto", _runner(program))


def _from_here(parsed: Parsed) -> Parsed:
    options = dict(parsed.options)
    for name in _PATHS:
        options[name] = [path if path[:1] == "~" else os.path.abspath(path) for path in parsed.many(name)]
    return parsed.replace(options=options)


def _agent(parsed: Parsed) -> Agent | None:
    name = parsed.one("agent")
    return None if name is None else agent_named(name)


def _key(parsed: Parsed) -> str | None:
    """The API key. Never from a command line, where every user of the machine could read it."""
    name, file = parsed.one("key-env"), parsed.one("key-file")
    if name is not None and file is not None:
        raise UsageError("--key-env and --key-file are both given", fix="leave one of them out")
    if name is not None:
        if not os.environ.get(name):
            raise UsageError(f"--key-env {name}: the variable is not set, or empty")
        return os.environ[name]
    if file is not None:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read(65536).strip()
    return None


def _runner(program: str) -> Runner:
    """`wrap`, and CommandNotFound if there is no `program`, before the workspace is `running`."""

    def prepared(argv: list[str], policy: Policy, **how: Any) -> WrappedCommand:
        from ..launch.view import find_program
        from ..wrapping import wrap

        wrapped = wrap(argv, policy, **how)
        try:
            find_program(wrapped.plan, program)
        except BaseException:
            wrapped.close()
            raise
        say_gaps(wrapped.enforced)
        return wrapped

    return prepared


def _attended(running: WorkspaceRun, opts: RunOpts, parsed: Parsed, *, stdin: bool = False) -> int:
    """Run it on our own output, and record in the workspace whether it ended by itself."""
    if not stdin:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    cap = running.command.plan.limits.output if parsed.on("output-cap") else None
    outcome = attended(running.command, seconds=opts.timeout, cap=cap)
    reason = "timeout" if outcome.reason == "timeout" else "exited"
    running.ended(outcome.status, "cancelled" if outcome.status in _ASKED_TO_END else reason)
    return outcome.status


def _captured(running: WorkspaceRun, opts: RunOpts) -> int:
    import subprocess

    report = captured(running.command, stdin=subprocess.DEVNULL, timeout=opts.timeout)
    running.ended(report["exit_code"], "timeout" if report["reason"] == "timeout" else "exited")
    return print_report(
        {"workspace": opts.workspace.name, **report}, running.command.enforced, running.violations()
    )


def _refuse(error: CommandNotFound) -> int:
    from ..display import shown

    print(f"staddle: {shown(str(error))}", file=sys.stderr)
    return error.status


def print_help(name: str) -> int:
    """Print the help of run or shell."""
    text, options = (_RUN_HELP, RUN_OPTIONS) if name == "run" else (_SHELL_HELP, SHELL_OPTIONS)
    print(text.format(options=help_rows(options)), end="")
    return 0
