"""The log: the last 1,000 lines of what happened, each with its time and one of seven colours."""

from __future__ import annotations

import time

from rich.text import Text
from textual.widgets import RichLog

from staddle.display import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LINES = 1000
#: The kinds of line, each with its colour.
COLOURS = {
    "command": "bold cyan",
    "result": "green",
    "file": "blue",
    "metric": "magenta",
    "violation": "bold yellow",
    "sandbox": "bright_black",
    "error": "bold red",
}
#: What an audit log calls a change of state, in a word or two.
_STATES = {
    "opened": "sandbox opened",
    "terminal": "terminal opened",
    "started": "started in the background",
    "snapshot": "snapshot",
    "restored": "restored",
    "forked": "forked",
    "committed": "committed",
    "discarded": "changes discarded",
    "paused": "paused",
    "resumed": "resumed",
    "closed": "sandbox closed",
}
_FILES_OF_A_RESULT = 8


class LogPane(RichLog, can_focus=True):
    """The log. Everything in it is made harmless first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(max_lines=LINES, wrap=True, markup=False, highlight=False, min_width=20, id=id)
        self.border_title = "Log"
        #: The same as plain text, for a search.
        self.texts: list[tuple[str, str]] = []

    def add(self, kind: str, text: str, when: float | None = None) -> None:
        """Add a line of one of the kinds."""
        stamp = time.strftime("%H:%M:%S", time.localtime(when))
        line = Text(f"{stamp} ", style="dim")
        line.append(shown(text), style=COLOURS[kind])
        self.texts.append((kind, shown(text)))
        del self.texts[:-LINES]
        self.write(line)

    def add_record(self, record: dict[str, Any]) -> None:
        """Add the lines for a record of an audit log."""
        for kind, text in lines_of(record):
            self.add(kind, text, record.get("at"))


def lines_of(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, text) for a record of an audit log."""
    what = record.get("what")
    if what == "command":
        yield "command", f"$ {_command(record)}"
    elif what == "result":
        yield from _result(record)
    elif what == "failed":
        yield "error", str(record.get("error", "failed"))
    elif what == "refused":
        yield "violation", f"refused {record.get('host')}: {record.get('rule')}"
    elif what == "network":
        yield "metric", f"network {record.get('host')}: {record.get('rule')}"
    elif what in _STATES:
        yield "sandbox", f"{_STATES[what]} {_details(record)}".rstrip()
        for path in (record.get("changes") or ())[:_FILES_OF_A_RESULT] if what == "committed" else ():
            yield "file", str(path)


def _command(record: dict[str, Any]) -> str:
    command = record.get("command")
    return command if isinstance(command, str) else " ".join(map(str, command or ()))


def _result(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    code, reason = record.get("exit_code"), record.get("reason")
    why = "" if reason == "exited" else f" ({reason})"
    yield (
        ("result" if record.get("ok") else "error"),
        f"exit {code}{why} after {record.get('duration', 0):.2f} s",
    )
    if record.get("why"):
        yield "violation", str(record["why"])
    changes = record.get("changes") or ()
    for path in changes[:_FILES_OF_A_RESULT]:
        yield "file", str(path)
    if len(changes) > _FILES_OF_A_RESULT:
        yield "file", f"and {len(changes) - _FILES_OF_A_RESULT} more"
    used = []
    if record.get("user_time") is not None:
        used.append(f"cpu {record['user_time']:.2f} s")
    if record.get("memory"):
        used.append(f"memory {record['memory'] / (1 << 20):.1f} MiB")
    if used:
        yield "metric", ", ".join(used)


def _details(record: dict[str, Any]) -> str:
    what = record.get("what")
    if what == "opened":
        return f"on {record.get('backend')}, network {record.get('network')}"
    if what in ("terminal", "started"):
        return _command(record)
    if what == "committed":
        return f"{len(record.get('changes') or ())} changes"
    if what == "discarded":
        return " ".join(record.get("paths") or ())
    if what == "forked":
        return f"into {record.get('count')}"
    return str(record.get("label") or "")
