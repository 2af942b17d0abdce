"""Cgroups for prewarmed sandboxes: entered before a request, limited when a sandbox is taken.

Moving a process into a cgroup can take the kernel many milliseconds. So the shell of a waiting sandbox is in
its own cgroups already. It entered them with descriptors that came with the previous request.
"""

from __future__ import annotations

import _thread
import os
import time

from ..errors import LaunchFailed
from ..linux.fileio import read_if_there
from ..policy.limits import Limits
from .usage import GroupMeter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cgroup_tree import CgroupTree
    from .sandbox_cgroups import SandboxCgroups

_NONE = Limits.none()
#: Seconds after which no process enters a cgroup any more that came with a request, even on a busy machine.
_LATEST = 60.0


class PrewarmedCgroups:
    """The cgroups of one fork server's sandboxes that are not taken yet. Thread-safe."""

    def __init__(self, family: CgroupTree, spares: int, *, owned: bool = False) -> None:
        """`owned`: the family has no other cgroups, and is closed with these."""
        self._family, self._owned, self._spares = family, owned, spares
        #: Number of cgroups that the fork server lacks, besides the one that comes with each request.
        self.missing = spares
        self._turn = _thread.allocate_lock()
        self._waiting: dict[SandboxCgroups, float] = {}  # time of creation, the oldest first
        self._entered: set[SandboxCgroups] = set()  # waiting cgroups that a process has entered
        self._stock: list[tuple[SandboxCgroups, list[int]]] = []  # cgroups that no request has brought yet
        self._closed = False
        self._limits = _NONE  # for the cgroups that are made next

    @property
    def gone(self) -> bool:
        """Whether the family is closed, and with it all waiting cgroups."""
        return self._family.closed

    def cgroup_fds(self, *, again: bool = False) -> list[int]:
        """Return descriptors to send with a request: those of the spare that replaces the taken sandbox.

        The first request also brings the descriptors of all spares. A request after a failure brings none,
        unless `again`.
        """
        with self._turn:
            count = max(1 if again else 0, 1 + self.missing)
            self.missing = min(0, 1 + self.missing) if not again else 0
        found: list[int] = []
        try:
            for _ in range(count):
                with self._turn:
                    made = self._stock.pop() if self._stock else None
                made = made or self._made()
                found += made[1]
                with self._turn:
                    self._waiting[made[0]] = time.monotonic()
        except BaseException as error:
            for cgroup_fd in found:
                os.close(cgroup_fd)
            if isinstance(error, OSError):
                raise LaunchFailed(
                    "a control group could not be used",
                    why=str(error),
                    fix="see `staddle doctor` about limits, or try again",
                ) from error
            raise
        return found

    def restock(self) -> None:
        """Create the cgroups for the next request, while no caller waits. Never raises."""
        self._remove_lost()
        with self._turn:
            for waiting in self._waiting:  # its sandbox may have failed: keep no files open for it
                if waiting.prewarmed_meter is not None:
                    waiting.prewarmed_meter.park()
            if self._stock or self._closed or self.gone:
                return
        try:
            made = self._made()
            made[0].prewarmed_meter = GroupMeter(made[0])
            made[0].prewarmed_meter.begin()
        except (LaunchFailed, OSError):
            return  # the caller that needs them reports the error
        with self._turn:
            closed = self._closed
            if not closed:
                self._stock.append(made)
        if closed:
            _close(made)

    def _made(self) -> tuple[SandboxCgroups, list[int]]:
        """Create cgroups for one more sandbox, with the descriptors by which its processes enter them."""
        group = self._family.group(self._limits.replace(cpu=None))
        try:
            return group, group.cgroup_fds()
        except BaseException:
            group.close()
            raise

    def _remove_lost(self) -> None:
        """Remove the cgroups of sandboxes that ended before they were taken: empty after a shell was there.

        A cgroup that no process has entered yet may still be entered. But if there are more cgroups than
        spares, the sandboxes of the oldest ones failed before they entered.
        """
        lost = []
        with self._turn:
            surplus, now = len(self._waiting) - self._spares, time.monotonic()
            for group, since in tuple(self._waiting.items()):
                if group.members():
                    self._entered.add(group)
                elif group in self._entered or (surplus > 0 and now - since > _LATEST):
                    lost.append(group)
                    del self._waiting[group]
                    surplus -= 1
            self._entered &= set(self._waiting)
        for group in lost:
            group.close()

    def not_taken(self) -> None:
        """Record a failed request: the descriptors sent with it are assumed to be unused."""
        with self._turn:
            self.missing -= 1

    def taken(self, pid: int, limits: Limits) -> SandboxCgroups:
        """Return the cgroups of the process `pid`. They now belong to the caller, who puts `limits` on them.

        If the limits are defaults, cgroups made from now on get them in advance. Defaults never prevent a
        shell from starting.
        """
        if "memory" in limits.defaults:
            self._limits = limits
        return self._entered_by(pid)

    def _entered_by(self, pid: int) -> SandboxCgroups:
        said = os.fsdecode(read_if_there(f"/proc/{pid}/cgroup"))
        tails = {"/".join(line.split("/")[-2:]) for line in said.splitlines()}
        with self._turn:
            for group in self._waiting:
                if group.tails & tails:
                    del self._waiting[group]
                    return group
        raise LaunchFailed(
            "the limits could not be put on",
            why="the sandbox's shell is in none of its control groups",
            fix="see `staddle doctor`",
        )

    def let_go(self) -> None:
        """Forget the cgroups in a forked child: they are its parent's."""
        if self._owned:
            self._family.let_go()

    def close(self) -> None:
        """Close all cgroups that are not taken."""
        with self._turn:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
            stock, self._stock = self._stock, []
        for made in stock:
            _close(made)
        if self._owned:
            self._family.close()
            return
        for group in waiting:
            group.close()


def _close(made: tuple[SandboxCgroups, list[int]]) -> None:
    for cgroup_fd in made[1]:
        os.close(cgroup_fd)
    made[0].close()
