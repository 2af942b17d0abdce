"""`staddle run`: a command, a line of shell or a script, confined, with its own exit status."""

from __future__ import annotations

import os
import sys

from ..errors import CommandNotFound, LaunchFailed, StaddleError, UsageError
from .options import Option, Parsed, help_rows, parse
from .settings import KEEP, RUNNING, policy_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..enforcement import Enforcement
    from ..events import Event
    from ..policy.plan import Plan
    from ..wrapping import WrappedCommand

_OPTIONS = (Option("command", "SCRIPT", "run this line of shell with bash", short="c"), KEEP, *RUNNING)

_HELP = """\
Run a command that can touch only what you allow.

usage: staddle run [options] -- COMMAND [ARGUMENTS]
       staddle run [options] -c 'SCRIPT' [ARGUMENTS]
       staddle run [options] FILE [ARGUMENTS]

Without options: the system and the current directory can be read, nothing of yours can be
written, the network and your home are not there, /tmp is private. Standard input, output
and error are passed through. The exit status is the command's; 124 is a timeout, 125 means
that staddle could not run it (and says why), 126 and 127 that the program is not
executable or not there.

With --keep NAME the workspace is at /workspace and everything in it may be changed: in a layer
of its own, which stays for the next run of that NAME. `staddle diff`, `commit`, `discard`,
`snapshot` and `restore` work on it.

{options}

  staddle run --write . -- make test             the current directory may be written
  staddle run --read ~/data --network open -- python fetch.py
  staddle run --keep fix -c 'sed -i s/teh/the/ README'; staddle diff fix; staddle commit fix
  staddle run --timeout 5m --output-cap 1M -- ./train.sh
"""


def main(words: Sequence[str]) -> int:
    """Parse, plan, check, run."""
    parsed = parse(words, _OPTIONS, "run")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if parsed.on("keep"):
        from .run_kept import run

        return run(parsed)
    from ..backends import begin_probe, doubt

    try:
        begin_probe(parsed.one("backend") or "auto")
        wrapped, plan = confined(parsed)
    except CommandNotFound as error:
        return refuse(parsed, error, error.status)
    except StaddleError as error:
        return refuse(parsed, error, 125)
    say_gaps(wrapped.enforced)
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        return _as_json(wrapped, plan) if parsed.on("json") else _attended(parsed, wrapped, plan)
    except LaunchFailed:
        if not doubt(wrapped.backend):
            raise
    # Nothing was started, and the backend is known now not to work here: choose again.
    os.fchdir(here)
    return main(words)


def _attended(parsed: Parsed, wrapped: WrappedCommand, plan: Plan) -> int:
    from ..launch.foreground import attend
    from ..launch.running import within_lifetime

    outcome = attend(
        wrapped.launch(),
        seconds=within_lifetime(plan.limits.timeout, plan.limits),
        cap=plan.limits.output if parsed.on("output-cap") else None,
    )
    if outcome.reason == "timeout":
        say(f"ended after {plan.limits.timeout:g} s; --timeout gives it more")
    if outcome.why:
        say(outcome.why)
    for name, count in zip(("output", "error"), outcome.dropped, strict=True):
        if count:
            say(f"{count} bytes of standard {name} were dropped; --output-cap lets more through")
    say_violations(wrapped.violations())
    return outcome.status


def confined(parsed: Parsed) -> tuple[WrappedCommand, Plan]:
    """The wrapped command and its plan, from the options. Nothing has run yet."""
    from ..launch.view import find_program
    from ..policy.compiler import compile
    from ..wrapping import prepare

    policy, workspace = policy_from(parsed)
    command, script = command_from(parsed)
    if script is not None:
        policy = policy.with_read(script)
    plan = compile(policy, cwd=workspace, base=os.getcwd())
    find_program(plan, command[0])
    wrapped = prepare(
        command, plan, backend=parsed.one("backend") or "auto", best_effort=parsed.on("best-effort")
    )
    return wrapped, plan


def command_from(parsed: Parsed) -> tuple[list[str], str | None]:
    """The command to run, and the script file that must be readable for it."""
    line, words = parsed.one("command"), list(parsed.words)
    if line is not None:
        if "\0" in line:
            raise UsageError("the script has a NUL in it", why="no argument can hold one")
        return ["bash", "-c", line, "bash", *words], None
    if not words:
        raise UsageError(
            "there is nothing to run", fix="write staddle run -- COMMAND, or -c 'SCRIPT', or a FILE"
        )
    if parsed.dashed:
        return words, None
    file = os.path.abspath(words[0])
    if not os.path.isfile(file):
        raise UsageError(
            f"{words[0]!r} is not a file", fix=f"to run a program write: staddle run -- {' '.join(words)}"
        )
    with open(file, "rb") as start:
        has_interpreter = start.read(2) == b"#!"
    if has_interpreter and os.access(file, os.X_OK):
        return [file, *words[1:]], file
    return ["bash", file, *words[1:]], file


def _as_json(wrapped: WrappedCommand, plan: Plan) -> int:
    import json
    import subprocess
    import time

    from ..launch.running import complete

    began = time.monotonic()
    try:
        done = complete(wrapped.launch(), plan.limits, capture_output=True)
        status, reason, out, err = done.returncode, done.reason, done.stdout, done.stderr
        why, used = done.why, done.usage
        if status < 0:
            status = 128 - status
    except subprocess.TimeoutExpired as late:
        status, reason, out, err = 124, "timeout", late.output, late.stderr
        why, used = f"it was ended after {late.timeout:g} s (limits.timeout)", None
    report = {
        "exit_code": status,
        "reason": reason,
        "why": why,
        "stdout": (out or b"").decode("utf-8", "replace"),
        "stderr": (err or b"").decode("utf-8", "replace"),
        "duration": time.monotonic() - began,
        "usage": None if used is None else used.as_dict(),
        "backend": wrapped.backend,
        "enforced": wrapped.enforced.as_dict(),
        "violations": [event.as_dict() for event in wrapped.violations()],
    }
    print(json.dumps(report))
    return status


def refuse(parsed: Parsed, error: StaddleError, status: int) -> int:
    """Why nothing ran, as a sentence or as JSON."""
    if not parsed.on("json"):
        from ..display import shown

        say(shown(str(error)))
        return status
    import json

    print(
        json.dumps({"error": {"what": error.what, "why": error.why, "fix": error.fix}, "exit_code": status})
    )
    return status


def say_gaps(enforced: Enforcement) -> None:
    """What will not hold, where that is not what the backend is known for."""
    for gap in enforced.gaps:
        if not gap.documented or enforced.backend == "native":
            say(f"not enforced ({gap.protection}): {gap.why}")
        if enforced.backend == "native":
            break


def say_violations(events: tuple[Event, ...]) -> None:
    """What a person should look at after a run."""
    if not events:
        return
    from ..display import shown

    for event in events:
        if event.kind == "refused":
            allow = f"; --allow {shown(event.allow)}" if event.allow else ""
            say(f"{shown(event.what)} was refused: {shown(event.rule)}{allow}")
        elif event.kind == "note":
            say(f"{shown(event.what)}: {shown(event.rule)}")
        else:
            say(f"{shown(event.what)}: {event.rule}; {event.allow}")


def say(sentence: str) -> None:
    """One line of ours, beside what the command prints."""
    print(f"staddle: {sentence}", file=sys.stderr, flush=True)
