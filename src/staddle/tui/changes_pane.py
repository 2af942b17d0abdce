"""The changes of a sandbox as a tree, and each change as a diff: unified, or side by side."""

from __future__ import annotations

from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static, Tree

from staddle.display import counted, shown, shown_block

from .sizes import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType
    from textual.app import ComposeResult
    from textual.widgets.tree import TreeNode

    from staddle import Change

#: Letter and colour of each kind of change.
KINDS = {
    "added": ("A", "green"),
    "modified": ("M", "yellow"),
    "deleted": ("D", "red"),
    "renamed": ("R", "cyan"),
    "mode": ("m", "magenta"),
    "type": ("T", "magenta"),
    "link": ("L", "magenta"),
}
#: Most entries in the tree. The rest is only counted.
MOST_ENTRIES = 2000
_MOST_LINES = 2000


def label_of(change: Change, name: str | None = None, mark: str = "") -> Text:
    """A change on one line. `mark` is the reason why a commit would refuse it."""
    letter, colour = KINDS.get(change.kind, ("?", "white"))
    text = Text("! " if mark or change.conflict else "", style="bold red")
    text.append(f"{letter} ", style=f"bold {colour}")
    text.append(shown(name if name is not None else change.path), style=colour)
    if change.kind == "renamed" and change.old_path:
        text.append(f" ← {shown(change.old_path)}", style="dim")
    if change.target is not None:
        text.append(f" → {shown(change.target)}", style="dim")
    if change.type == "file":
        text.append(f"  {size(change.size)}", style="dim")
    if change.conflict:
        text.append(f"  conflict: {shown(change.conflict)}", style="bold red")
    if mark:
        text.append(f"  {shown(mark)}", style="bold red")
    return text


class ChangesPane(Tree[object]):
    """Pane of the differences from the host. Enter shows a diff, / searches."""

    BINDINGS = [
        ("c", "app.commit", "review and commit"),
        ("d", "app.discard_one", "discard this change"),
        ("D", "app.discard", "discard everything"),
        ("u", "app.undo_discard", "undo the discard"),
        ("r", "app.look", "look again"),
        ("slash", "search", "search"),
    ]
    DEFAULT_CSS = "ChangesPane { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(Text("no changes"), id=id)
        self.show_root = True
        self.guide_depth = 2
        self.changes: list[Change] = []
        self.marks: Mapping[str, str] = {}
        self._search = ""
        self._folders: dict[str, TreeNode[object]] = {}

    def show_changes(
        self, changes: list[Change], error: str = "", marks: Mapping[str, str] | None = None
    ) -> None:
        """Draw the changes, with the reasons why a commit would refuse some, by path.

        Collapsed folders stay collapsed; the cursor keeps its position.
        """
        closed = {path for path, node in self._folders.items() if not node.is_expanded}
        chosen = self.cursor_node.data if self.cursor_node is not None else None
        chosen_path = getattr(chosen, "path", chosen)
        self.changes, self.marks = changes, marks or {}
        self.clear()
        self._folders = {}
        self.root.set_label(self._heading(error))
        word = self._search.lower()
        found = [change for change in changes if word in change.path.lower()] if word else changes
        again: TreeNode[object] | None = None
        for change in found[:MOST_ENTRIES]:
            folder, _, name = change.path.rpartition("/")
            parent = self._folder(folder, closed)
            is_folder = change.type == "directory" or (change.type is None and change.old_type == "directory")
            label = label_of(change, f"{name}/" if is_folder else name, self.marks.get(change.path, ""))
            if is_folder:
                node = self._folder(change.path, closed)
                node.set_label(label)
                node.data = change
            else:
                node = parent.add_leaf(label, data=change)
            if change.path == chosen_path:
                again = node
        if len(found) > MOST_ENTRIES:
            self.root.add_leaf(Text(f"and {len(found) - MOST_ENTRIES:,} more; / searches", style="dim"))
        self.root.expand()
        if again is not None:
            self.call_after_refresh(self.move_cursor, again)

    def _heading(self, error: str) -> Text:
        if error:
            return Text(shown(error), style="red")
        if not self.changes:
            return Text("no changes", style="dim")
        text = Text(counted(len(self.changes), "change"), style="bold")
        marked = sum(bool(change.conflict or change.path in self.marks) for change in self.changes)
        if marked:
            text.append(f", {marked:,} need{'s' if marked == 1 else ''} approval (!)", style="bold red")
        kinds = [f"{sum(c.kind == kind for c in self.changes):,} {kind}" for kind in KINDS]
        text.append(
            ": " + ", ".join(kind for kind in kinds if not kind.startswith("0 ")), style="not bold dim"
        )
        if self._search:
            text.append(f"  /{shown(self._search)}", style="cyan")
        return text

    def _folder(self, path: str, closed: set[str]) -> TreeNode[object]:
        if path in ("", "/"):
            return self.root
        node = self._folders.get(path)
        if node is None:
            parent, _, name = path.rpartition("/")
            above = self._folder(parent, closed)
            node = above.add(Text(f"{shown(name)}/", style="dim"), data=path, expand=path not in closed)
            self._folders[path] = node
        return node

    def chosen(self) -> str | None:
        """The path under the cursor."""
        data = self.cursor_node.data if self.cursor_node is not None else None
        path = getattr(data, "path", data)
        return path if isinstance(path, str) else None

    def on_tree_node_selected(self, event: Tree.NodeSelected[object]) -> None:
        event.stop()
        change = event.node.data
        if change is not None and not isinstance(change, str) and getattr(change, "type", "") != "directory":
            self.app.push_screen(DiffScreen(change))  # type: ignore[arg-type]

    def action_search(self) -> None:
        def searched(word: str | None) -> None:
            if word is not None:
                self._search = word
                self.show_changes(self.changes, "", self.marks)

        self.app.push_screen(SearchScreen(self._search), searched)


