"""Events of a run (refusals, notes, questions) as data."""

from __future__ import annotations

from ._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class Event(Value):
    """One fact about a run that a user should know.

    `what` is the object (a path, a host), `rule` the rule that applied, `allow` the line that would allow it
    next time, `who` the command that caused it, if known. A "question" goes to `on_connect`. Text from inside
    is hostile: show it with `display.shown`.
    """

    _is_shown_short = True

    kind: Literal["violation", "refused", "gap", "note", "question"]
    what: str
    rule: str
    allow: str = ""
    who: str = ""

    def __str__(self) -> str:
        """Return the event as a sentence for a person."""
        from .display import shown

        told = f"{self.kind}: {shown(self.what)}: {shown(self.rule)}"
        return told + (f"; allow it with {shown(self.allow)}" if self.allow else "")
