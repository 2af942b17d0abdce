"""The side panes: processes and plots of usage against limits, snapshots, network, policy."""

from __future__ import annotations

import time

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Static, Tree

from ..display import counted, shown
from .sizes import age, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.app import ComposeResult
    from textual.widgets.tree import TreeNode

    from .. import Event, Sandbox, Snapshot
    from .log_pane import ConnectionQuestion
    from .watched import WatchedSandbox

_BARS = " ▁▂▃▄▅▆▇█"


class ProcessPane(Vertical):
    """Plots above, a table of processes below; k ends a process."""

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
        """Draw the current usage."""
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
        """The number of the process under the cursor."""
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
    """Values as a row of bars, relative to the limit or the largest value."""
    top = max([*values, 1e-9]) if limit is None else limit
    return "".join(_BARS[max(value > 0, min(8, round(value / top * 8)))] for value in values)


def _colour(values: Sequence[float], limit: float | None) -> str:
    if not values or limit is None or values[-1] < 0.7 * limit:
        return "green"
    return "yellow" if values[-1] < 0.9 * limit else "bold red"


# The snapshots of a sandbox as a tree: take, restore, fork into a new tab, compare two.


class SnapshotPane(Tree[object]):
    """The tree of snapshots, each with its label and age."""

    BINDINGS = [
        ("s", "app.snapshot", "take one"),
        ("enter", "app.restore", "restore"),
        ("f", "app.fork", "fork into a tab"),
        ("m", "mark", "mark to compare"),
        ("x", "app.compare", "compare with the marked one"),
        ("delete", "app.forget_snapshot", "delete"),
    ]
    DEFAULT_CSS = "SnapshotPane { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(Text("no snapshots; s takes one", style="dim"), id=id)
        self.guide_depth = 2
        self.auto_expand = False
        self.marked: Snapshot | None = None
        self._shown: list[Snapshot] = []

    def show_snapshots(self, snapshots: list[Snapshot]) -> None:
        """Draw the snapshots, each below its parent."""
        self._shown = [each for each in snapshots if not each.closed]
        chosen = self.chosen()
        self.clear()
        some = counted(len(self._shown), "snapshot") if self._shown else "no snapshots; s takes one"
        self.root.set_label(Text(some, style="bold" if self._shown else "dim"))
        nodes: dict[int, TreeNode[object]] = {}
        again: TreeNode[object] | None = None
        for snapshot in self._shown:
            parent = nodes.get(id(snapshot.parent), self.root)
            node = parent.add(self._label(snapshot), data=snapshot, expand=True)
            nodes[id(snapshot)] = node
            if snapshot is chosen:
                again = node
        self.root.expand()
        if again is not None:
            self.call_after_refresh(self.move_cursor, again)

    def _label(self, snapshot: Snapshot) -> Text:
        text = Text("● " if snapshot is self.marked else "○ ", style="yellow")
        text.append(shown(snapshot.label) or "(no label)", style="bold")
        text.append(f"  {age(snapshot.created)} ago", style="dim")
        return text

    def chosen(self) -> Snapshot | None:
        """The snapshot under the cursor."""
        node = self.cursor_node
        return node.data if node is not None and node.data is not None else None  # type: ignore[return-value]

    def action_mark(self) -> None:
        self.marked = self.chosen()
        self.show_snapshots(self._shown)


# Every attempted connection, allowed or refused, with its rule; and the waiting connections.


class NetworkPane(DataTable[Text]):
    """One row per attempted connection; connections that wait for an answer come first."""

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
        """Draw the events, newest first."""
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
        """The row under the cursor."""
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    def action_search(self) -> None:
        from .changes_pane import SearchScreen

        def searched(word: str | None) -> None:
            if word is not None:
                self._search = word.lower()
                self.show_events(*self._last)

        self.app.push_screen(SearchScreen(self._search), searched)


# The policy with the reason for each grant, as `staddle explain` prints it; searchable.


class PolicyPane(VerticalScroll, can_focus=True):
    """The plan, section by section, and the gaps."""

    BINDINGS = [("slash", "search", "search")]
    DEFAULT_CSS = "PolicyPane { height: 1fr; padding: 0 1; } PolicyPane Static { width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._sandbox: Sandbox | None = None
        self._search = ""

    def compose(self) -> ComposeResult:
        yield Static("", markup=False, id="policy")

    def show_policy(self, sandbox: Sandbox) -> None:
        """Draw the plan of this sandbox."""
        self._sandbox = sandbox
        self.query_one("#policy", Static).update(self._text(sandbox))

    def _text(self, sandbox: Sandbox) -> Text:
        enforced = sandbox.enforced
        text = Text("")
        sections = [("backend", [(enforced.backend, enforced.why)]), *sandbox.plan.explain()]
        sections.append(
            ("cannot be enforced here", [(f"{g.protection}: {g.why}", g.fix) for g in enforced.gaps])
        )
        word = self._search.lower()
        for heading, rows in sections:
            found = [row for row in rows if word in f"{heading} {row[0]} {row[1]}".lower()]
            if not found:
                continue
            text.append(f"{heading}\n", style="bold cyan")
            for what, origin in found:
                text.append(f"  {shown(what)}")
                text.append(f"  {shown(origin)}\n" if origin else "\n", style="dim")
        if word and not text.plain:
            text.append(f"nothing has {shown(self._search)!r} in it", style="dim")
        return text

    def action_search(self) -> None:
        from .changes_pane import SearchScreen

        def searched(word: str | None) -> None:
            if word is not None and self._sandbox is not None:
                self._search = word
                self.show_policy(self._sandbox)

        self.app.push_screen(SearchScreen(self._search), searched)
