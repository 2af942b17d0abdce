"""A budget of descriptors: the shells that were used last keep their files open.

A shell at rest needs two descriptors and its sandbox one; in use it needs nine more. A host
program with hundreds of sandboxes would run out of them, so the ones that were used longest
ago give theirs back, and ask for them again when they are used.
"""

from __future__ import annotations

import _thread
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class ParkableShell(Protocol):
        """A shell that can give descriptors back while no command runs in it."""

        def park(self) -> bool: ...


#: Descriptors that a shell in use has more than one at rest.
EACH = 9
#: Descriptors for the rest of the host program, at least.
_OTHERS = 64


def room(limit: int) -> int:
    """Return how many shells may keep their files open under this limit of open files."""
    return max(2, (limit - _OTHERS) * 3 // 8 // EACH)


class OpenShellLru:
    """The shells of this process that have their files open, the one used longest ago first."""

    def __init__(self) -> None:
        self._shells: dict[ParkableShell, None] = {}
        self._turn = _thread.allocate_lock()
        self._room = 0
        self.latest: ParkableShell | None = None

    def use(self, shell: ParkableShell) -> None:
        """`shell` is about to be used; another one may have to give back its files."""
        if self.latest is shell:
            return
        crowd = []
        with self._turn:
            self.latest = shell
            self._shells.pop(shell, None)
            self._shells[shell] = None
            if len(self._shells) > self._room:
                self._room = room(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
                crowd = [other for other in self._shells if other is not shell]
                crowd = crowd[: max(0, len(self._shells) - self._room)]
                for other in crowd:
                    del self._shells[other]
        for other in crowd:
            if not other.park():  # it is busy: it counts as used
                with self._turn:
                    self._shells.setdefault(other)

    def forget(self, shell: ParkableShell) -> None:
        """`shell` is closed."""
        with self._turn:
            self._shells.pop(shell, None)
            if self.latest is shell:
                self.latest = None


OPEN_SHELLS = OpenShellLru()
