"""Start a program in an open sandbox: in the foreground, in the background, or on a PTY.

Sandbox and AsyncSandbox share this. `context` is the state of the session beside which the program starts.
"""

from __future__ import annotations

import os
from functools import partial

from ..linux.file_room import FILE_ROOM
from ..shell.idle import TO_START
from . import arguments, network_access
from .capture import command_bytes
from .execution import Execution, Streams
from .open import as_root
from .processes import Process
from .session import names_sudo
from .terminal import Terminal, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from ..ipc.agent_client import SpawnedProcess
    from ..ipc.agent_messages import Who
    from ..observe.redaction import Secrets
    from .arguments import StartOptions, User
    from .capture import CapturedCommand
    from .open.as_root import Account
    from .open.settings import CommandStart
    from .open_sandbox import OpenSandbox
    from .session import SessionState

#: Prompt for a person: user, host, directory. Bash's own would be `bash-5.2$`.
_PROMPT = r"\u@\h:\w\$ "
#: Further options of `start`.
START_OPTIONS = frozenset({"merge", "timeout", "on_stdout", "on_stderr"})


def account(inside: OpenSandbox, user: object) -> Account | None:
    """Find the account of `user` inside; None for the session's own. Prepares the system for root."""
    if user is None:
        return None
    found = as_root.find(user, inside.decided.plan.identity, inside.ids, inside.read_file)
    if found is not None and found.uid == 0:
        as_root.prepare_system(inside.decided, inside.workspace)
    return found


def check_rules(inside: OpenSandbox, argv: Sequence[str]) -> None:
    """Raise CommandRefused if the policy's rules forbid a caller's command. Enables sudo if it is used."""
    if inside.rules is not None:
        inside.rules.check(argv)
    allow = inside.main._allow_sudo
    if allow is not None and any(word == "su" or names_sudo(word) for word in argv):
        allow()


def execution(
    inside: OpenSandbox, spec: CapturedCommand, argv: Sequence[str], context: SessionState
) -> Execution:
    """Start a program in the foreground."""
    spec.side_effects, spec.explain = inside.side_effects, inside.main._explain
    variables = _exported(context, spec.account)
    with FILE_ROOM.reserve(TO_START):
        return Execution(
            inside.agent,
            spec,
            argv,
            arguments.with_variables(variables, spec.env or {}),
            _directory(context, spec.cwd),
            uid=inside.host_uid(spec.account),
            known=inside.executions,
            who=_who(spec.account),
            meter=inside.meter(),
        )


def background(
    inside: OpenSandbox,
    command: str | Sequence[str],
    cwd: object,
    env: object,
    context: SessionState,
    *,
    user: User = None,
    start: CommandStart | None = None,
    **following: Unpack[StartOptions],
) -> Process:
    """Start a program, or text in a new shell, in the background. `start` is what hooks received."""
    if not following.keys() <= START_OPTIONS:
        arguments.refuse_unknown(following.keys() - START_OPTIONS)
    timeout, merge = arguments.seconds(following.get("timeout")), bool(following.get("merge"))
    other = account(inside, user)
    if isinstance(command, str):
        command_bytes(command)
        argv: tuple[str, ...] = (inside.bash, "-c", command)
        shown: str | tuple[str, ...] = command
    else:
        argv = shown = arguments.arguments(command)
    check_rules(inside, argv)
    program = not isinstance(command, str)
    added = {} if env is None else arguments.command_variables(env, program=program)
    variables = arguments.with_variables(_exported(context, other), added)
    directory = _directory(context, None if cwd is None else arguments.directory(cwd))
    with FILE_ROOM.reserve(TO_START):
        streams = Streams(inside.host_uid(other), with_stdin=True, merge=merge)
        try:
            spawned = inside.agent.spawn(argv, variables, directory, stdio=streams.theirs, who=_who(other))
        except BaseException:
            streams.close()
            raise
        streams.started()
    _audited(inside, start, spawned)
    process = Process(
        shown,
        spawned,
        streams,
        inside.limits.output,
        timeout=timeout,
        has_port=partial(network_access.has_port, inside),
        secrets=_secrets(inside, added),
    )
    inside.processes.add(process)
    process.follow(following.get("on_stdout"), following.get("on_stderr"))
    return process


def open_terminal(
    inside: OpenSandbox,
    argv: Sequence[str] | None,
    high: int,
    wide: int,
    *,
    term: object,
    cwd: object,
    env: object,
    context: SessionState,
    user: User = None,
    start: CommandStart | None = None,
) -> Terminal:
    """Start a program, or an interactive shell, on a new PTY."""
    other = account(inside, user)
    size(high, wide)
    words = (inside.bash, "-i") if argv is None else arguments.arguments(argv)
    if argv is not None:  # input typed into a shell is not checked
        check_rules(inside, words)
    variables = arguments.variables({"TERM": term, **({} if env is None else dict(env))})  # type: ignore[call-overload]
    prompt = {"PS1": _PROMPT} if argv is None else {}
    with FILE_ROOM.reserve(TO_START):
        spawned = inside.agent.spawn(
            words,
            {**prompt, **_exported(context, other), **variables},
            _directory(context, None if cwd is None else arguments.directory(cwd)),
            terminal=(high, wide),
            who=_who(other),
        )
    _audited(inside, start, spawned)
    made = Terminal(spawned, high, wide, _secrets(inside, variables))
    inside.terminals = [*(known for known in inside.terminals if not known.closed), made]
    return made


def spawn(
    inside: OpenSandbox,
    argv: Sequence[str],
    stdio: tuple[int, int, int],
    env: Mapping[str, str] | None = None,
) -> SpawnedProcess:
    """Start a program on these descriptors of ours, in the main session's directory, adding `env`."""
    check_rules(inside, argv)
    context = inside.main._exec_context
    variables = {**context.env, **(env or {})}
    return inside.agent.spawn(arguments.arguments(argv), variables, context.cwd, stdio=stdio)


def interpreter(
    inside: OpenSandbox, argv: Sequence[str], stdio: int, cwd: str | None, env: Mapping[str, str]
) -> SpawnedProcess:
    """Start an interpreter with all three standard streams on one descriptor of ours."""
    check_rules(inside, argv)
    words = arguments.arguments(argv)
    start = None if inside.hooks is None else inside.hooks.background(words[:1], None)
    context = inside.main._exec_context
    with FILE_ROOM.reserve(TO_START):
        spawned = inside.agent.spawn(
            words, {**context.env, **env}, _directory(context, cwd), stdio=(stdio, stdio, stdio)
        )
    _audited(inside, start, spawned)
    return spawned


def _audited(inside: OpenSandbox, start: CommandStart | None, spawned: SpawnedProcess) -> None:
    if start is not None and inside.hooks is not None:
        inside.hooks.follow(start, spawned)


def _exported(context: SessionState, other: Account | None) -> Mapping[str, str]:
    """Return the variables for a program: the session's exports, changed for another user."""
    return context.env if other is None else other.variables(context.env)


def _who(other: Account | None) -> Who | None:
    return None if other is None else other.who


def _secrets(inside: OpenSandbox, env: Mapping[str, str | None]) -> Secrets | None:
    """Return the values to redact in a program's output, including those in `env`."""
    return inside.secrets.with_variables(env) if inside.secrets is not None and env else inside.secrets


def _directory(context: SessionState, cwd: str | None) -> str:
    """Return the program's start directory; a relative path is relative to the session's directory."""
    return context.cwd if cwd is None else os.path.join(context.cwd, cwd)
