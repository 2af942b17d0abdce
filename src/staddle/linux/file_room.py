"""Room for open files in this process: reserved before opening them, with a clear error if there is none.

A host program with hundreds of sandboxes runs out of descriptors. Code that is about to open some reserves
room first: it raises the soft limit, lets idle sandboxes close descriptors, or waits. Without room, a message
would lose its descriptors, and a walk over layers would treat a directory as deleted.
"""

from __future__ import annotations

import _thread
import time
from contextvars import ContextVar

from ..errors import LaunchFailed, TooManyOpenFiles, is_full, too_many_open_files
from . import open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds to wait while no room is given back: for commands in other sandboxes to end; if none runs, for a
#: sandbox in another thread to close; and in total.
PATIENCE, _SHORT_PATIENCE, _LONGEST_PATIENCE = 60.0, 2.0, 600.0
#: Seconds between two checks for room.
_INTERVAL = 0.005
#: Seconds for which a count of open files is reused. The rest of the host program opens files too.
_CREDIT_AGE = 0.1
#: Descriptors to leave for the rest of the host program.
OTHERS = 64


def refuse_if_full(error: BaseException | None) -> None:
    """Raise TooManyOpenFiles if `error` means that; callers would treat an OSError as a missing file."""
    if error is not None and is_full(error):
        raise too_many() from None


def is_room_made(error: OSError) -> bool:
    """Whether to retry after `error`, because the soft limit was raised; else like `refuse_if_full`."""
    if is_full(error) and open_files.raise_limit():
        return True
    refuse_if_full(error)
    return False


class FileRoom:
    """Reservations for files that are about to be opened. Thread-safe."""

    def __init__(self) -> None:
        #: Functions that make idle shells and file servers close files, and return whether any did; in this
        #: order.
        self.givers: list[Callable[[], bool]] = []
        #: Whether shells run commands, whose end would free descriptors.
        self.are_in_use: Callable[[], bool] = bool
        self.forget()

    def forget(self) -> None:
        """Drop all reservations; also called in a forked child."""
        self._turn = _thread.allocate_lock()
        self._reserved, self._given_back_at = 0, 0.0
        #: How many more can be reserved without counting the open files again, and until when.
        self._credit, self._credit_ends = 0, 0.0

    def reserve(self, number: int) -> ReservedRoom:
        """Reserve room for `number` open files, for a `with` statement; idle sandboxes close files if needed.

        If there is no room, raise TooManyOpenFiles after a wait. The wait is longer while commands run,
        because they free descriptors when they exit.
        """
        if _has_room.get():
            return ReservedRoom(self, 0)
        began = time.monotonic()
        while (reserved := self.reserve_now(number)) is None:
            is_hopeful = self.are_in_use() or self._reserved
            if self.has_waited(began, PATIENCE if is_hopeful else _SHORT_PATIENCE):
                raise too_many()
            time.sleep(_INTERVAL)
        return reserved

    def has_waited(self, began: float, patience: float) -> bool:
        """Whether a caller that waits since `began` must give up.

        Room given back meanwhile extends the wait.
        """
        now = time.monotonic()
        return now - max(began, self._given_back_at) > patience or now - began > _LONGEST_PATIENCE

    def reserve_if_possible(self, number: int, patience: float) -> ReservedRoom:
        """Like `reserve`, for work that can be tried without room: raises nothing, spares no room for others.

        It waits at most `patience` seconds, and only if others have reservations. If `patience` is 0, idle
        sandboxes keep their files.
        """
        if _has_room.get():
            return ReservedRoom(self, 0)
        end = time.monotonic() + patience
        try:
            while not self._is_reserved(number, 0):
                if open_files.raise_limit() or (patience and any(giver() for giver in self.givers)):
                    continue
                if not self._reserved or time.monotonic() >= end:
                    return ReservedRoom(self, 0)
                time.sleep(_INTERVAL)
        except LaunchFailed:  # the limit is too low for sandboxes, and was higher when they were opened
            return ReservedRoom(self, 0)
        return ReservedRoom(self, number)

    def run_with(self, number: int, work: Callable[[], None]) -> None:
        """Run `work` with room for `number` open files."""
        with self.reserve(number):
            work()

    def reserve_now(self, number: int) -> ReservedRoom | None:
        """Like `reserve` without waiting: None if there is no room at this moment."""
        number = min(number, open_files.limit() // 2)  # under a low limit, fewer files are open at once
        while not self._is_reserved(number, OTHERS // 2):
            if not open_files.raise_limit() and not any(giver() for giver in self.givers):
                return None
        return ReservedRoom(self, number)

    def _is_reserved(self, number: int, for_others: int) -> bool:
        with self._turn:
            now = time.monotonic()
            if self._credit < number or now > self._credit_ends:
                _check_limit()
                limit = open_files.limit()
                free = limit - open_files.count() - self._reserved
                if free < number + min(for_others, limit // 10):
                    return False
                self._credit, self._credit_ends = max(number, (free - OTHERS) // 2), now + _CREDIT_AGE
            self._credit -= number
            self._reserved += number
            return True

    def give_back(self, number: int) -> None:
        """End a reservation."""
        with self._turn:
            self._reserved -= number
            self._given_back_at = time.monotonic()


#: Whether room is reserved already for everything in this context.
_has_room: ContextVar[bool] = ContextVar("staddle_has_room", default=False)


class ReservedRoom:
    """A reservation, which ends with its `with` block. Code in the block reserves nothing more."""

    def __init__(self, room: FileRoom, number: int) -> None:
        self._room, self._number = room, number

    def end(self) -> None:
        """End the reservation without a `with`. Does nothing when called again."""
        number, self._number = self._number, 0
        if number:
            self._room.give_back(number)

    def __enter__(self) -> None:
        self._before = _has_room.set(True)

    def __exit__(self, *_: object) -> None:
        _has_room.reset(self._before)
        self.end()


def too_many() -> TooManyOpenFiles:
    """Return the error for a process that has reached its limit on open files."""
    return too_many_open_files(
        f"{open_files.count():,} are open, and this process may have {open_files.limit():,}"
    )


def _check_limit() -> None:
    """Raise LaunchFailed if this process may have too few open files to open any sandbox."""
    limit = open_files.original_limit()
    if limit < open_files.LEAST:
        raise LaunchFailed(
            "a sandbox cannot be opened",
            why=f"this process may have {limit} open files, and {open_files.LEAST} are needed",
            fix="raise the limit: ulimit -n 1024",
        )


FILE_ROOM = FileRoom()
