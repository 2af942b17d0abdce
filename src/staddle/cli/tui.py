"""`staddle tui`: a terminal UI for a sandbox: its shell, changes, snapshots, network, processes, policy."""

from __future__ import annotations

import os

from ..errors import ExtraMissing, LayerError, UsageError
from ..launch.foreground import TerminalGuard
from .options import KEEP, RUNNING, Option, Parsed, help_rows, parse_among, reworded, working_directory
from .ps import SERVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..sandbox.sandbox import Sandbox
    from ..tui.log_pane import EventFeed
    from .agent_session import AgentWatcher
    from .running_review import ReviewServer

#: After a kill: restore screen and cursor, disable mouse, bracketed paste and focus reports, reset keys.
_LEAVE = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?1004l\x1b[<u\x1b[0m"
)
_LEFT_OUT = ("json", "output-cap", "workspace", "audit", "workdir")
#: Runs an agent as a job: one that stops itself on Ctrl-Z continues, because its shell takes no commands.
_AS_JOB = (
    *("bash", "--norc", "-i", "-c"),
    """trap : INT; exec 3>&2 2> /dev/null; "$@" 2>&3 3>&-; status=$?
    while [[ $(jobs -p) ]]; do fg > /dev/null; status=$?; done; exit $status""",
    "bash",
)
_OPTIONS = (
    KEEP,
    Option("continue", "", "with an AGENT: go on with its last conversation in this project"),
    Option("attach", "ID", "show a sandbox of a server, by its id or name; it stays when you leave"),
    SERVER,
    Option("ssh-agent", "", "with an AGENT: let it use your ssh-agent; each use is in the log"),
    Option("key-inside", "", "with an AGENT: let it have the key of its model itself"),
    Option("vertical", "", "the shell above, the other panes below it, not side by side"),
    Option("ask", "", "ask about connections that no rule allows, also with --network deny or loopback"),
    Option("no-ask", "", "refuse connections that no rule allows, and do not ask"),
    *(
        option
        for option in reworded(
            RUNNING,
            timeout="end each command of the list of commands after this time: 90, 2m (default: none)",
            mode="the workspace: overlay (default: changes stay in a layer), readonly or bind",
            disk="limit what the sandbox writes to its own layer, or none",
        )
        if option.name not in _LEFT_OUT
    ),
)
_HELP = """\
See what an agent does in a sandbox, and steer it: a shell, and panes for changes, snapshots, network,
processes and policy.

usage: staddle tui [DIR] [options]
       staddle tui --attach ID [--server WHERE] [--vertical]
       staddle tui [DIR] [options] -- AGENT [ARGUMENTS OF THE AGENT]

DIR is the directory to work in, by default the current one. Changes to it stay in a layer until you
review and commit them. F1 lists the keys, Ctrl-P every action. Connections that no rule allows are
asked about in the network pane, unless --network or --no-ask is given.

AGENT is claude, codex, gemini, opencode or aider. It runs in the first terminal, in the sandbox that
`staddle AGENT` opens. Its work is kept: F9 commits files, and `staddle review` also git commits.

The exit status is 0, 125 if the sandbox could not be opened, or 128 plus the signal that ended it.

{options}

  staddle tui                          this directory
  staddle tui ~/project --keep fix     the changes are kept as `fix`; see `staddle diff fix`
  staddle tui --vertical --memory 2G   one above the other, with a limit
  staddle tui --attach fix             a sandbox of `staddle ps`
  staddle tui -- claude                Claude Code, beside its changes and connections
"""


def main(words: Sequence[str]) -> int:
    """Parse the options, begin to open the sandbox, and show the UI."""
    end = words.index("--") if "--" in words else len(words)
    parsed, agent = parse_among(words[:end], _OPTIONS, "tui"), tuple(words[end + 1 :])
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if len(parsed.words) > 1:
        raise UsageError(
            f"staddle tui takes one directory, not {len(parsed.words)}", fix="quote it if it has spaces"
        )
    if parsed.on("ask") and parsed.on("no-ask"):
        raise UsageError("--ask and --no-ask contradict each other", fix="leave one of them out")
    for option in ("continue", "ssh-agent", "key-inside"):
        if parsed.on(option) and not agent:
            raise UsageError(f"--{option} is for an agent", fix=f"staddle tui --{option} -- claude")
    if not all(map(os.isatty, range(3))):
        raise UsageError(
            "staddle tui needs a terminal",
            why="standard input, output or error is not a terminal",
            fix="use `staddle shell` or `staddle run` in scripts",
        )
    _require_textual()
    if parsed.on("attach") or parsed.on("server"):
        return _attached(parsed, agent)
    from ..tui.log_pane import EventFeed
    from ..tui.opening import SandboxOpening
    from ..tui.start import start

    directory = os.path.abspath(parsed.words[0] if parsed.words else working_directory())
    if not os.path.isdir(directory):
        raise UsageError(f"{directory!r} is not a directory", fix="name one that exists")
    options = {"mode": ["overlay"], **parsed.options, "workspace": [directory]}
    parsed = Parsed(options, agent[1:], False)
    feed = EventFeed(asks=_asks(parsed))
    shown = _AgentInUi(agent[0], parsed, feed) if agent else None

    def open_it(feed: EventFeed, first: bool) -> Sandbox:
        return _opened(parsed, feed, kept=first)

    opening = SandboxOpening(
        open_it if shown is None else shown.opened,
        feed,
        timeout=_timeout(parsed),
        policy_file=parsed.one("policy"),
        **(_usual(directory, parsed) if shown is None else shown.for_the_ui()),
    )
    guard = TerminalGuard(_LEAVE)
    try:
        status = start(opening, vertical=parsed.on("vertical"))
    finally:
        guard.close()
        if shown is not None:
            shown.session.close()
    if shown is not None and shown.session.name:
        from .review import at_the_end

        at_the_end(shown.session.name, ask=False)
    return status


def _attached(parsed: Parsed, agent: Sequence[str]) -> int:
    """Show a sandbox of a server."""
    from ..tui.attached import AttachedSandbox
    from ..tui.log_pane import EventFeed
    from ..tui.opening import SandboxOpening
    from ..tui.start import start
    from .ps import running_client

    given = sorted(set(parsed.options) - {"attach", "server", "vertical"})
    if given or parsed.words or agent or not parsed.on("attach"):
        what = f"--{given[0]}" if given else "a directory or an agent" if parsed.on("attach") else "--server"
        raise UsageError(
            f"{what} does not go with --attach" if parsed.on("attach") else "--server needs --attach ID",
            why="the sandbox is open",
            fix="staddle tui --attach ID [--server WHERE] [--vertical]",
        )
    name = parsed.one("attach") or ""
    with running_client(parsed) as client:
        facts = client.get(name).describe()

        def open_it(feed: EventFeed, first: bool) -> Any:
            if not first:
                raise UsageError(
                    "another sandbox cannot be opened here", fix="fork this one, or open another UI"
                )
            return AttachedSandbox(client, facts["id"], feed)

        opening = SandboxOpening(
            open_it,
            EventFeed(),
            directory=facts["workspace"] or "no directory",
            label=facts["name"] or facts["id"],
            is_attached=True,
        )
        guard = TerminalGuard(_LEAVE)
        try:
            return start(opening, vertical=parsed.on("vertical"))
        finally:
            guard.close()


def _usual(directory: str, parsed: Parsed) -> dict[str, Any]:
    keep = parsed.one("keep")
    return {"directory": directory, "label": keep or os.path.basename(directory) or directory, "keep": keep}


class _AgentInUi:
    """A coding agent on the UI's first terminal: opens its sandbox as `staddle AGENT` does."""

    def __init__(self, name: str, parsed: Parsed, feed: EventFeed) -> None:
        from ..agents.table import CODING_AGENTS, INSIDE
        from ..jail.agents import AGENTS
        from .agent_session import AgentSession

        known = [agent for agent, row in CODING_AGENTS.items() if INSIDE in row.ways]
        if name not in known:
            raise UsageError(f"staddle knows no agent {name!r}", fix=f"choose {', '.join(known)}")
        self.session = AgentSession(AGENTS[name], parsed, feed.tell)
        self._parsed = parsed
        self._watcher: AgentWatcher | None = None
        self._reviews: ReviewServer | None = None

    def for_the_ui(self) -> dict[str, Any]:
        """Arguments for SandboxOpening."""
        from .agent_session import free_name

        session, keep = self.session, None
        if session.mode == "overlay":
            keep = self._parsed.one("keep") or free_name(session.agent.name, session.project)
        return {
            "directory": session.project,
            "label": keep or os.path.basename(session.project),
            "keep": keep,
            "argv": [*_AS_JOB, *session.argv],
            "program": session.agent.title,
            "leaving": self._left,
            "hidden": ".git",  # what the agent commits is for `staddle review`
        }

    def opened(self, feed: EventFeed, first: bool) -> Sandbox:
        """Open the agent's sandbox, or later another one of the same project, which is not kept."""
        from ..sandbox.sandbox import Sandbox
        from .agent_session import AgentWatcher
        from .running_review import ReviewServer

        session = self.session
        hooks: dict[str, Any] = {"audit": feed.record, "on_connect_timeout": 60.0}
        if feed.asks and session.policy.network.mode != "open":
            hooks["on_connect"] = feed.on_connect
            if session.policy.network.http:
                hooks["on_request"] = feed.on_connect
        if not first and session.mode == "overlay":
            return Sandbox(
                session.project,
                session.policy,
                workspace_at=session.project,
                backend=self._parsed.one("backend") or "auto",  # type: ignore[arg-type]
                best_effort=self._parsed.on("best-effort"),
                history=True,
                **hooks,
            )
        sandbox = session.opened(**hooks)
        if first:
            for line in session.introduction(sandbox):
                feed.tell(line)
            if session.name:
                self._reviews = ReviewServer(sandbox, session.name)
            self._watcher = AgentWatcher(sandbox, session.home, feed.tell)
            self._watcher.start()
        return sandbox

    def _left(self) -> None:
        if self._reviews is not None:
            self._reviews.close()
        if self._watcher is not None:
            self._watcher.end()


def _require_textual() -> None:
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise ExtraMissing(
            "staddle tui needs the package textual",
            why="it is not installed",
            fix="pip install 'staddle[tui]'",
        )


def _asks(parsed: Parsed) -> bool:
    """Whether to ask a person about connections. Not with an explicit network without exceptions."""
    if parsed.on("ask") or parsed.on("no-ask"):
        return parsed.on("ask")
    return parsed.one("network") in (None, "allow", "packages")


def _timeout(parsed: Parsed) -> float | None:
    if not parsed.on("timeout"):
        return None
    from ..policy import Limits

    said = parsed.one("timeout")
    return Limits(timeout=None if said == "none" else said).timeout


def _opened(parsed: Parsed, feed: EventFeed, *, kept: bool) -> Sandbox:
    from .kept import open_kept
    from .options import sandbox_from

    asks = feed.asks and parsed.one("network") != "open"
    hooks: dict[str, Any] = {"audit": feed.record, "on_connect_timeout": 60.0}
    if asks:
        hooks |= {"on_connect": feed.on_connect, "on_request": feed.on_connect}
    if kept and parsed.on("keep"):
        return open_kept(parsed, **hooks)[0]
    from ..sandbox.sandbox import Sandbox

    policy, workspace, mode = sandbox_from(parsed)
    if not policy.network.http:
        hooks.pop("on_request", None)

    def opened(*, history: bool) -> Sandbox:
        return Sandbox(
            workspace,
            policy,
            backend=parsed.one("backend") or "auto",  # type: ignore[arg-type]
            mode=mode,  # type: ignore[arg-type]
            best_effort=parsed.on("best-effort"),
            history=history,
            **hooks,
        )

    try:
        return opened(history=mode == "overlay")
    except LayerError:
        return opened(history=False)  # a host without layers
