"""The history of a sandbox as a list of points, and each point as its changes with diffs."""

from __future__ import annotations

import time

from rich.console import Group
from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from ..display import counted, shown
from .changes_pane import label_of, unified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType
    from textual.app import ComposeResult

    from .. import Change, HistoryPoint
    from .watched import WatchedSandbox

#: Most changes of a point with their text; and characters of a command.
_MOST_DIFFS, _WIDTH = 50, 200
#: Names of points that no command made.
_CAUSES = {"background": "on a terminal", "files": "files", "start": "the beginning"}


class TimelinePane(DataTable[Text]):
    """One row per point, newest first; points that were undone are above the present one."""

    BINDINGS = [
        ("u", "app.step(-1)", "undo"),
        ("r", "app.step(1)", "redo"),
        ("g", "app.go_to_point", "go to this point"),
        ("enter", "app.show_point", "show its changes"),
    ]
    DEFAULT_CSS = "TimelinePane { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, id=id)
        self._rows: list[HistoryPoint] = []

    def on_mount(self) -> None:
        self.add_columns("", "#", "time", "changes", "command")

    def show_points(self, watched: WatchedSandbox) -> None:
        """Draw the points; the cursor stays on its point."""
        if not self.columns:
            return
        chosen = self.chosen()
        self.clear()
        self._rows = [*reversed(watched.undone), *reversed(watched.points)]
        if not self._rows:
            why = Text(shown(watched.no_history) or "no points", style="dim")
            self.add_row(*[Text()] * 4, why)
        for index, point in enumerate(self._rows):
            is_undone = index < len(watched.undone)
            self.add_row(*_cells(point, is_undone=is_undone, is_present=index == len(watched.undone)))
        if chosen in self._rows:
            self.move_cursor(row=self._rows.index(chosen))

    def chosen(self) -> HistoryPoint | None:
        """The point under the cursor."""
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    def before(self, point: HistoryPoint) -> HistoryPoint | None:
        """The point before this one."""
        at = self._rows.index(point) + 1
        return self._rows[at] if at < len(self._rows) else None

    def action_select_cursor(self) -> None:
        """Show a point that was clicked twice, as Enter does."""
        self.app.action_show_point()  # type: ignore[attr-defined]


def _cells(point: HistoryPoint, *, is_undone: bool, is_present: bool) -> tuple[Text, ...]:
    style = "dim" if is_undone else ""
    count = "many" if point.changed is None else str(point.changed or "")
    return (
        Text("●" if is_present else "○", style=style or "yellow"),
        Text(str(point.number), style=style or "bold"),
        Text(time.strftime("%H:%M:%S", time.localtime(point.time)), style="dim"),
        Text(count, style="dim", justify="right"),
        Text(title_of(point), style=style or ("red" if point.exit_code else "")),
    )


def title_of(point: HistoryPoint) -> str:
    """The command of a point, or what else made it, on one line."""
    return shown(point.command[:_WIDTH]) or f"({_CAUSES.get(point.cause, point.cause)})"


class PointScreen(ModalScreen[None]):
    """The changes of a point, with diffs."""

    BINDINGS = [("escape,q", "dismiss(None)", "leave")]
    DEFAULT_CSS = """
    PointScreen { align: center middle; }
    PointScreen VerticalScroll { width: 96%; height: 96%; border: round $primary; background: $surface;
        border-subtitle-color: $text-muted; }
    PointScreen Static { width: auto; }
    """

    def __init__(self, point: HistoryPoint, changes: Callable[[], Sequence[Change]]) -> None:
        super().__init__()
        self._point, self._changes = point, changes

    def compose(self) -> ComposeResult:
        heading = Text(f"{self._point.number}  {title_of(self._point)}", style="bold")
        scroll = VerticalScroll(Static(heading, markup=False), Static("reading …", markup=False, id="diffs"))
        scroll.border_subtitle = "Esc back"
        yield scroll

    def on_mount(self) -> None:
        self.run_worker(self._read, thread=True)
        self.query_one(VerticalScroll).focus()

    def _read(self) -> None:
        from ..errors import StaddleError

        parts: list[RenderableType] = []
        try:
            changes = self._changes()
            for change in changes[:_MOST_DIFFS]:
                parts += [label_of(change), unified(change.text_diff(), change.path)]
            more = len(changes) - _MOST_DIFFS
            if more > 0:
                parts.append(Text(f"and {counted(more, 'more change')}", style="dim"))
        except (StaddleError, OSError) as error:
            parts = [Text(shown(str(error)), style="red")]
        draw = Group(*parts) if parts else Text("no changes", style="dim")
        self.app.call_from_thread(self.query_one("#diffs", Static).update, draw)
