"""Limits that no control group holds, held in the agent's own loop, and told to the host program."""

from __future__ import annotations

import os
import struct
import time

from .requests import TALLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits.supervisor import Supervisor


class Watch:
    """A supervisor that looks when it is time to, and the file in which it tells what it did (`TALLY`)."""

    def __init__(self, supervisor: Supervisor, tally: int) -> None:
        self._supervisor, self._tally = supervisor, tally
        self._counted = [0, 0, 0]
        self._next = 0.0

    def patience(self, otherwise: int | None) -> int:
        """Do what is due; for how many milliseconds nothing will be, or `otherwise`, if that is less."""
        if time.monotonic() >= self._next:
            self.look()
        left = 1 + max(0, int((self._next - time.monotonic()) * 1000))
        return left if otherwise is None else min(left, otherwise)

    def look(self, gone: int = 0) -> None:
        """Look now; so many processes that have just ended count as if they were there."""
        now = time.monotonic()
        self._next = now + self._supervisor.turn(now, gone)
        self._tell()

    def _tell(self) -> None:
        supervisor = self._supervisor
        ended, full, _ = self._counted
        ended += sum(len(event.pids) for event in supervisor.take_events())
        counted = [ended, full + supervisor.full, supervisor.peak]
        supervisor.full = False
        if counted != self._counted:
            self._counted = counted
            os.pwrite(self._tally, struct.pack(TALLY, *counted), 0)
