"""One tab: a shell on one side, and on the other the panes about its sandbox, and the log."""

from __future__ import annotations

import time

from textual.containers import Container, Vertical
from textual.widgets import ContentSwitcher, Static

from .command_pane import CommandPane
from .log_pane import LogPane
from .terminal_pane import TerminalPane

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.events import Click, DescendantFocus
    from textual.widget import Widget

    from .log_pane import EventFeed
    from .watched import WatchedSandbox

#: The side panes by name, with their keys. F4 again shows the timeline.
PANES = {"changes": "F3", "snapshots": "F4", "network": "F5", "processes": "F6", "policy": "F7"}
#: Seconds after a line at the prompt in which its changes become a point: bash begins with it a bit later.
_LOOKS = 1.2
#: Their labels, and shorter ones: with the numbers of the F keys they must fit into 40 of 100 columns.
_LABELS = (
    ("changes", "snapshots", "network", "usage", "policy"),
    ("changes", "snaps", "net", "usage", "policy"),
)


class TabBar(Static):
    """The tabs; a click selects one."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="tabs")
        self._ends: list[tuple[int, int]] = []

    def show(self, labels: list[str], current: int) -> None:
        """Draw the tabs. A single tab needs no bar."""
        from rich.text import Text

        self.display = len(labels) > 1
        text, self._ends = Text(), []
        for number, label in enumerate(labels):
            text.append(f" {number + 1} {label} ", style="bold reverse" if number == current else "")
            text.append("│", style="dim")
            self._ends.append((len(text), number))
        self.update(text)

    def on_click(self, event: Click) -> None:
        for end, number in self._ends:
            if event.x < end:
                self.app.show_tab(number)  # type: ignore[attr-defined]
                return


def labels_within(width: int) -> tuple[tuple[str, ...], int]:
    """The labels of the panes, and the spaces between two of them, in this number of columns."""
    for labels in _LABELS:
        for gap in (3, 2, 1):
            if sum(len(label) + 2 + gap for label in labels) - gap <= width:
                return labels, gap
    return _LABELS[-1], 1


class PaneNames(Static):
    """The names of the side panes; a click shows one."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="names")
        self._ends: list[tuple[int, str]] = []
        self._current = ""

    def show(self, current: str) -> None:
        """Draw the names, with `current` marked."""
        from rich.text import Text

        self._current = current
        labels, gap = labels_within(self.size.width)
        text, self._ends = Text(no_wrap=True), []
        for label, (name, key) in zip(labels, PANES.items(), strict=True):
            text.append(f"{key[1:]} ", style="dim")
            is_current = name == current or (name, current) == ("snapshots", "timeline")
            text.append(label, style="bold reverse" if is_current else "")
            text.append(" " * gap)
            self._ends.append((len(text), name))
        self.update(text)

    def on_resize(self) -> None:
        self.show(self._current)

    def on_click(self, event: Click) -> None:
        for end, name in self._ends:
            if event.x < end:
                self.app.show_pane(name)  # type: ignore[attr-defined]
                return