class SearchScreen(ModalScreen[str | None]):
    """Asks for a word to search for."""

    BINDINGS = [("escape", "dismiss(None)", "leave")]
    DEFAULT_CSS = """
    SearchScreen { align: center bottom; background: transparent; }
    SearchScreen Input { width: 100%; margin: 0 0 1 0; }
    """

    def __init__(self, before: str = "", question: str = "search; nothing shows everything") -> None:
        super().__init__()
        self._before, self._question = before, question

    def compose(self) -> ComposeResult:
        yield Input(self._before, placeholder=self._question)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)


class DiffScreen(ModalScreen[None]):
    """A change as a diff. `v` switches between unified and side by side."""

    BINDINGS = [
        ("escape,q", "dismiss(None)", "leave"),
        ("v", "view", "unified or side by side"),
    ]
    DEFAULT_CSS = """
    DiffScreen { align: center middle; }
    DiffScreen VerticalScroll {
        width: 96%; height: 96%; border: round $primary; background: $surface;
        border-title-color: $text; border-subtitle-color: $text-muted;
    }
    DiffScreen Static { width: auto; }
    """

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change = change
        self._is_split = False
        self._text = ""

    def compose(self) -> ComposeResult:
        # The agent chose the name, so draw it as text, never as markup of a title.
        heading = Static(label_of(self._change), markup=False)
        scroll = VerticalScroll(heading, Static("reading …", markup=False, id="diff"))
        scroll.border_subtitle = "v side by side · Esc back"
        yield scroll

    def on_mount(self) -> None:
        self.run_worker(self._read, thread=True)
        self.query_one(VerticalScroll).focus()

    def _read(self) -> None:
        text = self._change.text_diff()
        self.app.call_from_thread(self._show, text)

    def _show(self, text: str) -> None:
        self._text = text
        draw = side_by_side(text, self.size.width - 8) if self._is_split else unified(text, self._change.path)
        self.query_one("#diff", Static).update(draw)

    def action_view(self) -> None:
        self._is_split = not self._is_split
        self._show(self._text)


def unified(diff: str, path: str) -> RenderableType:
    """A unified diff in colours: syntax for the text, red and green for removed and added lines."""
    lines = shown_block(diff).rstrip("\n").split("\n")
    parts: list[RenderableType] = []
    syntax = _highlighter(path)
    for line in lines[:_MOST_LINES]:
        if line.startswith(("+++", "---", "@@", "rename", "old mode", "new mode", "\\", "Binary", "Files")):
            parts.append(Text(line, style="bold cyan" if line.startswith("@@") else "bold"))
        elif line[:1] in ("+", "-"):
            text = Text(line[0], style="bold green" if line[0] == "+" else "bold red")
            text.append_text(_coloured(syntax, line[1:]))
            text.stylize("on #12301a" if line[0] == "+" else "on #3a1518")
            parts.append(text)
        else:
            text = Text(line[:1])
            text.append_text(_coloured(syntax, line[1:]))
            parts.append(text)
    if len(lines) > _MOST_LINES:
        parts.append(Text(f"and {counted(len(lines) - _MOST_LINES, 'more line')}", style="dim"))
    return Group(*parts) if parts else Text("nothing to show", style="dim")


def side_by_side(diff: str, width: int) -> RenderableType:
    """A diff in two columns."""
    half = max(10, (width - 3) // 2)
    rows: list[Text] = []
    for left, right in _pairs(shown_block(diff).rstrip("\n").split("\n")[:_MOST_LINES]):
        row = Text()
        for text, mark, style in ((left, "-", "on #3a1518"), (right, "+", "on #12301a")):
            cell = Text((text or "")[1:].expandtabs(4) if text else "")
            cell.truncate(half, pad=True)
            if text and text[0] == mark:
                cell.stylize(style)
            row.append_text(cell)
            row.append(" │ " if mark == "-" else "", style="dim")
        rows.append(row)
    return Group(*rows) if rows else Text("nothing to show", style="dim")


def _pairs(lines: Iterable[str]) -> Iterable[tuple[str | None, str | None]]:
    gone: list[str] = []
    came: list[str] = []
    for line in [*lines, " "]:
        if line.startswith("-") and not line.startswith("---"):
            gone.append(line)
        elif line.startswith("+") and not line.startswith("+++"):
            came.append(line)
        else:
            for number in range(max(len(gone), len(came))):
                yield (
                    gone[number] if number < len(gone) else None,
                    came[number] if number < len(came) else None,
                )
            gone, came = [], []
            yield line, line


def _highlighter(path: str) -> Syntax | None:
    lexer = Syntax.guess_lexer(path)
    return None if lexer in ("default", "text") else Syntax("", lexer, theme="ansi_dark")


def _coloured(syntax: Syntax | None, line: str) -> Text:
    if syntax is None or len(line) > 500:
        return Text(line)
    text = syntax.highlight(line)
    text.rstrip()
    return text if text.plain == line.rstrip() else Text(line)
