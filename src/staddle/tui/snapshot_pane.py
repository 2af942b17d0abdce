"""The snapshots of a sandbox as a tree: take, restore, fork into a new tab, compare two."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Tree

from staddle.display import shown

from .sizes import age

TYPE_CHECKING = False
if TYPE_CHECKING:
    from textual.widgets.tree import TreeNode

    from staddle import Snapshot


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
        """Draw these, each below the one that it went on from."""
        self._shown = [each for each in snapshots if not each.closed]
        chosen = self.chosen()
        self.clear()
        some = f"{len(self._shown)} snapshots" if self._shown else "no snapshots; s takes one"
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
        text.append(f"  {age(snapshot.created)} ago, by {snapshot.method}", style="dim")
        return text

    def chosen(self) -> Snapshot | None:
        """The snapshot that the cursor is on."""
        node = self.cursor_node
        return node.data if node is not None and node.data is not None else None  # type: ignore[return-value]

    def action_mark(self) -> None:
        self.marked = self.chosen()
        self.show_snapshots(self._shown)
