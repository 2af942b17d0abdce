"""Output of commands that run something, as sentences or JSON: gaps, refusals, the end of a command."""

from __future__ import annotations

import os
import sys

from ..enforcement import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..enforcement import Enforcement
    from ..errors import StaddleError
    from ..events import Event
    from ..launch.foreground import ForegroundOutcome
    from ..policy.plan import Plan
    from ..wrapping import WrappedCommand
    from .options import Parsed


TOLD.append("by the command line")


def attended(
    wrapped: WrappedCommand,
    *,
    seconds: float | None,
    cap: int | None,
    copy: Callable[[bytes], object] | None = None,
) -> ForegroundOutcome:
    """Run a command on our own streams, then report the limit that ended it and dropped output."""
    from ..launch.foreground import attend

    secrets = None
    if any(variable.secret for variable in wrapped.plan.variables):
        from ..observe.redaction import secrets_of

        secrets = secrets_of(wrapped.plan)
    audited = wrapped.begin_audit()
    try:
        outcome = attend(wrapped.launch(), seconds=seconds, cap=cap, secrets=secrets, copy=copy)
    except BaseException as error:
        wrapped.end_audit(audited, error=error)
        raise
    wrapped.end_audit(audited, outcome.status, outcome.reason, why=outcome.why)
    if outcome.reason == "timeout":
        say(f"ended after {seconds:g} s; --timeout gives it more")
    if outcome.why:
        say(outcome.why)
    for name, count in zip(("output", "error"), outcome.dropped, strict=True):
        if count:
            say(f"{count} bytes of standard {name} were dropped; --output-cap lets more through")
    return outcome


def captured(wrapped: WrappedCommand, **how: Any) -> dict[str, Any]:
    """Run a command with captured output, and return a report. `how` is passed to its `run`."""
    import subprocess
    import time

    began = time.monotonic()
    try:
        done = wrapped.run(capture_output=True, **how)
        status, reason, out, err = done.returncode, done.reason, done.stdout, done.stderr
        why, used = done.why, done.usage
        if status < 0:
            status = 128 - status
    except subprocess.TimeoutExpired as late:
        status, reason, out, err = 124, "timeout", late.output, late.stderr
        why, used = f"it was ended after {late.timeout:g} s (limits.timeout)", None
    return {
        "exit_code": status,
        "reason": reason,
        "why": why,
        "stdout": (out or b"").decode("utf-8", "replace"),
        "stderr": (err or b"").decode("utf-8", "replace"),
        "duration": time.monotonic() - began,
        "usage": None if used is None else used.as_dict(),
    }


def print_report(report: dict[str, Any], enforced: Enforcement, violations: Sequence[Event]) -> int:
    """Print the report as one line of JSON, with enforcement and violations. Returns the exit status."""
    import json

    added = {
        "backend": enforced.backend,
        "enforced": enforced.as_dict(),
        "violations": [event.as_dict() for event in violations],
    }
    print(json.dumps({**report, **added}))
    status: int = report["exit_code"]
    return status


def refuse(parsed: Parsed, error: StaddleError, status: int) -> int:
    """Print why nothing ran, as a sentence or as JSON. Returns `status`."""
    if not parsed.on("json"):
        say_error(error)
        return status
    import json

    print(
        json.dumps({"error": {"what": error.what, "why": error.why, "fix": error.fix}, "exit_code": status})
    )
    return status


#: Python names in errors, and their spelling on the command line.
_SPELLINGS = (
    ("policy.with_read()", "--read"),
    ("use None for no limit", "leave the option out for the default, or use none"),
    ("Network.open()", "--network open"),
    ("Network.deny()", "--network deny"),
    ("best_effort=True", "--best-effort"),
    ("unprotect=", "`unprotect` of a policy file: "),
    ("limits.open_files", "--open-files"),
    ("limits.file_size", "--file-size"),
    ("limits.output", "--output-cap"),
    *((f"limits.{name}", f"--{name}") for name in ("timeout", "memory", "cpu", "processes", "disk")),
    *((f"{name}={quote}", f"--{name} ") for name in ("mode", "backend", "keep") for quote in ("'", '"')),
)


