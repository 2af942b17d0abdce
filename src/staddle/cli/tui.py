"""`staddle tui`: a terminal UI for a sandbox: its shell, changes, snapshots, network, processes, policy."""

from __future__ import annotations

import os

from ..errors import ExtraMissing, UsageError
from ..launch.foreground import TerminalGuard
from .options import KEEP, RUNNING, Option, Parsed, help_rows, parse_among, reworded, working_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..sandbox.sandbox import Sandbox
    from ..tui.log_pane import EventFeed

#: After a kill: restore screen and cursor, disable mouse, bracketed paste and focus reports, reset keys.
_LEAVE = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?1004l\x1b[<u\x1b[0m"
)
_LEFT_OUT = ("json", "output-cap", "workspace")
_OPTIONS = (
    KEEP,
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

DIR is the directory to work in, by default the current one. Changes to it stay in a layer until you
review and commit them. F1 lists the keys, Ctrl-P every action. Connections that no rule allows are
asked about in the network pane, unless --network or --no-ask is given.

The exit status is 0, 125 if the sandbox could not be opened, or 128 plus the signal that ended it.

{options}

  staddle tui                          this directory
  staddle tui ~/project --keep fix     the changes are kept as `fix`; see `staddle diff fix`
  staddle tui --vertical --memory 2G   one above the other, with a limit
"""


def main(words: Sequence[str]) -> int:
    """Parse the options, begin to open the sandbox, and show the UI."""
    parsed = parse_among(words, _OPTIONS, "tui")
    if parsed.on("help"):
        print(_HELP.format(options=help_rows(_OPTIONS)), end="")
        return 0
    if len(parsed.words) > 1:
        raise UsageError(
            f"staddle tui takes one directory, not {len(parsed.words)}", fix="quote it if it has spaces"
        )
    if parsed.on("ask") and parsed.on("no-ask"):
        raise UsageError("--ask and --no-ask contradict each other", fix="leave one of them out")
    if not all(map(os.isatty, range(3))):
        raise UsageError(
            "staddle tui needs a terminal",
            why="standard input, output or error is not a terminal",
            fix="use `staddle shell` or `staddle run` in scripts",
        )
    _require_textual()
    from ..tui.log_pane import EventFeed
    from ..tui.opening import SandboxOpening
    from ..tui.start import start

    directory = os.path.abspath(parsed.words[0] if parsed.words else working_directory())
    if not os.path.isdir(directory):
        raise UsageError(f"{directory!r} is not a directory", fix="name one that exists")
    options = {"mode": ["overlay"], **parsed.options, "workspace": [directory]}
    parsed = Parsed(options, (), False)

    def open_it(feed: EventFeed, first: bool) -> Sandbox:
        return _opened(parsed, feed, kept=first)

    keep = parsed.one("keep")
    opening = SandboxOpening(
        open_it,
        EventFeed(asks=_asks(parsed)),
        directory=directory,
        label=keep or os.path.basename(directory) or directory,
        timeout=_timeout(parsed),
        policy_file=parsed.one("policy"),
        keep=keep,
    )
    guard = TerminalGuard(_LEAVE)
    try:
        return start(opening, vertical=parsed.on("vertical"))
    finally:
        guard.close()


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
    on_connect = feed.on_connect if asks else None
    if kept and parsed.on("keep"):
        return open_kept(parsed, audit=feed.record, on_connect=on_connect, on_connect_timeout=60.0)[0]
    from ..sandbox.sandbox import Sandbox

    policy, workspace, mode = sandbox_from(parsed)
    return Sandbox(
        workspace,
        policy,
        backend=parsed.one("backend") or "auto",  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        best_effort=parsed.on("best-effort"),
        audit=feed.record,
        on_connect=on_connect,
        on_connect_timeout=60.0,
    )
