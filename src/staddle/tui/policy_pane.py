"""Pane of what the policy allows and why, as `staddle explain` prints it; searchable."""

from __future__ import annotations

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from staddle.display import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from textual.app import ComposeResult

    from staddle import Sandbox


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
