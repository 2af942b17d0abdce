"""`staddle run --keep NAME` and `--mode overlay`: run a command whose changes are kept, or reported."""

from __future__ import annotations

import os
import shlex

from ..errors import CommitRefused, LayerError, StaddleError, UsageError
from ..paths import WORKSPACE_PATH
from .kept import is_within, open_kept, open_overlay
from .options import command_from
from .report import print_report, refuse, say, say_denied_network, say_error, say_gaps, say_violations
from .shell import passed_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..layers.review import Review
    from ..sandbox.sandbox import Sandbox
    from ..sandbox.terminal import Terminal
    from .options import Parsed

#: Maximum number of listed changes; --diff shows all.
MOST_TOLD = 50


def run(parsed: Parsed) -> int:
    """Open the sandbox, run the command, and return its exit status."""
    if parsed.on("output-cap") and not parsed.on("json"):
        raise UsageError(
            "--output-cap needs --json here",
            why="what is printed in a layered sandbox is passed through as it comes",
            fix="add --json, or leave --output-cap out",
        )
    try:
        argv, script = command_from(parsed)
        sandbox, workspace = (open_kept if parsed.on("keep") else open_overlay)(parsed, argv, script)
    except StaddleError as error:
        return refuse(parsed, error, 125)
    asked = tuple(argv)
    with sandbox:
        if script is not None and workspace is not None and is_within(script, workspace):
            inside = WORKSPACE_PATH + os.path.realpath(script)[len(workspace.rstrip("/")) :]
            argv = [inside if word == script else word for word in argv]
        say_gaps(sandbox.enforced)
        if parsed.on("json"):
            return _reported(parsed, sandbox, argv)
        seconds = sandbox.policy.limits.timeout
        meter = sandbox._now().meter()
        meter.begin()
        status = _attended(sandbox, argv, seconds)
        if why := meter.why(status):
            say(why)
        if status == 124 and seconds is not None:
            say(f"ended after {seconds:g} s; --timeout gives it more")
        if sandbox._history is not None:
            sandbox._history.program_ended(parsed.one("command") or shlex.join(asked), status)
        say_violations((*sandbox.violations(), *sandbox.refusals()))
        say_denied_network(sandbox.plan, asked, status)
        if not parsed.on("keep"):
            return _told(parsed, sandbox, workspace, status)
        return status


def _reported(parsed: Parsed, sandbox: Sandbox, argv: list[str]) -> int:
    """Print the result as JSON; for a throw-away layer with its changes, and whether they were committed."""
    result = sandbox.exec(argv)
    violations = (*result.violations, *sandbox.violations())
    report = result.as_dict()
    if not parsed.on("keep"):
        found = sandbox.review() if parsed.on("commit") else None
        changes = sandbox.diff() if found is None else found.changes
        report["changes"] = [change.as_dict() for change in changes]
        if found is not None:
            report["committed"] = result.exit_code == 0 and _committed(found)
    status = print_report(report, sandbox.enforced, violations)
    return status if report.get("committed", True) else status or 125


def _told(parsed: Parsed, sandbox: Sandbox, workspace: str | None, status: int) -> int:
    """Report the changes and their fate. Returns the status, or 125 if a commit was refused."""
    import sys

    from ..display import counted, shown
    from ..observe.redaction import NONE
    from .diff import text_of
    from .kept import row

    found, secrets = sandbox.review() if parsed.on("commit") else None, sandbox._now().secrets or NONE
    changes = sandbox.diff() if found is None else found.changes
    for change in changes if parsed.on("diff") else changes[:MOST_TOLD]:
        print(secrets.text(row(change)), file=sys.stderr)
        if parsed.on("diff"):
            print(secrets.text(text_of(change)), file=sys.stderr)
    if not parsed.on("diff") and len(changes) > MOST_TOLD:
        print(f"... and {len(changes) - MOST_TOLD:,} more", file=sys.stderr)
    if not changes:
        return status
    how_many = counted(len(changes), "change")
    if found is None:
        say(f"{how_many} thrown away; --commit writes them to the workspace, --keep NAME keeps them")
    elif status:
        say(f"{how_many} thrown away: nothing is committed after the status {status}")
    elif _committed(found):
        say(f"{how_many} written to {shown(workspace or '')}")
    else:
        return 125
    return status


def _committed(found: Review) -> bool:
    """Commit the reviewed changes. If that is refused, print the reasons and return False."""
    from .commit import print_refused

    try:
        found.commit()
    except CommitRefused as refused:
        print_refused(refused)
        say("nothing was written; with --keep NAME you can review the changes and commit some of them")
        return False
    except LayerError as error:
        say_error(error)
        return False
    return True


def _attended(sandbox: Sandbox, argv: list[str], seconds: float | None) -> int:
    """Run on a terminal inside if we have one, because an agent draws on it and reads keys."""
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
    """Gives the user's terminal to a program instead of a shell."""

    def __init__(self, sandbox: Sandbox, argv: list[str]) -> None:
        self._sandbox, self._argv = sandbox, argv
        self.made: Terminal | None = None

    def terminal(self, *, rows: int, cols: int, term: str) -> Terminal:
        """Start the program on a terminal inside."""
        self.made = self._sandbox.terminal(self._argv, rows=rows, cols=cols, term=term)
        return self.made
