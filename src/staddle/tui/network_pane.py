"""Every attempt on the network, allowed or refused and by which rule; and the connections that wait."""

from __future__ import annotations

import time

from rich.text import Text
from textual.widgets import DataTable

from staddle.display import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from staddle import Event

    from .feed import ConnectionQuestion


class NetworkPane(DataTable[Text]):
    """One row for each attempt; connections that wait for an answer come first."""

    BINDINGS = [
        ("a", "app.allow", "allow for this session"),
        ("n", "app.refuse", "refuse"),
        ("w", "app.allow_in_policy", "write to the policy file"),
        ("slash", "search", "search"),
    ]
    DEFAULT_CSS = "NetworkPane { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, id=id)
        self._rows: list[ConnectionQuestion | Event] = []
        self._search = ""
        self._last: tuple[list[tuple[float, Event]], list[ConnectionQuestion]] = ([], [])

    def on_mount(self) -> None:
        self.add_columns("time", "decision", "destination", "rule")

    def show_events(
        self, events: Iterable[tuple[float, Event]], questions: Iterable[ConnectionQuestion]
    ) -> None:
        """Draw these, the newest first."""
        self._last = list(events), list(questions)
        if not self.columns:
            return
        row = self.cursor_row
        self.clear()
        self._rows = []
        for question in self._last[1]:
            left = max(0, int(question.until - time.monotonic()))
            self._add(question, "now", question.event, Text(f"ask ({left} s)", style="bold yellow"))
        for when, event in reversed(self._last[0]):
            if self._search and self._search not in event.what.lower():
                continue
            is_refused = event.kind == "refused"
            verdict = Text("refused", style="bold red") if is_refused else Text("allowed", style="green")
            if not is_refused and not event.rule.startswith("allowed"):
                verdict = Text("note", style="dim")
            self._add(event, time.strftime("%H:%M:%S", time.localtime(when)), event, verdict)
        if row < len(self._rows):
            self.move_cursor(row=row)

    def _add(self, item: ConnectionQuestion | Event, when: str, event: Event, verdict: Text) -> None:
        self._rows.append(item)
        rule = shown(event.rule)
        self.add_row(Text(when, style="dim"), verdict, Text(shown(event.what)), Text(rule, style="dim"))

    def chosen(self) -> ConnectionQuestion | Event | None:
        """Row under the cursor."""
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    def action_search(self) -> None:
        from .changes_pane import SearchScreen

        def searched(word: str | None) -> None:
            if word is not None:
                self._search = word.lower()
                self.show_events(*self._last)

        self.app.push_screen(SearchScreen(self._search), searched)