class SandboxTab(Container):
    """A shell and the panes about its sandbox. `session` is the session of its command list."""

    DEFAULT_CSS = """
    SandboxTab { height: 1fr; layout: horizontal; }
    SandboxTab.vertical { layout: vertical; }
    SandboxTab #shell { width: 60%; height: 1fr; border-right: tall $panel; }
    SandboxTab #side { width: 40%; height: 1fr; }
    SandboxTab.vertical #shell { width: 100%; height: 60%; border-right: none; border-bottom: tall $panel; }
    SandboxTab.vertical #side { width: 100%; height: 40%; }
    SandboxTab #names { height: 1; background: $panel; }
    SandboxTab #panes { height: 1fr; }
    SandboxTab #log { height: 35%; border-top: solid $panel; }
    SandboxTab.log-large #panes { display: none; }
    SandboxTab.log-large #log { height: 1fr; }
    """

    def __init__(
        self, watched: WatchedSandbox, session: str, *, vertical: bool, timeout: float | None, id: str
    ) -> None:
        super().__init__(id=id, classes="vertical" if vertical else "")
        self.watched, self.session = watched, session
        self.terminal = TerminalPane(id="terminal")
        self.commands = CommandPane(session, timeout=timeout, id="list")
        self.log_pane = LogPane(id="log")
        #: The program of its first terminal; None for a shell.
        self.argv: Sequence[str] | None = None
        self.pane = "changes"
        self.was_busy = False
        self._entered, self._looks_until = 0, 0.0
        #: The user went to the side last. Textual moves the focus later: the next key may come before.
        self.is_in_side = False

    def compose(self) -> ComposeResult:
        with ContentSwitcher(initial="terminal", id="shell"):
            yield self.terminal
            yield self.commands
        with Vertical(id="side"):
            yield PaneNames()
            yield ContentSwitcher(id="panes")
            yield self.log_pane

    def on_mount(self) -> None:
        self.query_one(PaneNames).show(self.pane)
        self.terminal.focus()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Learn where a click or Tab went."""
        self.is_in_side = self.query_one("#side") in event.widget.ancestors

    # ------------------------------------------------------------ the shell

    @property
    def is_list(self) -> bool:
        """Whether the list of commands is visible instead of the terminal."""
        return self.query_one("#shell", ContentSwitcher).current == "list"

    def focus_shell(self, *, toggle: bool = False) -> None:
        """Focus what was used last of terminal and list. If it has the focus and `toggle` is set, switch."""
        was_in_side, self.is_in_side = self.is_in_side, False
        self.remove_class("side")
        switcher = self.query_one("#shell", ContentSwitcher)
        focused = self.screen.focused
        has_focus = focused is not None and switcher in focused.ancestors
        if toggle and has_focus and not was_in_side:
            switcher.current = "terminal" if self.is_list else "list"
        if self.is_list:
            self.commands.query_one("#command").focus()
        else:
            self.terminal.focus()

    def has_running(self) -> bool:
        """Whether a command runs in the shell."""
        return self.commands.running is not None or self.terminal.is_busy()

    def count_commands(self) -> int:
        """Number of commands in this tab: in the list, and lines entered at the prompt."""
        busy, entered = self.terminal.is_busy(), self.terminal.entered
        if entered != self._entered or self.was_busy:
            self._entered, self._looks_until = entered, time.monotonic() + _LOOKS
        if self.was_busy and not busy:
            self.watched.look()
        if not busy and time.monotonic() < self._looks_until:
            self.watched.wants_point = True
        self.was_busy = busy
        return self.commands.count + entered

    # ------------------------------------------------------------ the side

    async def show_pane(self, name: str, feed: EventFeed, *, focus: bool = True) -> None:
        """Show a pane; it is created on first use."""
        switcher = self.query_one("#panes", ContentSwitcher)
        if not switcher.query(f"#{name}"):
            await switcher.mount(_made(name))
        switcher.current = name
        self.pane = name
        self.remove_class("log-large")
        self.query_one(PaneNames).show(name)
        self.watched.wants_processes = name == "processes"
        self.watched.wants_point |= name == "timeline"
        if name in ("processes", "timeline"):
            self.watched.look()
        self.refresh_pane(name, feed)
        if focus:
            self.is_in_side = True
            self.add_class("side")
            target = switcher.query_one(f"#{name}")
            (target.query_one("DataTable") if name == "processes" else target).focus()

    def refresh_pane(self, name: str, feed: EventFeed) -> None:
        """Redraw a pane if it is visible."""
        found = self.query(f"#panes > #{name}")
        if name != self.pane or not found:
            return
        pane: Widget = found.first()
        watched = self.watched
        if name == "changes":
            pane.show_changes(watched.changes, watched.change_error, watched.marks)  # type: ignore[attr-defined]
        elif name == "snapshots":
            pane.show_snapshots(watched.snapshots)  # type: ignore[attr-defined]
        elif name == "timeline":
            pane.show_points(watched)  # type: ignore[attr-defined]
        elif name == "network":
            pane.show_events(watched.events, feed.questions())  # type: ignore[attr-defined]
        elif name == "processes":
            pane.show_usage(watched)  # type: ignore[attr-defined]
        elif watched.sandbox is not None:
            pane.show_policy(watched.sandbox)  # type: ignore[attr-defined]

    def side_pane(self, name: str) -> Widget | None:
        """A pane, if it was shown before."""
        found = self.query(f"#panes > #{name}")
        return found.first() if found else None


def _made(name: str) -> Widget:
    # Import each on first use, so that the first prompt does not wait for them.
    if name == "changes":
        from .changes_pane import ChangesPane

        return ChangesPane(id=name)
    if name == "snapshots":
        from .process_pane import SnapshotPane

        return SnapshotPane(id=name)
    if name == "timeline":
        from .timeline_pane import TimelinePane

        return TimelinePane(id=name)
    if name == "network":
        from .process_pane import NetworkPane

        return NetworkPane(id=name)
    if name == "processes":
        from .process_pane import ProcessPane

        return ProcessPane(id=name)
    from .process_pane import PolicyPane

    return PolicyPane(id=name)
