"""Screens on top of the others: help, a question, a name, the review of a commit."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, SelectionList, Static
from textual.widgets.selection_list import Selection

from staddle.display import counted, shown

from .changes_pane import label_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rich.console import RenderableType
    from textual.app import ComposeResult

    from staddle import Change

_KEYS = """\
Everywhere, also in the terminal (a full-screen program there gets the F keys itself)
  F1          this help                        Ctrl-P      every action, by name
  F2          the shell; again: terminal or list of commands
  F3 F4 F5    changes, snapshots, network      F6 F7 F8    processes, policy, log
  F9          review and commit                F10         leave
  Ctrl-PgUp   the tab before                   Ctrl-PgDn   the next tab
Terminal
  everything else is the program's, Ctrl-C too
  Shift-PgUp, Shift-PgDn, wheel   older and newer lines
  mouse       select text; Ctrl-Shift-C, or `copy` in the palette, copies it
List of commands
  Enter       run; on a command: fold          Up, Down    history
  Ctrl-C      end the command that runs, else leave
Other panes
  Tab         the next one                     Esc         back to the shell
  /           search                           ?           this help
  q           leave; asks if there is uncommitted work, which k keeps under a name
Changes       Enter diff · c commit · d discard one · D discard all · u undo · r look again
Snapshots     s take · Enter restore · f fork · m mark · x compare with the marked one · Del delete
Timeline      (F4 again) u undo · r redo · g go to this point · Enter its changes
Network       a allow for this session · n refuse · w write to the policy file
Processes     k end · K kill
Tabs          t another shell · T another sandbox · W close the tab"""


class HelpScreen(ModalScreen[None]):
    """The keys."""

    BINDINGS = [("escape,q,f1,question_mark", "dismiss(None)", "leave")]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll { width: 90; max-width: 98%; height: auto; max-height: 96%;
        border: round $primary; background: $surface; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(Static(_KEYS, markup=False))
        scroll.border_title = "Keys"
        yield scroll


class ConfirmScreen(ModalScreen[str]):
    """A question with yes and no, and with `can_keep` a third answer. Enter means no, unless Tab moved."""

    BINDINGS = [("y", "answer('yes')", "yes"), ("n,escape", "answer('no')", "no"), ("k", "keep", "keep")]
    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen > Vertical { width: 64; max-width: 98%; height: auto; border: round $warning;
        background: $surface; padding: 0 1; }
    ConfirmScreen Horizontal { height: auto; align-horizontal: right; }
    ConfirmScreen Button { margin: 0 1; }
    """

    def __init__(self, question: str, yes: str = "Yes", *, can_keep: bool = False) -> None:
        super().__init__()
        self._question, self._yes, self._can_keep = question, yes, can_keep

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            with Horizontal():
                yield Button("No (n)", id="no", compact=True)
                if self._can_keep:
                    yield Button("Keep as… (k)", id="keep", compact=True)
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or "no")

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    def action_keep(self) -> None:
        if self._can_keep:
            self.dismiss("keep")


class TextScreen(ModalScreen[None]):
    """A text to read."""

    BINDINGS = [("escape,q", "dismiss(None)", "leave")]
    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen VerticalScroll { width: 90%; height: auto; max-height: 90%; border: round $primary;
        background: $surface; padding: 0 1; }
    """

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(self._text, markup=False))


class CommitChoice:
    """The user's choice: paths to commit (None: all), names to allow, conflicts to overwrite."""

    def __init__(self, paths: list[str] | None, allow: list[str], overwrite: set[str], count: int) -> None:
        self.paths, self.allow, self.overwrite, self.count = paths, allow, overwrite, count


#: With more changes, the user picks whole directories instead of files.
MOST_ROWS = 1000
#: Changes of a directory of which the diffs are shown.
_MOST_DIFFS = 20


