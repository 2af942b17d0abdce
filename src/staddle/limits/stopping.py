"""A pause without control groups: every process of a pid namespace is stopped, and later let go on.

Run by the namespace's first process. Those inside can see that they were stopped, by the clock,
but cannot help it. What was stopped before stays so afterwards.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

SIGCONT, SIGSTOP = 18, 19
_STOPPED = (b"T", b"t")


class Pause:
    """A pause of everything in this pid namespace but ourselves, who must be its first process."""

    def __init__(self) -> None:
        if os.getpid() != 1:
            raise RuntimeError("only the first process of a pid namespace may stop all of it")
        self._before = {pid for pid, (state, _) in _table().items() if state in _STOPPED}
        try:
            os.kill(-1, SIGSTOP)  # all at once: nobody starts another in between
        except ProcessLookupError:
            pass  # there is nobody

    def end(self, shells: Collection[int] = ()) -> None:
        """Let them go on, the youngest first and `shells` last: one that sees a stopped child gives it up."""
        table = _table()
        order = sorted(table, key=lambda pid: (pid in shells, -table[pid][1], -pid))
        for pid in order:
            if pid not in self._before:
                try:
                    os.kill(pid, SIGCONT)
                except OSError:
                    continue
        self._before = set()


def _table() -> dict[int, tuple[bytes, int]]:
    """State and start of every other process."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            words = os.read(fd, 2048).rpartition(b")")[2].split()
            found[int(name)] = words[0], int(words[19])
        except (OSError, IndexError):
            continue
        finally:
            os.close(fd)
    return found
