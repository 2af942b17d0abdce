"""`staddle shell`: a confined shell on the user's terminal, or one that reads its commands from a pipe."""

from __future__ import annotations

import os
import select
import sys
import time

from ..errors import CommandNotUnderstood, CommandRefused, InvalidCall, UsageError
from ..launch.contract import give_pipes
from ..launch.running import GRACE
from ..launch.signals import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, waiting_among_threads
from ..observe.redaction import RedactedStreams
from ..sandbox.sandbox import Sandbox
from ..sandbox.spawn import spawn
from .options import KEEP, RUNNING, Option, help_rows, parse, reworded, sandbox_from
from .report import say, say_gaps, say_violations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .options import Parsed

_OPTIONS = (
    KEEP,
    Option("load", "FILE", "begin as at a snapshot that `staddle snapshot --save` wrote (--mode overlay)"),
    Option("freeze", "", "later edits on the host do not show inside: works on a copy (--mode overlay)"),
    Option("no-commands", "", "leave lines such as %snapshot to bash"),
    *reworded(
        RUNNING,
        timeout="kill the shell, with --json each command, after this time: 90, 2m, none",
        mode="the workspace: readonly (default), bind (written directly), overlay (in a layer)",
        disk="limit what the sandbox writes to its own layer, or none (--keep, --mode overlay)",
        output_cap="with --json: keep at most SIZE of each output stream",
        json="each line of standard input is one command, each result one line of JSON",
    ),
)
_COMMANDS_HELP = """\
  %snapshot [LABEL], %restore [LABEL], %reset, %diff [PATH...], %commit [PATH...], %help"""
_HELP = """\
Work in a shell that can touch only what you allow.

usage: staddle shell [options]

On a terminal it is bash with job control: Ctrl-C and Ctrl-Z go inside, the window's size too.
When standard input is not a terminal, bash reads its commands from there. With --json each
line of standard input is one command of one shell, and each result one line of JSON.

These lines are commands for staddle itself, at the prompt, among the lines of standard
input, and with --json. They need --mode overlay or --keep:
{commands}

The workspace is at /workspace where the backend can show it there. The exit status is the
shell's; 124 is a timeout, 125 means that staddle could not start it. There is no timeout
unless --timeout sets one; with --json each command has the policy's, 120 seconds.

{options}

  staddle shell --mode bind                      the current directory may be written
  staddle shell --keep fix                       your changes are kept in a layer: staddle diff fix
  echo 'cd /tmp; pwd' | staddle shell            a script on standard input
"""


def main(words: Sequence[str]) -> int:
    """Parse the options, open the sandbox, and run a shell on the terminal, which is restored afterwards."""
    parsed = parse(words, _OPTIONS, "shell")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS), commands=_COMMANDS_HELP), end="")
        return 0
    if parsed.words:
        raise UsageError(
            f"staddle shell takes no argument {parsed.words[0]!r}", fix="to run a command: staddle run --"
        )
    if parsed.on("output-cap") and not parsed.on("json"):
        raise UsageError(
            "--output-cap needs --json",
            why="a shell's output is passed through as it comes",
            fix="add --json, or leave --output-cap out",
        )
    with _opened(parsed) as sandbox:
        say_gaps(sandbox.enforced)
        seconds = sandbox.policy.limits.timeout if parsed.on("timeout") else None
        # Rules check a script as a whole, before any of it runs.
        ruled, commands = sandbox.policy.rules is not None, not parsed.on("no-commands")
        stateful = not ruled and (parsed.on("keep") or parsed.on("load"))
        if parsed.on("json"):
            status = _lines(sandbox, commands=commands)
        elif os.isatty(0) and os.isatty(1):
            if ruled:
                say("the command rules of the policy are not applied to what is typed here")
            say(_beginning(sandbox, parsed, commands=commands))
            status = _at_terminal(sandbox, seconds, stateful=stateful, commands=commands)
        elif not ruled and (stateful or (commands and not os.isatty(0))):
            from .shell_input import FromInput

            status = FromInput(sandbox, seconds, stateful=stateful, commands=commands).run()
        else:
            status = _piped(sandbox, seconds)
        if status == 124 and seconds is not None:
            say(f"ended after {seconds:g} s; --timeout gives it more")
        say_violations((*sandbox.violations(), *sandbox.refusals()))
    return status


#: A sentence about changes to the workspace, by mode.
_CHANGES = {
    "readonly": "is read-only (--mode overlay or --keep NAME lets you change a copy)",
    "bind": "is written directly",
    "overlay": "is a copy: changes end with the shell unless you %commit them",
}


def _beginning(sandbox: Sandbox, parsed: Parsed, *, commands: bool) -> str:
    """Return a line for a person: writable files, the network, and how to get help."""
    from ..display import shown

    mode, workspace, network = (
        sandbox._settings.mode,
        sandbox._settings.workspace,
        sandbox.policy.network.mode,
    )
    changes = _CHANGES.get(mode, _CHANGES["overlay"])
    if parsed.on("keep"):
        changes = (
            f"is a copy: changes are kept as {shown(parsed.one('keep') or '')} (%commit, staddle commit)"
        )
    place = "the workspace (empty)" if workspace is None else shown(workspace)
    reached = {"deny": "denied", "allow": "limited to allowed hosts"}.get(network, network)
    more = "; %help lists commands" if commands and mode in ("overlay", "copy") else ""
    return f"{place} {changes}; network: {reached}{more}"


