"""The application: tabs, keys, the status bar. `actions` has its actions on sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import deque

from rich.text import Text
from textual import on
from textual.app import App
from textual.binding import Binding
from textual.events import Key
from textual.widgets import ContentSwitcher, Static

from ..display import counted, shown
from ..errors import StaddleError
from .actions import SandboxActions
from .command_pane import CommandPane
from .log_pane import LINES, lines_of
from .tab import PANES, SandboxTab, TabBar
from .terminal_pane import TerminalPane
from .watched import WatchedSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from textual.app import ComposeResult, SystemCommand
    from textual.events import Event, Resize
    from textual.screen import Screen

    from .. import Sandbox
    from .opening import SandboxOpening

#: In fewer columns the shell and the side are shown one at a time.
_NARROW = 100
#: Characters of the directory in the status bar.
_PATH = 30
#: Seconds for an orderly exit after a signal.
_LEAVING = 15.0


class TuiApp(SandboxActions, App[int], inherit_bindings=False):
    """`staddle tui`."""

    TITLE = "staddle"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    CSS = """
    Screen { layout: vertical; }
    #tabs { height: 1; background: $panel; display: none; }
    #status { height: 1; background: $panel; color: $text; }
    #all { height: 1fr; }
    .narrow SandboxTab #shell { width: 100%; height: 1fr; border: none; }
    .narrow SandboxTab #side { display: none; width: 100%; height: 1fr; }
    .narrow SandboxTab.side #shell { display: none; }
    .narrow SandboxTab.side #side { display: block; }
    """
    BINDINGS = [
        Binding("ctrl+p", "command_palette", "every action", priority=True),
        Binding("f1", "help", "help", priority=True),
        Binding("f2", "shell", "the shell; again: terminal or list", priority=True),
        *(Binding(key.lower(), f"pane('{name}')", name, priority=True) for name, key in PANES.items()),
        Binding("f8", "show_log", "log", priority=True),
        Binding("f9", "commit", "review and commit", priority=True),
        Binding("f10", "leave", "leave", priority=True),
        Binding("ctrl+pageup", "tab(-1)", "the tab before", priority=True),
        Binding("ctrl+pagedown", "tab(1)", "the next tab", priority=True),
        Binding("ctrl+shift+c,super+c", "copy", "copy what is selected", priority=True),
        Binding("question_mark", "help", "help"),
        Binding("q", "leave", "leave"),
        Binding("escape", "shell_again", "back to the shell"),
        Binding("tab", "app.focus_next", "the next pane"),
        Binding("shift+tab", "app.focus_previous", "the pane before"),
        Binding("t", "new_shell", "another shell"),
        Binding("T", "new_sandbox", "another sandbox"),
        Binding("W", "close_tab", "close the tab"),
        Binding("s", "snapshot", "take a snapshot"),
        Binding("c", "commit", "review and commit"),
    ]
    #: A full-screen program gets these keys itself.
    _FUNCTION_KEYS = frozenset(("help", "shell", "pane", "show_log", "commit", "leave"))

    def __init__(self, opening: SandboxOpening, *, vertical: bool = False) -> None:
        super().__init__()
        self.opening = opening
        self.feed = opening.feed
        self._vertical = vertical
        self.tabs: list[SandboxTab] = []
        self.current = 0
        self._numbers, self.fork_numbers = iter(range(1, 1 << 30)), iter(range(1, 1 << 30))
        #: (kind, text, when) of the log, for later tabs.
        self._lines: deque[tuple[str, str, float]] = deque(maxlen=LINES)
        self._wake_waits = False
        bindings = [each for each in self.BINDINGS if isinstance(each, Binding) and each.priority]
        self._ours = frozenset(key for each in bindings for key in each.key.split(","))

    # ------------------------------------------------------------ start and end

    def compose(self) -> ComposeResult:
        yield TabBar()
        yield ContentSwitcher(id="all")
        yield Static("", markup=False, id="status")

    async def on_mount(self) -> None:
        if _is_light():
            self.theme = "textual-light"
        self.feed.wake = self._wake
        self._end_on_signals()
        watched = self._watched(self.opening.label)
        watched.is_kept |= self.opening.keep is not None
        watched.before_close = self.opening.leave
        (await self._add_tab(watched, "main")).argv = self.opening.argv
        self.set_interval(0.5, self._tick)
        self.opening.when_open(lambda opened: self._from_thread(self._opened, watched, opened))
        self.call_after_refresh(self._first_pane)

    def _end_on_signals(self) -> None:
        """Exit in an orderly way after a signal, or when the terminal is gone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._leave_in_time, 128 + number)
            except (ValueError, RuntimeError):
                return  # not the main thread

        loop.add_signal_handler(signal.SIGCONT, self._take_terminal_back)

    def _take_terminal_back(self) -> None:
        """Set up the terminal and draw again, when a stopped process continues in the foreground.

        SIGSTOP leaves no time to give the terminal back, so textual, which only expects SIGTSTP, would start
        a second reader of the keys and draw nothing.
        """
        driver = self._driver
        try:
            if driver is None or os.tcgetpgrp(0) != os.getpgrp():
                return  # continued in the background: the next `fg` sends the signal again
        except OSError:
            return  # the terminal is gone
        driver.suspend_application_mode()
        driver.resume_application_mode()
        self.refresh(layout=True)

    def _leave_in_time(self, status: int) -> None:
        """Exit, at the latest after `_LEAVING`: textual waits forever for a terminal that is gone."""
        late = threading.Timer(_LEAVING, os._exit, (status,))
        late.daemon = True
        late.start()
        self.exit(status)

    async def _first_pane(self) -> None:
        tab = self.tab
        if tab is not None and not tab.side_pane("changes"):
            await tab.show_pane("changes", self.feed, focus=False)

    def _from_thread(self, call: Callable[..., object], *arguments: object) -> None:
        """Call it in the UI's thread, unless the UI has ended."""
        try:
            self._loop_call(call, *arguments)
        except RuntimeError:
            pass

    def _loop_call(self, call: Callable[..., object], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(lambda: self.call_later(call, *arguments))

    def _opened(self, watched: WatchedSandbox, opened: Sandbox | BaseException) -> None:
        """Handle an opened sandbox of a tab, or the error."""
        if isinstance(opened, BaseException):
            watched.error = str(opened)
            self.note("error", str(opened))
            for tab in self._tabs_of(watched):
                tab.terminal.sentence = shown(str(opened))
                tab.terminal.refresh()
            return
        watched.begin(opened)
        for tab in self._tabs_of(watched):
            self.start_shell(tab)
            tab.refresh_pane(tab.pane, self.feed)
        self._show_status()

    def start_shell(self, tab: SandboxTab) -> None:
        """Open a terminal for a tab, in a thread: opening may take long."""
        sandbox, argv = tab.watched.sandbox, tab.argv
        if sandbox is None:
            return
        tab.argv = None  # after its first program, a shell
        tab.commands.sandbox = sandbox
        rows, cols = max(1, tab.terminal.size.height), max(2, tab.terminal.size.width)
        rows, cols = (24, 80) if rows == 1 else (rows, cols)

        def work() -> None:
            try:
                terminal = sandbox.terminal(argv, rows=rows, cols=cols)
            except (StaddleError, OSError) as error:
                self._from_thread(self.note, "error", str(error))
                self._from_thread(tab.terminal.release)
                return
            program = "the shell" if argv is None else self.opening.program
            self._from_thread(self._attach_terminal, tab, terminal, program)

        threading.Thread(target=work, name="staddle-tui terminal", daemon=True).start()

    def _attach_terminal(self, tab: SandboxTab, terminal: object, program: str) -> None:
        if tab in self.tabs:
            before = tab.terminal.terminal
            tab.terminal.attach(terminal, program, getattr(terminal, "before", b""))  # type: ignore[arg-type]
            if before is not None:
                threading.Thread(target=before.close, daemon=True).start()
        else:
            terminal.close()  # type: ignore[attr-defined]

    def close_everything(self) -> None:
        """End every sandbox, after the UI has ended."""
        self.feed.close()
        for watched in {id(tab.watched): tab.watched for tab in self.tabs}.values():
            watched.close()

    # ------------------------------------------------------------ tabs

    @property
    def tab(self) -> SandboxTab | None:
        """The visible tab."""
        return self.tabs[min(self.current, len(self.tabs) - 1)] if self.tabs else None

    def _watched(self, label: str) -> WatchedSandbox:
        watched = WatchedSandbox(shown(label), lambda *told: self._from_thread(self._told, *told))
        watched.hidden = self.opening.hidden
        watched.is_kept = watched.is_attached = self.opening.is_attached
        watched.is_busy = lambda: any(tab.commands.running for tab in self._tabs_of(watched))
        return watched

    def _tabs_of(self, watched: WatchedSandbox) -> Iterator[SandboxTab]:
        return (tab for tab in self.tabs if tab.watched is watched)

    async def _add_tab(self, watched: WatchedSandbox, session: str) -> SandboxTab:
        number = next(self._numbers)
        timeout = self.opening.timeout
        tab = SandboxTab(watched, session, vertical=self._vertical, timeout=timeout, id=f"tab{number}")
        watched.users += 1
        self.tabs.append(tab)
        await self.query_one("#all", ContentSwitcher).mount(tab)
        for kind, text, when in self._lines:
            tab.log_pane.add(kind, text, when)
        self.show_tab(len(self.tabs) - 1)
        return tab

    async def add_tab(self, watched: WatchedSandbox, session: str) -> None:
        """Add a tab with a shell."""
        tab = await self._add_tab(watched, session)
        await tab.show_pane("changes", self.feed, focus=False)
        if watched.sandbox is not None:
            self.start_shell(tab)

    def show_tab(self, number: int) -> None:
        """Show the tab with that number."""
        if not 0 <= number < len(self.tabs):
            return
        self.current = number
        tab = self.tabs[number]
        self.query_one("#all", ContentSwitcher).current = tab.id
        self._show_tab_bar()
        tab.call_after_refresh(tab.focus_shell)
        self._show_status()

    def _show_tab_bar(self) -> None:
        labels = [
            tab.watched.label + ("" if tab.session == "main" else f":{tab.session}") for tab in self.tabs
        ]
        self.query_one(TabBar).show(labels, self.current)

    async def remove_tab(self, tab: SandboxTab) -> None:
        """Close a tab; the last tab of a sandbox closes the sandbox, too."""
        number = self.tabs.index(tab)
        terminal = tab.terminal.terminal
        tab.terminal.detach()
        self.tabs.remove(tab)
        tab.watched.users -= 1
        is_last, watched = tab.watched.users == 0, tab.watched

        def end() -> None:
            if terminal is not None:
                terminal.close()
            if is_last:
                watched.close()

        threading.Thread(target=end, daemon=True).start()
        await tab.remove()
        if not self.tabs:
            self.exit(0)
            return
        self.show_tab(min(number, len(self.tabs) - 1))

    def action_tab(self, step: int) -> None:
        self.show_tab((self.current + step) % len(self.tabs))

    # ------------------------------------------------------------ keys

    async def on_event(self, event: Event) -> None:
        """Pass a key for the terminal to it directly, bypassing the message queues."""
        if isinstance(event, Key) and event.key not in self._ours and len(self.screen_stack) == 1:
            focused = self.focused
            if isinstance(focused, TerminalPane):
                focused.on_key(event)
                return
        await super().on_event(event)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A full-screen program on the terminal gets the function keys; a screen on top has its own keys."""
        if len(self.screen_stack) > 1 and action in NOT_ON_TOP:
            return False
        focused = self.focused
        if action in self._FUNCTION_KEYS and isinstance(focused, TerminalPane):
            return not focused.emulator.is_alternate
        return True

    def action_help(self) -> None:
        from .screens import HelpScreen

        self.push_screen(HelpScreen())

    def action_shell(self) -> None:
        if self.tab is not None:
            self.tab.focus_shell(toggle=True)

    def action_shell_again(self) -> None:
        if self.tab is not None:
            self.tab.focus_shell()

    async def action_pane(self, name: str) -> None:
        tab = self.tab
        if tab is not None:
            is_again = tab.pane == name == "snapshots" and tab.is_in_side
            await tab.show_pane("timeline" if is_again else name, self.feed)

    def show_pane(self, name: str) -> None:
        """Show a side pane."""
        self.call_later(self.action_pane, name)

    def action_show_log(self) -> None:
        tab = self.tab
        if tab is None:
            return
        tab.is_in_side = True
        tab.add_class("side")
        tab.toggle_class("log-large")
        tab.log_pane.focus()

    def action_copy(self) -> None:
        text = self.screen.get_selected_text()
        if text:
            self.copy_to_clipboard(text)
            self.notify("copied", timeout=1, markup=False)

    def action_toggle_theme(self) -> None:
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_toggle_split(self) -> None:
        self._vertical = not self._vertical
        for tab in self.tabs:
            tab.set_class(self._vertical, "vertical")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every action, for the palette."""
        from textual.app import SystemCommand

        for title, help_text, action in PALETTE:
            yield SystemCommand(title, help_text, lambda action=action: self.run_action(action))
        yield SystemCommand("Theme…", "choose colours", self.action_change_theme)

    def on_resize(self, event: Resize) -> None:
        self.screen.set_class(event.size.width < _NARROW, "narrow")

    # ------------------------------------------------------------ events

    def _wake(self) -> None:
        """Handle new items in the feed; called from any thread."""
        if not self._wake_waits:
            self._wake_waits = True
            self._from_thread(self._take)

    def _take(self) -> None:
        self._wake_waits = False
        for record in self.feed.take()[-LINES:]:
            for kind, text in lines_of(record):
                self.note(kind, text, record.get("at"))
        self._show_questions()
        self._show_status()

    def note(self, kind: str, text: str, when: float | None = None) -> None:
        """Add a line to the log."""
        at = time.time() if when is None else when
        self._lines.append((kind, text, at))
        for tab in self.tabs:
            tab.log_pane.add(kind, text, at)

    def _told(self, watched: WatchedSandbox, what: str) -> None:
        """Show a change that the thread of a sandbox found."""
        if what == "lost":
            self.note("error", f"the sandbox has stopped: {watched.error}")
            what = "changes"
        if what == "changes":
            self._note_changes(watched)
        for tab in self._tabs_of(watched):
            tab.refresh_pane("changes" if what == "marks" else what, self.feed)
        self._show_status()

    def _note_changes(self, watched: WatchedSandbox) -> None:
        now = {(str(change.kind), change.path) for change in watched.changes}
        before, watched.noted = watched.noted, now
        fresh = sorted(now - before, key=lambda item: item[1])
        for kind, path in fresh[:8]:
            self.note("file", f"{kind} {path}")
        if len(fresh) > 8:
            self.note("file", f"and {len(fresh) - 8:,} more")

    def _show_questions(self) -> None:
        questions = self.feed.questions()
        if questions and self.tab is not None and self.tab.pane != "network":
            self.notify(
                f"{shown(questions[0].event.what)} waits for an answer: F5", severity="warning", markup=False
            )
            self.call_later(self._show_network)
        for tab in self.tabs:
            tab.refresh_pane("network", self.feed)

    async def _show_network(self) -> None:
        if self.tab is not None:
            await self.tab.show_pane("network", self.feed, focus=False)

    def _tick(self) -> None:
        for tab in self.tabs:
            tab.terminal.notice_end()
            tab.count_commands()
        if self.feed.questions():
            for tab in self.tabs:
                tab.refresh_pane("network", self.feed)
        self._show_status()

    def _show_status(self) -> None:
        if self.is_running and self.query("#status"):
            self.query_one("#status", Static).update(self._status())

    def _status(self) -> Text:
        tab = self.tab
        text = Text(no_wrap=True, overflow="ellipsis")
        if tab is None:
            return text
        watched, sandbox = tab.watched, tab.watched.sandbox
        text.append(f" {shown(_short(self.opening.directory))} ", style="bold")
        if sandbox is None:
            text.append(
                "not open " if watched.error else "opening … ", style="red" if watched.error else "yellow"
            )
        else:
            enforced = sandbox.enforced
            style = "green" if not any(not gap.documented for gap in enforced.gaps) else "bold red"
            style = "bold red" if enforced.backend == "native" or not sandbox.alive else style
            said = enforced.backend if sandbox.alive else "ended"
            text.append(f"│ {said}, network {sandbox.plan.network.mode} ", style=style)
        text.append(f"│ {counted(tab.count_commands(), 'command')} ")
        is_running = tab.has_running()
        text.append("│ running " if is_running else "│ idle ", style="yellow" if is_running else "dim")
        text.append(f"│ {counted(len(watched.changes), 'change')} ")
        if self.feed.questions():
            text.append("│ a connection waits: F5 ", style="bold yellow reverse")
        text.append("│ F1 help  ^P actions", style="dim")
        return text

    # ------------------------------------------------------------ messages of panes

    @on(TerminalPane.Ended)
    def _shell_ended(self, event: TerminalPane.Ended) -> None:
        status = f" with status {event.status}" if event.status else ""
        self.note("sandbox", f"{event.pane.program} has ended{status}")

    @on(TerminalPane.Restart)
    def _restart_shell(self, event: TerminalPane.Restart) -> None:
        for tab in self.tabs:
            if tab.terminal is event.pane:
                self.start_shell(tab)

    @on(TerminalPane.Printed)
    def _printed(self) -> None:
        if self.tab is not None:
            self.tab.watched.look()

    @on(CommandPane.Done)
    def _command_done(self) -> None:
        if self.tab is not None:
            self.tab.watched.wants_point = True
            self.tab.watched.look()

    @on(CommandPane.Leave)
    async def _leave(self) -> None:
        await self.run_action("leave")


def _short(path: str) -> str:
    home = os.path.expanduser("~")
    short = f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path
    return short if len(short) <= _PATH else f"…{short[1 - _PATH :]}"


def _is_light() -> bool:
    """Whether the terminal reports a light background (COLORFGBG, as set by rxvt and others)."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


# Data: the actions of the palette, and the actions disabled while another screen is on top.


#: Actions that do nothing while a question, the help or a review is on top.
NOT_ON_TOP = frozenset(
    (
        "help",
        "shell",
        "pane",
        "show_log",
        "commit",
        "leave",
        "tab",
        "shell_again",
        "new_shell",
        "new_sandbox",
        "close_tab",
        "snapshot",
    )
)
#: (title, help, action) of every action in the palette.
PALETTE = (
    ("Help", "the keys", "help"),
    ("Shell", "terminal, or the list of commands", "shell"),
    ("Changes", "what differs from the host", "pane('changes')"),
    ("Snapshots", "the tree of snapshots", "pane('snapshots')"),
    ("Timeline", "the commands that changed files, with undo and redo", "pane('timeline')"),
    ("Undo a command", "take back the last command that changed files", "step(-1)"),
    ("Redo a command", "do again what was undone", "step(1)"),
    ("Network", "attempts, and connections that wait", "pane('network')"),
    ("Processes", "what runs, and what it uses", "pane('processes')"),
    ("Policy", "what is allowed, and why", "pane('policy')"),
    ("Log", "the last 1,000 lines", "show_log"),
    ("Commit…", "review the changes, and write them to the host", "commit"),
    ("Discard changes…", "drop all changes; undo brings them back", "discard"),
    ("Undo discard", "restore the snapshot from before the last discard", "undo_discard"),
    ("Take a snapshot…", "save this moment under a label", "snapshot"),
    ("Fork", "a second sandbox that continues from here, in a new tab", "fork_now"),
    ("New shell", "another shell of this sandbox, in a new tab", "new_shell"),
    ("New sandbox", "another sandbox of the same directory, in a new tab", "new_sandbox"),
    ("Close tab", "end this shell", "close_tab"),
    ("Interrupt", "end the commands that run", "interrupt"),
    ("Look again", "read changes and processes now", "look"),
    ("Copy selection", "copy what the mouse has selected", "copy"),
    ("Light or dark", "the other colours", "toggle_theme"),
    ("Split the other way", "side by side, or one above the other", "toggle_split"),
    ("Leave", "end everything; kept work stays", "leave"),
)
