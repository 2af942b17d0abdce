"""The traps of ours in a shell.

By the brake it stops when it is told to, by the guard it tells its state when it exits.
"""

from __future__ import annotations

from ..ipc.agent_messages import BRAKE_TRAP
from . import hazards, state
from .quoting import quoted

#: Among the letters of `$-`.
ERREXIT = ord("e")


#: Those by which a shell prints what it runs, or has traps run in a text as well.
_TELLING = frozenset(b"xvTE")


def may_print(known: state.Dump | None, flags: bytes, tainted: bool) -> bool:
    """Whether a shell may print something between the commands of a text of ours."""
    return known is None or tainted or known.may_intervene() or not _TELLING.isdisjoint(flags)


class OurTraps:
    """Traps of ours that a shell has. It has the brake from the beginning."""

    def __init__(self) -> None:
        #: Whether it stops when it is told to, and whether the signal for that means something else.
        self.braked, self._brake_is_theirs = True, False
        #: Whether it tells its state when it exits.
        self.guarded = False

    def lines(self, text: bytes, prefix: bytes) -> bytes:
        """Return the lines that put our traps where `text` might not see them."""
        said = b""
        listed = hazards.lists_traps(text)
        if self.braked == listed and not self._brake_is_theirs:
            self.braked = not listed
            action = b"-" if listed else b"-- " + quoted(BRAKE_TRAP)
            said += b"%btrap %b SIGRTMAX\n" % (prefix, action)
        if b"trap" in text and self.guarded:
            self.guarded = False
            said += prefix + b"trap - EXIT\n"
        return said

    def wants_guard(
        self, text: bytes, prefix: bytes, known: state.Dump | None, flags: bytes, tainted: bool
    ) -> bool:
        """Whether the shell is to tell its state once more when it exits, and the text cannot notice."""
        if b"trap" in text or self.guarded or known is None or prefix == state.BUILTIN_PREFIXES[-1]:
            return False
        trapped = known.exit_trap is not None or known.debug_trap is not None
        traced = b"x" in flags or b"v" in flags or hazards.traces(text)
        leaves = hazards.may_leave(text) or tainted or ERREXIT in flags
        return leaves and not trapped and not traced

    def guard(self, asked: bytes, prefix: bytes) -> bytes:
        """Return the line that has the shell run `asked` when it exits."""
        self.guarded = True
        return b"%btrap -- %b EXIT\n" % (prefix, quoted(asked))

    def without(self, found: state.Dump) -> state.Dump:
        """Return the dump without our traps, and note which are there."""
        self.guarded = self.guarded and found.exit_trap is not None
        if self.guarded:
            found.without_trap(b"EXIT")
        brake = found.trap(b"SIGRTMAX")
        self.braked = brake == BRAKE_TRAP
        self._brake_is_theirs = brake is not None and not self.braked
        if self.braked:
            found.without_trap(b"SIGRTMAX")
        return found