def _opened(parsed: Parsed) -> Sandbox:
    if parsed.on("keep"):
        if parsed.on("load"):
            raise UsageError(
                "--keep and --load are both given", fix="`staddle restore NAME --load FILE` first"
            )
        if parsed.on("freeze"):
            raise UsageError(
                "--keep and --freeze are both given",
                why="a kept sandbox has no copy: `staddle diff` reports edits on the host",
                fix="leave one of them out",
            )
        from .kept import open_kept

        return open_kept(parsed)[0]
    if (parsed.on("load") or parsed.on("freeze")) and not parsed.on("mode"):
        parsed = parsed.replace(options={**parsed.options, "mode": ["overlay"]})
    policy, workspace, mode = sandbox_from(parsed)
    options: dict[str, Any] = {
        "policy": policy,
        "backend": parsed.one("backend") or "auto",
        "mode": mode,
        "best_effort": parsed.on("best-effort"),
        "audit": parsed.one("audit"),
        "workdir": parsed.one("workdir"),
    }
    if parsed.on("freeze"):
        if mode != "overlay":
            raise UsageError(f"--freeze and --mode {mode} contradict each other", fix="leave one of them out")
        options["freeze"] = True
    if not parsed.on("load"):
        return Sandbox(workspace, **options)
    if mode != "overlay":
        raise UsageError(f"--load and --mode {mode} contradict each other", fix="leave one of them out")
    return Sandbox.from_snapshot(parsed.one("load") or "", workspace, **options)


def _at_terminal(sandbox: Sandbox, seconds: float | None, *, stateful: bool, commands: bool) -> int:
    from .shell_input import AtTerminal
    from .terminal import on_this_terminal

    person: Any = AtTerminal(sandbox, stateful=stateful)
    try:
        return on_this_terminal(person, seconds, person if commands else None)
    finally:
        person.end()


def _piped(sandbox: Sandbox, seconds: float | None) -> int:
    """Run a shell on our own standard streams, like any command of `staddle run`.

    With command rules, the script is first read to its end.
    """
    bash, rules = sandbox._now().bash, sandbox.policy.rules
    if rules is None:
        return passed_through(sandbox, [bash], seconds)
    from ..command_rules.shell_parser import LONGEST

    script = os.fsdecode(sys.stdin.buffer.read(LONGEST + 1))
    rules.check_script(script)
    return passed_through(sandbox, [bash, "-c", script], seconds)


def passed_through(sandbox: Sandbox, argv: Sequence[str], seconds: float | None) -> int:
    """Run a program on our own standard streams. Returns its exit status, or 124 after a timeout."""
    inside = sandbox._now()
    deadline = None if seconds is None else time.monotonic() + seconds
    with (
        waiting_among_threads((SIGHUP, SIGINT, SIGQUIT, SIGTERM)) as signals,
        RedactedStreams(inside.secrets) as ours,
    ):
        give_pipes(inside.uid, (0, ours.stdout, ours.stderr))
        number = None if inside.hooks is None else inside.hooks.background(tuple(argv), None).number
        shell = spawn(inside, argv, (0, ours.stdout, ours.stderr))
        poll = select.poll()
        poll.register(signals.descriptor, select.POLLIN)
        poll.register(shell.fileno(), select.POLLIN)
        ending = timed_out = False
        while (status := shell.poll()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            poll.poll(None if left is None else left * 1000 + 1)
            for number in signals.read():
                # A second signal kills. A command may take its time after Ctrl-C, but not after the others.
                shell.signal(SIGKILL if ending else number, everything=True)
                ending = True
                if number != SIGINT:
                    deadline = time.monotonic() + GRACE
            if deadline is not None and time.monotonic() >= deadline:
                timed_out = timed_out or not ending
                shell.signal(SIGKILL if ending else SIGTERM, everything=True)
                ending, deadline = True, time.monotonic() + GRACE
    if shell.failure:
        from ..display import shown

        say(shown(shell.failure))
    inside.record("result", id=number, exit_code=124 if timed_out else status)
    return 124 if timed_out else status


def _lines(sandbox: Sandbox, *, commands: bool) -> int:
    """Run each line as a command, and print each result as a line."""
    import json

    from .shell_commands import ShellCommands, is_command

    status, ours = 0, ShellCommands(sandbox)
    for line in sys.stdin.buffer:
        text = line.rstrip(b"\n").decode("utf-8", "surrogateescape")
        if commands and is_command(text):
            said = ours.do(text)
            status = 125 if ours.failed else 0
            print(json.dumps({"command": text, "exit_code": status, "stdout": said}), flush=True)
            continue
        try:
            result = sandbox.run(text)
        except (InvalidCall, CommandRefused, CommandNotUnderstood) as error:
            print(json.dumps({"error": {"what": error.what, "why": error.why, "fix": error.fix}}), flush=True)
            status = 125
            continue
        print(json.dumps(result.as_dict()), flush=True)
        status = result.exit_code
    return status
