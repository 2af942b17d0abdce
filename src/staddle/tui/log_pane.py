"""The log: the last 1,000 events, each with its time and one of seven colours. And the feed of events."""

from __future__ import annotations

import threading
import time
from collections import deque

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..display import counted, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from textual.selection import Selection

    from .. import Event

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
#: Short texts for the state changes in an audit log.
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
#: Characters of the command of a terminal.
_LONGEST = 80


class LogPane(ScrollView, can_focus=True):
    """The log. All text is escaped first. Small on purpose: it is loaded at the start."""

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
        """Wrap the lines again."""
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
        """The text selected with the mouse."""
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
    elif what == "said":
        yield "sandbox", str(record.get("text"))
    elif what in _STATES:
        yield "sandbox", f"{_STATES[what]} {_details(record)}".rstrip()
        changes = (record.get("changes") or ()) if what == "committed" else ()
        for change in changes[:_FILES_OF_A_RESULT]:  # "added PATH": that it was added is in the log already
            yield "file", f"committed {str(change).partition(' ')[2]}"
        if len(changes) > _FILES_OF_A_RESULT:
            yield "file", f"and {len(changes) - _FILES_OF_A_RESULT:,} more"


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
        command = _command(record)
        return command if len(command) <= _LONGEST else f"{command[: _LONGEST - 1]}…"
    if what == "committed":
        return counted(len(record.get("changes") or ()), "change")
    if what == "discarded":
        return " ".join(record.get("paths") or ())
    if what == "forked":
        return f"into {record.get('count')}"
    return str(record.get("label") or "")


# Queue of records and questions from the sandboxes' threads to the UI. Does not import textual.
# feed = EventFeed()
# Sandbox(".", audit=feed.record, on_connect=feed.on_connect)
# feed.wake = ...   # called when there are new items
# feed.take()       # new lines for the log
# feed.questions()  # connections that wait for an answer


#: Most records in the queue. Beyond that the oldest are dropped.
_WAITING = 5000
#: Seconds for which a connection waits for the user's answer.
PATIENCE = 60.0


class ConnectionQuestion:
    """A connection or HTTP request inside that waits for an answer."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.until = time.monotonic() + PATIENCE
        self.allowed = False
        self.decided = threading.Event()

    def answer(self, allowed: bool) -> None:
        """Decide. The first answer counts."""
        if not self.decided.is_set():
            self.allowed = allowed
            self.decided.set()


class EventFeed:
    """Records and questions of all sandboxes of one UI. Thread-safe."""

    def __init__(self, *, asks: bool = True) -> None:
        self.asks = asks
        #: Destinations allowed in this session: `host:port`, or a host for every port.
        self.allowed: set[str] = set()
        #: Destinations not to ask about again.
        self.refused: set[str] = set()
        self.wake: Callable[[], object] | None = None
        self._records: deque[dict[str, Any]] = deque(maxlen=_WAITING)
        self._questions: list[ConnectionQuestion] = []
        self._lock = threading.Lock()
        self._closed = False

    def record(self, record: dict[str, Any]) -> None:
        """Add a line of an audit log."""
        self._records.append(record)
        self._tell()

    def tell(self, text: str) -> None:
        """Add a sentence."""
        self.record({"what": "said", "text": text, "at": time.time()})

    def take(self) -> list[dict[str, Any]]:
        """Return the records since the last call."""
        found = []
        while self._records:
            found.append(self._records.popleft())
        return found

    def on_connect(self, event: Event) -> bool | None:
        """Wait for the user's answer about a connection or an HTTP request; no answer counts as no.

        A no is returned as None, which the sandbox does not remember: the user may change their mind.
        """
        if self.permits(event.what):
            return True
        if not self.asks or self._closed or event.what in self.refused:
            return None
        question = ConnectionQuestion(event)
        with self._lock:
            self._questions.append(question)
        self._tell()
        question.decided.wait(max(0.0, question.until - time.monotonic()))
        with self._lock:
            self._questions.remove(question)
        self._tell()
        return True if question.allowed else None

    @property
    def is_closed(self) -> bool:
        """Whether the UI has ended."""
        return self._closed

    def permits(self, what: str) -> bool:
        """Whether the user has allowed this destination for the session."""
        return what in self.allowed or what.rpartition(":")[0] in self.allowed

    def questions(self) -> list[ConnectionQuestion]:
        """The waiting connections, oldest first."""
        with self._lock:
            return [question for question in self._questions if not question.decided.is_set()]

    def close(self) -> None:
        """Refuse all waiting and all further connections."""
        self._closed = True
        self.wake = None
        for question in self.questions():
            question.answer(False)

    def _tell(self) -> None:
        wake = self.wake
        if wake is not None:
            try:
                wake()
            except RuntimeError:
                pass  # the UI has ended meanwhile
