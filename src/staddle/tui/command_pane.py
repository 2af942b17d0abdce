"""The second mode of the shell: a list of commands with status, time and output, and an input line."""

from __future__ import annotations

import threading
import time

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Static

from staddle.display import counted, shown, shown_block
from staddle.errors import StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events
    from textual.app import ComposeResult

    from staddle import Result, Sandbox

#: Commands to keep, lines of output to show unfolded, characters of output to keep.
_COMMANDS, _LINES, _LETTERS = 200, 200, 1 << 16


class CommandEntry(Static, can_focus=True):
    """One command. Enter, or a click, folds its output."""

    BINDINGS = [("enter", "fold", "fold or unfold")]

    def __init__(self, command: str) -> None:
        super().__init__(markup=False)
        self.command = command
        self.began = time.monotonic()
        self.result: Result | None = None
        self.failure = ""
        self.is_folded = False
        self._output = ""
        self._dropped = False
        self._lock = threading.Lock()

    def add_output(self, text: str) -> None:
        """Add output, from the thread that runs the command; keeps the end."""
        with self._lock:
            self._output += text[-_LETTERS:]
            if len(self._output) > 2 * _LETTERS:
                self._dropped = True
                self._output = self._output[-_LETTERS:]

    def show(self) -> None:
        """Draw its current state."""
        line = Text("$ ", style="bold cyan")
        line.append(shown(self.command), style="bold")
        if self.failure:
            line.append(f"  {shown(self.failure)}", style="bold red")
        elif self.result is None:
            line.append(f"  running {time.monotonic() - self.began:.0f} s", style="yellow")
        else:
            style = "green" if self.result.ok else "bold red"
            why = "" if str(self.result.reason) == "exited" else f" {self.result.reason}"
            line.append(f"  exit {self.result.exit_code}{why}, {self.result.duration:.2f} s", style=style)
        with self._lock:
            output, dropped = self._output[-_LETTERS:], self._dropped
        lines = shown_block(output).rstrip("\n").split("\n") if output else []
        if self.is_folded and lines:
            line.append(f"  [{counted(len(lines), 'line')} folded]", style="dim")
        else:
            if dropped or len(lines) > _LINES:
                line.append(f"\n… only the last {counted(min(len(lines), _LINES), 'line')}", style="dim")
            for text in lines[-_LINES:]:
                line.append(f"\n{text}")
        self.update(line)

    def action_fold(self) -> None:
        self.is_folded = not self.is_folded
        self.show()

    def on_click(self) -> None:
        self.action_fold()


class CommandPane(Vertical):
    """Runs the commands of one session, one at a time, each in a thread."""

    DEFAULT_CSS = """
    CommandPane { height: 1fr; }
    CommandPane VerticalScroll { height: 1fr; }
    CommandPane CommandEntry { height: auto; }
    CommandPane CommandEntry:focus { background: $boost; }
    CommandPane Input { border: none; height: 1; padding: 0 1; }
    """

    class Done(Message):
        """A command has ended."""

    class Leave(Message):
        """The user typed Ctrl-C while no command was running."""

    def __init__(self, session: str, *, timeout: float | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sandbox: Sandbox | None = None
        self._session, self._timeout = session, timeout
        self.running: CommandEntry | None = None
        self.history: list[str] = []
        self._at = 0
        self.count = 0

    def compose(self) -> ComposeResult:
        yield VerticalScroll(id="commands", can_focus=False)
        yield Input(placeholder="a command; Ctrl-C ends it", id="command")

    def on_mount(self) -> None:
        self.set_interval(0.25, self._show_running)

    def _show_running(self) -> None:
        if self.running is not None and self.is_on_screen:
            self.running.show()

    @property
    def is_on_screen(self) -> bool:
        """Whether it is visible."""
        return bool(self.display and self.size.height)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        command = event.value.strip()
        if not command or self.sandbox is None:
            return
        if self.running is not None:
            self.notify("a command is running; Ctrl-C ends it", severity="warning", markup=False)
            return
        event.input.value = ""
        self.run(command)

    def run(self, command: str) -> None:
        """Run a command; its entry shows the output."""
        sandbox = self.sandbox
        if sandbox is None:
            return
        self.history.append(command)
        del self.history[:-_COMMANDS]
        self._at = len(self.history)
        self.count += 1
        entry = self.running = CommandEntry(command)
        listed = self.query_one("#commands", VerticalScroll)
        listed.mount(entry)
        for old in list(listed.children)[:-_COMMANDS]:
            old.remove()
        entry.show()
        listed.scroll_end(animate=False)
        done = self.app.call_from_thread

        def work() -> None:
            try:
                session = sandbox.session(self._session)
                entry.result = session.run(
                    command, timeout=self._timeout, on_stdout=entry.add_output, on_stderr=entry.add_output
                )
            except (StaddleError, OSError) as error:
                entry.failure = str(error)
            _quietly(done, self._ended, entry)

        threading.Thread(target=work, name="staddle-tui command", daemon=True).start()

    def _ended(self, entry: CommandEntry) -> None:
        self.running = None
        entry.show()
        self.query_one("#commands", VerticalScroll).scroll_end(animate=False)
        self.post_message(self.Done())

    def interrupt(self) -> bool:
        """End the running command; False if there is none."""
        sandbox, entry = self.sandbox, self.running
        if sandbox is None or entry is None:
            return False
        session = self._session

        def end() -> None:
            try:
                sandbox.session(session).interrupt()
            except StaddleError:
                pass

        threading.Thread(target=end, daemon=True).start()
        return True

    def on_key(self, event: events.Key) -> None:
        line = self.query_one("#command", Input)
        if event.key == "ctrl+c":
            event.stop()
            event.prevent_default()
            if not self.interrupt():
                self.post_message(self.Leave())
        elif event.key in ("up", "down") and line.has_focus and self.history:
            event.stop()
            self._at = max(0, min(len(self.history), self._at + (1 if event.key == "down" else -1)))
            line.value = self.history[self._at] if self._at < len(self.history) else ""
            line.cursor_position = len(line.value)


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except RuntimeError:
        pass  # the UI has ended meanwhile
