"""`staddle jail run`, `shell` and `attach`: a command, an agent or a person in a workspace, confined."""

from __future__ import annotations

import os
import sys

from ..errors import CommandNotFound, StaddleError, UsageError
from ..jail.agents import AGENTS, LATEST, Agent, agent_named
from ..jail.jail import ConfinedJail, RunOpts, bootstrap, new_jail
from ..jail.record import OutputFile, remove_output
from ..policy import Network, Policy
from .jail_options import AUTHOR, PROMPT_FILE, prompt_of
from .options import HELP, RUNNING, Option, Parsed, asked_of, command_from, help_rows, reworded, with_requests
from .report import attended, captured, print_report, say_error, say_gaps, say_violations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..jail.workspace import Workspace
    from ..jail.workspace_run import Runner, WorkspaceRun
    from ..wrapping import WrappedCommand

#: Options that a jail sets itself.
_NOT_HERE = ("workspace", "workdir", "mode", "disk", "timeout", "help")
_SHARED = reworded(
    (option for option in RUNNING if option.name not in _NOT_HERE),
    network="deny (default), open, loopback[=PORT,...], packages, allow (and the agent's hosts)",
)
_PERSON = (AUTHOR, Option("verbose", "", "print what is run, where and how on standard error", short="v"))
_AGENT = (
    Option("agent", "NAME", "grant what this coding agent needs of your home (see `staddle jail agents`)"),
    Option("key-env", "NAME", "give the agent the API key from this environment variable"),
    Option("key-file", "FILE", "give the agent the API key from this file"),
)
_MODEL = Option("model", "NAME", "let the --agent use this model")
RUN_OPTIONS = (
    Option("command", "SCRIPT", "run this line of shell with bash", short="c"),
    Option("prompt", "TEXT", "run the --agent on this task (default: the one of `jail create`)"),
    PROMPT_FILE,
    *_AGENT,
    _MODEL,
    Option("resume", "SESSION", "let the --agent continue this conversation, or its `last` one"),
    Option("watch", "", "let `staddle jail watch WS` follow its output; it is no terminal then"),
    Option("commit", "TEXT", "commit what is left uncommitted, with this message"),
    *_PERSON,
    Option("timeout", "SECONDS", "kill it after this time: 90, 2m, 1h (default: none, or the policy file's)"),
    *_SHARED,
    HELP,
)
_AT_A_TERMINAL = tuple(item for item in _SHARED if item.name not in ("json", "output-cap"))
SHELL_OPTIONS = (*_AGENT, *_PERSON, *_AT_A_TERMINAL, HELP)
ATTACH_OPTIONS = (*_AGENT, _MODEL, *_PERSON, *_AT_A_TERMINAL, HELP)
#: Options with paths, relative to the user's current directory, not to the workspace.
_PATHS = ("read", "write", "deny", "socket")

_RUN_HELP = """\
Run a command, or a coding agent, in a workspace: it can write the tree, your home is hidden.

usage: staddle jail run WS [options] -- COMMAND [ARGUMENTS]
       staddle jail run WS [options] -c 'SCRIPT' [-- ARGUMENTS]
       staddle jail run WS --agent NAME [--prompt TEXT] [options]

Standard output and error are passed through, standard input is not connected. What is left
uncommitted is listed at the end. There is no timeout unless you set one. The exit status is the
command's; 124 is a timeout, 125 means that staddle could not run it (and prints the reason).

{options}
"""

_SHELL_HELP = """\
Work in a workspace yourself, in a shell that is confined as an agent would be.

usage: staddle jail shell WS [options] [-- COMMAND [ARGUMENTS]]

On a terminal it is bash with job control. When standard input is not a terminal, bash reads
its commands from there.

{options}
"""
_ATTACH_HELP = """\
Continue an agent's conversation in a workspace, on your terminal, confined as the agent was.

usage: staddle jail attach WS [options]

The agent is the one that ran in it last, or --agent.

{options}
"""
#: Exit statuses after a signal that requests an end: 128 + HUP, INT, QUIT, TERM.
_ASKED_TO_END = (129, 130, 131, 143)


