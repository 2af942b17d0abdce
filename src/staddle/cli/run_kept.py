"""`staddle run --keep NAME`: a command in a sandbox whose changes stay, for the next one and for review."""

from __future__ import annotations

import os

from ..errors import StaddleError, UsageError
from ..policy.workspace import PLACE
from ..sandbox.sandbox import Sandbox
from ..sandbox.workspace.persistent import workspace_of
from .kept import is_within
from .run import command_from, refuse, say, say_gaps, say_violations
from .settings import session_from
from .shell import passed_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..policy import Policy
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
        sandbox, workspace = opened(parsed, script)
    except StaddleError as error:
        return refuse(parsed, error, 125)
    with sandbox:
        if script is not None and workspace is not None and is_within(script, workspace):
            inside = PLACE + os.path.realpath(script)[len(workspace.rstrip("/")) :]
            argv = [inside if word == script else word for word in argv]
        say_gaps(sandbox.enforced)
        if parsed.on("json"):
            return _as_json(sandbox, argv)
        seconds = sandbox.policy.limits.timeout
        account = sandbox.account()
        account.begin()
        status = _attended(sandbox, argv, seconds)
        if why := account.why(status):
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


def opened(parsed: Parsed, script: str | None = None) -> tuple[Sandbox, str | None]:
    """The sandbox that the options say, with its workspace. `script` must be readable in it."""
    name = parsed.one("keep")
    mode = parsed.one("mode")
    if mode not in (None, "overlay"):
        raise UsageError(
            f"--keep and --mode {mode} contradict each other",
            why="only changes in a layer of its own can be kept",
            fix="leave one of them out",
        )
    policy, workspace = _where(parsed, name or "")
    if script is not None and not (workspace is not None and is_within(script, workspace)):
        policy = policy.with_read(script)
    sandbox = Sandbox(
        workspace,
        policy,
        backend=parsed.one("backend") or "auto",
        best_effort=parsed.on("best-effort"),
        keep=name,
    )
    return sandbox, workspace


def _where(parsed: Parsed, name: str) -> tuple[Policy, str | None]:
    """The policy, and the workspace: the session's own, if there is one already."""
    options = {option: values for option, values in parsed.options.items() if option != "mode"}
    known = workspace_of(name)
    if known is not None and "workspace" not in options:
        here = os.path.realpath(os.getcwd())
        if not is_within(here, known):
            raise UsageError(
                f"the session {name!r} is of {known!r}",
                why="the current directory is not in there",
                fix="go there, name it with --workspace, or choose another name",
            )
        options["workspace"] = [known]
    policy, workspace, _ = session_from(parsed.replace(options=options))
    return policy, None if workspace is None else os.path.realpath(workspace)


def _as_json(sandbox: Sandbox, argv: list[str]) -> int:
    import json

    result = sandbox.exec(argv)
    report = {
        **result.as_dict(),
        "backend": sandbox.enforced.backend,
        "enforced": sandbox.enforced.as_dict(),
        "violations": [event.as_dict() for event in (*result.violations, *sandbox.violations())],
    }
    print(json.dumps(report))
    return result.exit_code
