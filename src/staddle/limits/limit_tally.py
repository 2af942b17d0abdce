"""Enforce limits without cgroups in the loop of a sandbox's first process, and report to the host program."""

from __future__ import annotations

import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .supervisor import Supervisor

#: Contents of the tally file: processes killed for their memory, times that the process limit was reached,
#: and the highest memory seen, which the host program resets.
TALLY, SIZE, PEAK = "=QQQ", 24, 16


class LimitTally:
    """A supervisor that samples when it is due, and the file in which it reports its actions (`TALLY`)."""

    def __init__(self, supervisor: Supervisor, tally: int) -> None:
        self._supervisor, self._tally = supervisor, tally
        self._ended = self._full = 0
        self._next = 0.0
        supervisor.before_kill = self._tell

    def patience(self, otherwise: int | None) -> int:
        """Sample if it is due;

        return the milliseconds until the next sample, or `otherwise` if that is less.
        """
        if time.monotonic() >= self._next:
            self.look()
        left = 1 + max(0, int((self._next - time.monotonic()) * 1000))
        return left if otherwise is None else min(left, otherwise)

    def look(self, gone: int = 0) -> None:
        """Sample now; count `gone` processes that have just ended as if they still existed."""
        now = time.monotonic()
        self._next = now + self._supervisor.turn(now, gone)
        self._tell()

    def _tell(self) -> None:
        supervisor = self._supervisor
        self._ended += sum(len(event.pids) for event in supervisor.take_events())
        self._full += supervisor.full
        supervisor.full = False
        before = os.pread(self._tally, SIZE, 0)
        peak = struct.unpack(TALLY, before)[2] if len(before) == SIZE else 0
        now = struct.pack(TALLY, self._ended, self._full, max(peak, supervisor.seen))
        if now != before:
            os.pwrite(self._tally, now, 0)