def say_error(error: BaseException, before: str = "") -> None:
    """Print an error: its description, cause and fix, each on its own line."""
    print(f"staddle: {before}{told(error)}", file=sys.stderr, flush=True)


def told(error: BaseException) -> str:
    """Return the text of an error for the command line, with control characters escaped."""
    from ..display import shown
    from ..errors import StaddleError, rendered

    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        fix = "name one that exists" if isinstance(error, FileNotFoundError) else ""
        return rendered(f"{shown(error.filename)!r} cannot be used", error.strerror, fix, lines=True)
    if not isinstance(error, StaddleError):
        return shown(str(error))
    # A line that can be pasted is printed separately.
    fix, _, line = error.fix.partition("\n")
    what, why, fix = (shown(_spelled(text)) for text in (error.what, error.why, fix))
    text = rendered(what, why, fix, lines=True)
    return f"{text}\n  {shown(line)}" if line else text


def _spelled(text: str) -> str:
    if "policy.with_" in text:
        import re

        text = re.sub(r"policy\.with_(read|write|deny)\('([^']+)'\)", r"--\1 \2", text)
    for python, option in _SPELLINGS:
        if python in text:
            closing = python[-1] if python[-1] in "'\"" else ""
            before, _, after = text.partition(python)
            text = before + option + (after.replace(closing, "", 1) if closing else after)
    return text


def say_gaps(enforced: Enforcement) -> None:
    """Report the gaps, except documented ones; those of a nested run in one line."""
    if enforced.nested:
        say(enforced.notice())
    for gap in enforced.gaps:
        if not gap.documented or enforced.backend == "native":
            say(f"not enforced ({gap.protection}): {gap.why}")
        if enforced.backend == "native":
            break


#: Programs, modules and addresses that use the network; and addresses of this machine.
_NETWORK_WORDS = (
    r"\b(pip3?|pipx|uv|poetry|conda|npm|npx|pnpm|yarn|cargo|go|gem|bundle|composer|apt|apt-get|dnf|apk|brew"
    r"|curl|wget|ssh|scp|rsync|ping|dig|nslookup|urllib|requests|httpx|aiohttp)\b"
    r"|\bgit\b.*\b(clone|fetch|pull|push|ls-remote|submodule)\b"
    r"|\b(https?|ftp|wss?)://"
)
_THIS_MACHINE = r"\blocalhost\b|\b127\.|\[?::1\b"
#: Number of bytes of a script that are searched.
_SEARCHED = 64 << 10


def say_denied_network(plan: Plan, argv: Sequence[str], status: int) -> None:
    """Print how to allow the network if a failed command seems to need it."""
    if sentence := denied_network(plan, argv, status):
        say(sentence)


def denied_network(plan: Plan, argv: Sequence[str], status: int) -> str:
    """Return how to allow the network if a failed command seems to need it; else an empty text.

    We cannot read the command's output, which goes to our caller's streams. So we search its command line,
    and the script that it runs, for programs and addresses that need the network.
    """
    if status in (0, 124, 125) or plan.network.mode not in ("deny", "loopback"):
        return ""
    import re

    texts = [" ".join(argv)]
    for word in argv[:3]:
        try:
            with open(os.path.join(plan.cwd, word), "rb") as file:
                texts.append(file.read(_SEARCHED).decode("utf-8", "replace"))
        except (OSError, ValueError):
            continue
    found = [text for text in texts if not text.startswith("\x7fELF") and re.search(_NETWORK_WORDS, text)]
    if not found or all(re.search(_THIS_MACHINE, text) for text in found):
        return ""
    only = "denied" if plan.network.mode == "deny" else "limited to ports of this machine"
    ways = "--network packages (pip, npm, apt, ...) or --allow HOST"
    return f"the network is {only}; if the command needs it, add {ways}"


def say_violations(events: tuple[Event, ...]) -> None:
    """Report what a person should check after a run."""
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
    """Print one line to standard error."""
    print(f"staddle: {sentence}", file=sys.stderr, flush=True)


def notify(text: str) -> None:
    """Show a sentence in the title of the user's terminal, where it does not disturb a program's screen."""
    if not os.isatty(2):
        say(text)
        return
    os.write(2, f"\x1b]2;staddle: {text}\x07\x1b]9;staddle: {text}\x07".encode())