def run(workspace: Workspace, parsed: Parsed) -> int:
    """Run the command, or the agent with its prompt."""
    agent = _agent(parsed)
    for name in ("prompt", "prompt-file", "model", "resume"):
        if parsed.on(name) and (agent is None or parsed.words or parsed.on("command")):
            raise UsageError(f"--{name} needs --agent, and no command", fix=f"choose {', '.join(AGENTS)}")
    given, session = prompt_of(parsed), None
    prompt = given if given is not None else workspace.task.prompt
    if parsed.on("command"):
        command = command_from(parsed, "jail run WS")[0]
    elif parsed.words and parsed.dashed:
        command = list(parsed.words)
    elif agent is not None and not parsed.words and prompt:
        session, resume = _conversation(workspace, agent, parsed.one("resume"))
        command = agent.asked(prompt, model=parsed.one("model"), session=session, resume=resume)
        session = session or (resume if resume != LATEST else None)
    else:
        raise UsageError(
            "there is nothing to run",
            fix="write staddle jail run WS -- COMMAND, -c 'SCRIPT', or --agent NAME --prompt TEXT",
        )
    opts, jail = _opts(workspace, command, parsed, command[0])
    opts = opts.replace(commit=parsed.one("commit"), session=session)
    try:
        with jail.prepare(opts) as running:
            _keep(workspace, given, session)
            _say_more(parsed, running, opts)
            status = _captured(running, opts) if parsed.on("json") else _attended(running, opts, parsed)
    except CommandNotFound as error:
        return _refuse(error)
    if not parsed.on("json"):
        say_violations(running.events)
        _say_uncommitted(workspace, running)
    return status


def attach(workspace: Workspace, parsed: Parsed) -> int:
    """Let a person continue the agent's conversation."""
    if parsed.words:
        raise UsageError(f"staddle jail attach takes no argument {parsed.words[0]!r}", fix="leave it out")
    asked = parsed.one("agent")
    last = workspace.last_session(asked)
    if last is None:
        raise UsageError(
            "there is no conversation to continue",
            why=f"{f'{asked} was not' if asked else 'no agent was'} run in {workspace.name}",
            fix="`staddle jail run` starts one, `staddle jail shell` needs none",
        )
    agent = agent_named(last[0])
    command = agent.attached(model=parsed.one("model"), resume=last[1] or LATEST)
    options = {**parsed.options, "agent": [agent.name]}
    return shell(workspace, parsed.replace(options=options, words=tuple(command)), session=last[1])


def _conversation(workspace: Workspace, agent: Agent, resume: str | None) -> tuple[str | None, str | None]:
    """Return (session of a new conversation, session to resume). The id is ours if the agent accepts one."""
    if resume is not None:
        last = workspace.last_session(agent.name)
        return None, (last[1] if resume == LATEST and last and last[1] and agent.resume else resume)
    if not agent.session:
        return None, None
    given = workspace.task.session
    if given and given not in {entry.facts.get("session") for entry in workspace.journal()}:
        return given, None
    import uuid

    return str(uuid.uuid4()), None


def _keep(workspace: Workspace, prompt: str | None, session: str | None) -> None:
    """Store the last prompt and its conversation in the task."""
    said = {name: value for name, value in (("prompt", prompt), ("session", session)) if value}
    if said:
        workspace.update_task(**said)


def _say_more(parsed: Parsed, running: WorkspaceRun, opts: RunOpts) -> None:
    """With --verbose, print facts about the run before it starts, without values of variables."""
    if not parsed.on("verbose"):
        return
    from ..display import shown

    facts = {
        "workspace": f"{opts.workspace.name} on {opts.workspace.branch}",
        "tree": opts.workspace.path,
        "command": repr(list(opts.command)),
        "agent": opts.agent.name if isinstance(opts.agent, Agent) else "none",
        "session": opts.session or "unknown",
        "backend": running.command.backend,
        "network": str(running.command.plan.network),
        "timeout": f"{opts.timeout:g} s" if opts.timeout else "none",
        "variables": ", ".join(sorted({*(opts.policy.env if opts.policy else ()), *bootstrap(opts)})),
    }
    secrets = opts.secrets()
    for name, value in facts.items():
        print(f"staddle: {name}: {shown(secrets.text(value))}", file=sys.stderr)


def _say_uncommitted(workspace: Workspace, running: WorkspaceRun) -> None:
    """Print the uncommitted files and how to commit them, or that they were committed."""
    from ..display import shown

    if running.committed:
        print(f"staddle: committed what was left, as {running.committed}", file=sys.stderr)
        return
    try:
        left = workspace.changed_paths()
    except StaddleError as error:  # does not change the command's status
        say_error(error)
        return
    if left:
        names = ", ".join(shown(path) for path in left[:5]) + (", …" if len(left) > 5 else "")
        many = "1 file is" if len(left) == 1 else f"{len(left)} files are"
        told = f"{many} not committed: {names} (`staddle jail commit {workspace.name} -m TEXT` does that)"
        print(f"staddle: {told}", file=sys.stderr)


