"""The log: the last 1,000 lines of what happened, each with its time and one of seven colours."""

from __future__ import annotations

import time
from collections import deque

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from staddle.display import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from textual.selection import Selection

LINES = 1000
_STAMP = len("00:00:00 ")
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


class LogPane(ScrollView, can_focus=True):
    """The log. Everything in it is made harmless first. Small on purpose: it is there from the start."""

    DEFAULT_CSS = (
        "LogPane { background: $surface; color: $foreground; overflow-y: scroll; overflow-x: hidden; }"
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Log"
        #: (kind, time, text) of each line.
        self.lines: deque[tuple[str, str, str]] = deque(maxlen=LINES)
        self._rows: list[tuple[int, int, int]] = []  # (number of the line, from, to) for each row of the view
        self._wide = 0
        self._dropped = 0

    def add(self, kind: str, text: str, when: float | None = None) -> None:
        """Add a line of one of the kinds."""
        stamp = time.strftime("%H:%M:%S", time.localtime(when))
        if len(self.lines) == LINES:
            self._dropped += 1
        self.lines.append((kind, stamp, shown(text)))
        is_at_end = self.is_vertical_scroll_end
        if self._wide:
            self._wrap(self._dropped + len(self.lines) - 1)
            self._rows = [row for row in self._rows if row[0] >= self._dropped]
        self.virtual_size = Size(self._wide, len(self._rows))
        if is_at_end:
            self.scroll_end(animate=False, immediate=True)
        self.refresh()

    def on_resize(self) -> None:
        """Wrap the lines anew."""
        wide = self.scrollable_content_region.width
        if wide and wide != self._wide:
            self._wide, self._rows = wide, []
            for number in range(self._dropped, self._dropped + len(self.lines)):
                self._wrap(number)
            self.virtual_size = Size(wide, len(self._rows))
            self.scroll_end(animate=False, immediate=True)

    def _wrap(self, number: int) -> None:
        text = self.lines[number - self._dropped][2]
        room = max(8, self._wide - _STAMP)
        for start in range(0, max(1, len(text)), room):
            self._rows.append((number, start, start + room))

    def render_line(self, y: int) -> Strip:
        """One row: the time, then the text in the colour of its kind."""
        at = y + self.scroll_offset.y
        base = self.rich_style
        if at >= len(self._rows):
            return Strip.blank(self.size.width, base)
        number, start, end = self._rows[at]
        kind, stamp, text = self.lines[number - self._dropped]
        before = Segment(f"{stamp} " if not start else " " * _STAMP, base + Style(dim=True))
        strip = Strip([before, Segment(text[start:end], base + Style.parse(COLOURS[kind]))])
        return strip.crop_extend(0, self.size.width, base).apply_offsets(0, at)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text that was selected with the mouse."""
        found = []
        for number, start, end in self._rows:
            _, stamp, text = self.lines[number - self._dropped]
            found.append((f"{stamp} " if not start else " " * _STAMP) + text[start:end])
        return selection.extract("\n".join(found)), "\n"


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
