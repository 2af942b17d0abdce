"""Events of a run (refusals, notes, questions) as data."""

from __future__ import annotations

from ._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class Event(Value):
    """One thing a user should know about a run.

    `what` is the object (a path, a host), `rule` what it met, `allow` the line that would
    allow it next time, `who` the command that met it, where that is known. A "question" is what
    `on_connect` is asked. Text that came from inside is hostile: show it with `display.shown`.
    """

    _is_shown_short = True

    kind: Literal["violation", "refused", "gap", "note", "question"]
    what: str
    rule: str
    allow: str = ""
    who: str = ""

    def __str__(self) -> str:
        """The event in a sentence, as a person reads it."""
        from .display import shown

        told = f"{self.kind}: {shown(self.what)}: {shown(self.rule)}"
        return told + (f"; allow it with {shown(self.allow)}" if self.allow else "")