def shell(workspace: Workspace, parsed: Parsed, *, session: str | None = None) -> int:
    """Run bash, or the given command, on the user's terminal."""
    from ..jail.pty_launch import PtyLaunch, on_its_own
    from ..observe.redaction import secrets_of

    command = list(parsed.words) or ["bash"]
    on_terminal = os.isatty(0) and os.isatty(1)
    opts, jail = _opts(workspace, on_its_own(command) if on_terminal else command, parsed, command[0])
    if on_terminal:
        opts = opts.replace(env=(f"TERM={os.environ.get('TERM', 'dumb')}", *opts.env))
    try:
        with jail.prepare(opts.replace(session=session)) as running:
            _say_more(parsed, running, opts)
            if not on_terminal:
                status = _attended(running, opts, parsed, stdin=True)
            else:
                from .terminal import on_this_terminal, size_of_this

                audited = running.command.begin_audit()
                secrets = secrets_of(running.command.plan)
                lent: Any = PtyLaunch(running.command.launch(), secrets, size_of_this())
                try:
                    status = on_this_terminal(lent, None)
                except BaseException as error:
                    running.command.end_audit(audited, error=error)
                    raise
                finally:
                    lent.close()
                running.command.end_audit(audited, status)
                running.ended(status)
    except CommandNotFound as error:
        return _refuse(error)
    say_violations(running.events)
    _say_uncommitted(workspace, running)
    return status


def _opts(
    workspace: Workspace, command: list[str], parsed: Parsed, program: str
) -> tuple[RunOpts, ConfinedJail]:
    """Return the run and its jail. `program` must exist; `command` may start with a wrapper."""
    agent = _agent(parsed)
    file = parsed.one("policy")
    home = os.path.expanduser("~")
    policy = Policy.from_file(file, workspace=workspace.path) if file else Policy.coding_agent(home)
    policy = asked_of(policy, _from_here(parsed))
    if agent is not None and (parsed.one("network") == "allow" or parsed.on("allow")):
        policy = policy.with_network(
            Network.allow(*parsed.many("allow"), *agent.hosts, dns=parsed.many("dns"))
        )
        policy = with_requests(policy, parsed)
    # A policy file sets the timeout; without one, an agent has none.
    timed = parsed.on("timeout") or file is not None
    opts = RunOpts(
        workspace,
        tuple(command),
        api_key=_key(parsed),
        timeout=policy.limits.timeout if timed else None,
        policy=policy,
        agent=agent,
        best_effort=parsed.on("best-effort"),
        author=parsed.one("author"),
        audit=parsed.one("audit"),
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
    """Return the API key. Never from the command line, which every user of the machine can read."""
    name, file = parsed.one("key-env"), parsed.one("key-file")
    if name is not None and file is not None:
        raise UsageError("--key-env and --key-file are both given", fix="leave one of them out")
    if name is not None:
        if not os.environ.get(name):
            raise UsageError(
                f"--key-env {name}: the variable is not set, or empty", fix="export it, or use --key-file"
            )
        return os.environ[name]
    if file is not None:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read(65536).strip()
    return None


def _runner(program: str) -> Runner:
    """Return a `wrap` that raises CommandNotFound without `program`, before the workspace is `running`."""

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
    """Run the command on our own output, and record in the workspace whether it ended by itself."""
    if not stdin:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    cap = running.command.plan.limits.output if parsed.on("output-cap") else None
    remove_output(opts.workspace.directory)
    copy = OutputFile(opts.workspace.directory) if parsed.on("watch") else None
    try:
        write = None if copy is None else copy.write
        outcome = attended(running.command, seconds=opts.timeout, cap=cap, copy=write)
    finally:
        if copy is not None:
            copy.close()
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
    say_error(error)
    return error.status


def print_help(name: str) -> int:
    """Print the help of run, shell or attach."""
    text, options = {
        "run": (_RUN_HELP, RUN_OPTIONS),
        "shell": (_SHELL_HELP, SHELL_OPTIONS),
        "attach": (_ATTACH_HELP, ATTACH_OPTIONS),
    }[name]
    print(text.format(options=help_rows(options)), end="")
    return 0
