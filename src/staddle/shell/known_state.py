"""The state of a shell as it was last told, and whether it is known to be the same still.

A program does not change the state of the shell that runs it. So a text that runs nothing else leaves the
state as it was told; whether it does is judged by its words, off the command's path.
"""

from __future__ import annotations

from . import hazards

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .state import Dump, State

#: So many texts are kept to be judged.
_MOST_UNJUDGED = 256


class KnownState:
    """The state of one bash, as far as it is known. For one thread at a time, but for `is_settled`."""

    def __init__(self) -> None:
        self.dump: Dump | None = None
        self._is_dirty, self._is_settled = True, False
        self._unjudged: list[bytes] = []
        #: Whether what looks like a program may be a builtin that was loaded.
        self._has_more_builtins = False

    def told(self, dump: Dump) -> None:
        """The shell has told that it is so."""
        self.dump = dump
        self._is_dirty, self._is_settled = False, True
        self._unjudged.clear()

    def assume(self, dump: Dump) -> None:
        """Assume this state, which a replay has produced; verify it when the shell is idle."""
        self.dump, self._is_dirty = dump, True

    def give_up(self) -> None:
        """It cannot be asked before the next text."""
        self._is_dirty = False

    def runs(self, text: bytes, *, as_it_is: bool, may_load: bool) -> None:
        """It is about to run `text`: `as_it_is`, without other variables or in another directory.

        `may_load`: the text may load builtins.
        """
        may_stay = self._is_settled and as_it_is and len(text) <= hazards.LONGEST_PLAIN
        if may_stay and len(self._unjudged) < _MOST_UNJUDGED:
            self._unjudged.append(text)
        else:
            self.doubt()
        self._has_more_builtins = self._has_more_builtins or may_load

    def doubt(self) -> None:
        """The state may be another one than was told."""
        self._is_dirty, self._is_settled = True, False
        self._unjudged.clear()

    @property
    def is_settled(self) -> bool:
        """Whether the variables are known to be those that were last told. From any thread."""
        return self._is_settled and not self._unjudged

    @property
    def is_dirty(self) -> bool:
        """Whether the state may be another one than was last told."""
        if self._unjudged:
            dump = self.dump
            if dump is None or self._has_more_builtins or not all(map(dump.is_kept_by, self._unjudged)):
                self.doubt()
            self._unjudged.clear()
        return self._is_dirty

    def state(self) -> State | None:
        """The state as it was last told; None if it was not, or in no way that can be read."""
        try:
            return None if self.dump is None else self.dump.state()
        except (ValueError, IndexError):
            return None  # a command can make a shell print anything

    def precompute_key(self) -> None:
        """Compute ahead by what it is compared with another one."""
        if self.dump is not None and not self.is_dirty:
            try:
                self.dump.key()
            except ValueError:
                pass  # the comparison finds out