class ReviewScreen(ModalScreen[CommitChoice | None]):
    """The changes with a check box each, and the diff of the one under the cursor.

    Changes that need approval are unchecked, with the reason.
    """

    BINDINGS = [
        ("escape,q", "dismiss(None)", "leave"),
        ("c", "commit", "commit what is chosen"),
        ("a", "all", "choose all that are not refused"),
        ("n", "none", "choose nothing"),
        ("v", "diff", "show the diff on the whole screen"),
    ]
    DEFAULT_CSS = """
    ReviewScreen { align: center middle; }
    ReviewScreen > Vertical { width: 96%; height: 94%; border: round $primary; background: $surface; }
    ReviewScreen SelectionList { height: auto; max-height: 40%; border: none; }
    ReviewScreen VerticalScroll { height: 1fr; border-top: solid $panel; padding: 0 1; }
    ReviewScreen VerticalScroll:focus { border-top: solid $primary; }
    ReviewScreen #diff { width: auto; }
    ReviewScreen #heading, ReviewScreen #keys { height: auto; padding: 0 1; }
    """

    def __init__(self, review: Any, root: str, target: str) -> None:
        super().__init__()
        self._changes: list[Change] = list(review.changes)
        self._root, self._target = root.rstrip("/"), target
        self._conflicts = {item.path: item.why for item in review.conflicts}
        self._held = {item.path: item.why for item in (*review.held, *review.refused)}
        self._left_out = list(review.left_out)
        self._rows = self._grouped()
        self._at_cursor = ""

    def _below(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def _objection(self, path: str) -> str:
        why = self._conflicts.get(path)
        if why is not None:
            return f"conflict: {why}"
        return f"refused: {self._held[path]}" if path in self._held else ""

    def _grouped(self) -> dict[str, list[Change]]:
        """The changes by the path of their row."""
        rows: dict[str, list[Change]] = {}
        for change in self._changes:
            path = self._below(change.path)
            if len(self._changes) > MOST_ROWS and not self._objection(path):
                path = path.partition("/")[0]
            rows.setdefault(path, []).append(change)
        return rows

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._heading(), markup=False, id="heading")
            yield SelectionList[str](*self._selections(), id="rows")
            yield VerticalScroll(Static("", markup=False, id="diff"))
            keys = "Space choose · a all · n none · Tab scroll the diff · v larger · c commit · Esc leave"
            yield Static(Text(keys, style="dim"), markup=False, id="keys")

    def on_mount(self) -> None:
        self.query_one(SelectionList).focus()

    def on_selection_list_selection_highlighted(self, event: SelectionList.SelectionHighlighted[str]) -> None:
        """Show the diff of the row under the cursor."""
        path = self._at_cursor = str(event.selection.value)
        self.run_worker(lambda: self._read(path), thread=True, exit_on_error=False)

    def _read(self, path: str) -> None:
        changes = self._rows[path][:_MOST_DIFFS]
        texts = [(change.text_diff(), change) for change in changes if path == self._at_cursor]
        self.app.call_from_thread(self._show_diff, path, texts)

    def _show_diff(self, path: str, texts: list[tuple[str, Change]]) -> None:
        from .changes_pane import unified

        if path != self._at_cursor or not self.is_attached:
            return
        parts: list[RenderableType] = [unified(text, change.path) for text, change in texts if text]
        if not parts:
            parts = [Text("it has no text to show", style="dim")]
        if len(self._rows[path]) > len(texts):
            parts.append(Text(f"and {len(self._rows[path]) - len(texts):,} more", style="dim"))
        self.query_one("#diff", Static).update(Group(*parts))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def _heading(self) -> Text:
        text = Text(f"Commit {counted(len(self._changes), 'change')} to {shown(self._target)}", style="bold")
        text.append("  nothing is written before c", style="dim not bold")
        if self._held or self._conflicts:
            count = len(self._held) + len(self._conflicts)
            text.append(f"\n{count} refused: choose one to allow it this once", style="yellow")
        for path in self._left_out[:5]:
            text.append(f"\nnever committed, because it is not a file: {shown(path)}", style="dim")
        return text

    def _selections(self) -> list[Selection[str]]:
        found = []
        for path, changes in self._rows.items():
            objection = self._objection(path)
            if len(changes) == 1:
                label = label_of(changes[0].replace(conflict=""), path)
            else:
                label = Text(f"{shown(path)}/  {counted(len(changes), 'change')}")
            if objection:
                label.append(f"  {shown(objection)}", style="bold red")
            found.append(Selection(label, path, not objection))
        return found

    def action_all(self) -> None:
        rows = self.query_one(SelectionList)
        for path in self._rows:
            if not self._objection(path):
                rows.select(path)

    def action_none(self) -> None:
        self.query_one(SelectionList).deselect_all()

    def action_diff(self) -> None:
        from .changes_pane import DiffScreen

        rows = self.query_one(SelectionList)
        if rows.highlighted is not None:
            path = str(rows.get_option_at_index(rows.highlighted).value)
            self.app.push_screen(DiffScreen(self._rows[path][0]))

    def action_commit(self) -> None:
        chosen = [str(path) for path in self.query_one(SelectionList).selected]
        if not chosen:
            self.notify("nothing is chosen", severity="warning", markup=False)
            return
        everything = len(chosen) == len(self._rows)
        paths = None if everything else [f"{self._root}/{path}" for path in chosen]
        allow = [path for path in self._held if path in chosen]
        overwrite = {path for path in self._conflicts if path in chosen}
        count = sum(len(self._rows[path]) for path in chosen)
        self.dismiss(CommitChoice(paths, allow, overwrite, count))
