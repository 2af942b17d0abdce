"""The processes of a sandbox, and small plots of what it uses against its limits."""

from __future__ import annotations

from rich.text import Text
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from staddle.display import shown

from .sizes import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from .watched import WatchedSandbox

_BARS = " ▁▂▃▄▅▆▇█"


class ProcessPane(Vertical):
    """Plots above, a table of processes below; k ends one."""

    BINDINGS = [("k", "app.kill", "end it (SIGTERM)"), ("K", "app.kill_hard", "kill it (SIGKILL)")]
    DEFAULT_CSS = """
    ProcessPane { height: 1fr; }
    ProcessPane #plots { height: 4; padding: 0 1; }
    ProcessPane DataTable { height: 1fr; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pids: list[int] = []

    def compose(self) -> ComposeResult:
        yield Static("", markup=False, id="plots")
        yield DataTable(cursor_type="row", zebra_stripes=True, id="processes")

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns("pid", "state", "cpu s", "memory", "command")

    def show_usage(self, watched: WatchedSandbox) -> None:
        """Draw what is known now."""
        table = self.query_one(DataTable)
        row = table.cursor_row
        table.clear()
        self._pids = []
        for process in watched.processes:
            self._pids.append(process.pid)  # type: ignore[attr-defined]
            table.add_row(*_cells(process))
        if row < len(self._pids):
            table.move_cursor(row=row)
        self.query_one("#plots", Static).update(self._plots(watched))

    def _plots(self, watched: WatchedSandbox) -> Text:
        samples, sandbox = list(watched.samples), watched.sandbox
        limits = sandbox.plan.limits if sandbox is not None else None
        wide = max(10, self.size.width - 34)
        rows = (
            ("cpu", [s.cores for s in samples], getattr(limits, "cpu", None), _cores),
            ("memory", [s.memory for s in samples], getattr(limits, "memory", None), _size),
            ("disk", [s.disk for s in samples], getattr(limits, "disk", None), _size),
            ("processes", [s.processes for s in samples], getattr(limits, "processes", None), _count),
        )
        text = Text()
        for name, values, limit, say in rows:
            bound = limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None
            now = say(values[-1]) if values else "?"
            text.append(f"{name:<9} ", style="bold")
            text.append(plot(values[-wide:], bound).rjust(min(wide, 40)), style=_colour(values, bound))
            text.append(f" {now}")
            text.append(f" of {say(bound)}\n" if bound is not None else "\n", style="dim")
        text.rstrip()
        return text

    def chosen(self) -> int | None:
        """The number of the process that the cursor is on."""
        row = self.query_one(DataTable).cursor_row
        return self._pids[row] if 0 <= row < len(self._pids) else None


def _cells(process: object) -> tuple[Text, ...]:
    command = shown(process.command or f"[{process.name}]")  # type: ignore[attr-defined]
    return (
        Text(str(process.pid), style="bold"),  # type: ignore[attr-defined]
        Text(shown(process.state)),  # type: ignore[attr-defined]
        Text(f"{process.cpu:.1f}"),  # type: ignore[attr-defined]
        Text(size(process.memory)),  # type: ignore[attr-defined]
        Text(command[:300]),
    )


def _cores(count: float) -> str:
    return f"{count:.2f}"


def _size(count: float) -> str:
    return size(int(count))


def _count(count: float) -> str:
    return f"{count:.0f}"


def plot(values: Sequence[float], limit: float | None) -> str:
    """Values as a row of bars: against the limit, or against the largest of them."""
    top = max([*values, 1e-9]) if limit is None else limit
    return "".join(_BARS[max(value > 0, min(8, round(value / top * 8)))] for value in values)


def _colour(values: Sequence[float], limit: float | None) -> str:
    if not values or limit is None or values[-1] < 0.7 * limit:
        return "green"
    return "yellow" if values[-1] < 0.9 * limit else "bold red"
