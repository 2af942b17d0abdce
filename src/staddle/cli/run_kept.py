"""`staddle run --keep NAME`: a command in a sandbox whose changes stay, for the next one and for review."""

from __future__ import annotations

import os

from ..errors import StaddleError, UsageError
from ..policy.paths import WORKSPACE_PATH
from .kept import is_within, open_kept
from .options import command_from
from .report import print_report, refuse, say, say_gaps, say_violations
from .shell import passed_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..sandbox.sandbox import Sandbox
    from ..sandbox.terminal import Terminal
    from .options import Parsed


def run(parsed: Parsed) -> int:
    """Open, run, close; the exit status is the command's."""
    if parsed.on("output-cap") and not parsed.on("json"):
        raise UsageError(
            "--output-cap needs --json here", why="what a kept sandbox prints is passed through as it comes"
        )
    try:
        argv, script = command_from(parsed)
        sandbox, workspace = open_kept(parsed, script)
    except StaddleError as error:
        return refuse(parsed, error, 125)
    with sandbox:
        if script is not None and workspace is not None and is_within(script, workspace):
            inside = WORKSPACE_PATH + os.path.realpath(script)[len(workspace.rstrip("/")) :]
            argv = [inside if word == script else word for word in argv]
        say_gaps(sandbox.enforced)
        if parsed.on("json"):
            result = sandbox.exec(argv)
            violations = (*result.violations, *sandbox.violations())
            return print_report(result.as_dict(), sandbox.enforced, violations)
        seconds = sandbox.policy.limits.timeout
        meter = sandbox._now().meter()
        meter.begin()
        status = _attended(sandbox, argv, seconds)
        if why := meter.why(status):
            say(why)
        if status == 124 and seconds is not None:
            say(f"ended after {seconds:g} s; --timeout gives it more")
        say_violations((*sandbox.violations(), *sandbox.refusals()))
        return status


def _attended(sandbox: Sandbox, argv: list[str], seconds: float | None) -> int:
    """On a terminal of its own if we have one: an agent draws on it, and asks for keys."""
    if not all(map(os.isatty, range(3))):
        return passed_through(sandbox, argv, seconds)
    from ..display import shown
    from .terminal import on_this_terminal

    lent: Any = _OnATerminal(sandbox, argv)
    status = on_this_terminal(lent, seconds)
    if lent.made is not None and lent.made.failure:
        say(shown(lent.made.failure))
    return status


class _OnATerminal:
    """Lends the user's terminal to a program instead of a shell."""

    def __init__(self, sandbox: Sandbox, argv: list[str]) -> None:
        self._sandbox, self._argv = sandbox, argv
        self.made: Terminal | None = None

    def terminal(self, *, rows: int, cols: int, term: str) -> Terminal:
        """The program on a terminal inside."""
        self.made = self._sandbox.terminal(self._argv, rows=rows, cols=cols, term=term)
        return self.made
