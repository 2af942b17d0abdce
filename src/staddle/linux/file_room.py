"""Room for open files in this process: reserved before they are opened, and told as such when there is none.

A host program with hundreds of sandboxes runs out of descriptors. What is about to open some reserves room
first: the soft limit is raised, what is idle gives descriptors back, or it waits. A message whose descriptors
find no room would lose them, and a walk over layers would take a directory for one that is gone.
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

#: The least limit of open files with which a sandbox can be opened: its own processes have the same limit.
LEAST = 80
#: How long to wait for the end of commands in other sandboxes, in seconds, while no room was given back; and
#: for the end of a sandbox in another thread, where none runs. In all no longer than the last one.
PATIENCE, _SHORT_PATIENCE, _LONGEST_PATIENCE = 60.0, 2.0, 600.0
#: Between two looks whether there is room, in seconds.
_INTERVAL = 0.005
#: How long a count of open files is gone by, in seconds: the rest of the host program opens some, too.
_CREDIT_AGE = 0.1
#: Descriptors for the rest of the host program, at least.
OTHERS = 64


def refuse_if_full(error: BaseException | None) -> None:
    """TooManyOpenFiles, if it says that: no OSError, which would be taken for a file that is gone."""
    if error is not None and is_full(error):
        raise too_many() from None


def is_room_made(error: OSError) -> bool:
    """Whether to try again what failed so, because the soft limit was raised; else as `refuse_if_full`."""
    if is_full(error) and open_files.raise_limit():
        return True
    refuse_if_full(error)
    return False


class FileRoom:
    """Room for open files, reserved for what is about to open them. Thread-safe."""

    def __init__(self) -> None:
        #: They have idle ones give back their files, and say whether any did; in this order.
        self.givers: list[Callable[[], bool]] = []
        #: Whether some are in use, so that their end makes room.
        self.are_in_use: Callable[[], bool] = bool
        self.forget()

    def forget(self) -> None:
        """Begin anew; also in a fork of the program."""
        self._turn = _thread.allocate_lock()
        self._reserved, self._given_back_at = 0, 0.0
        #: So many more can be reserved before the open files are counted again, until that time.
        self._credit, self._credit_ends = 0, 0.0

    def reserve(self, number: int) -> ReservedRoom:
        """Reserve room for so many open files, for `with`; what is idle gives some back, if need be.

        TooManyOpenFiles when there is no room: a while later while commands run, whose end makes some.
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
        """Whether who waits since then has waited for long enough: others who wait come first, one by one."""
        now = time.monotonic()
        return now - max(began, self._given_back_at) > patience or now - began > _LONGEST_PATIENCE

    def reserve_if_possible(self, number: int, patience: float) -> ReservedRoom:
        """The same for what can be tried without: raises nothing, and leaves nothing for others.

        It waits so many seconds at most, and only for others who have reserved some. With no patience
        what is idle keeps its files.
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
        """Do `work` with room for so many open files."""
        with self.reserve(number):
            work()

    def reserve_now(self, number: int) -> ReservedRoom | None:
        """The same without waiting: None when there is no room at this moment, but perhaps in the next."""
        number = min(number, open_files.limit() // 2)  # under a low limit not so many are open at once
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


#: Whether room is reserved already, for all that is done in this context.
_has_room: ContextVar[bool] = ContextVar("staddle_has_room", default=False)


class ReservedRoom:
    """A reservation, which ends with its `with`. What is done in there reserves nothing more."""

    def __init__(self, room: FileRoom, number: int) -> None:
        self._room, self._number = room, number

    def end(self) -> None:
        """End it without a `with`. A second time does nothing."""
        number, self._number = self._number, 0
        if number:
            self._room.give_back(number)

    def __enter__(self) -> None:
        self._before = _has_room.set(True)

    def __exit__(self, *_: object) -> None:
        _has_room.reset(self._before)
        self.end()


def too_many() -> TooManyOpenFiles:
    """The error of this process when it has as many files open as it may."""
    return too_many_open_files(
        f"{open_files.count():,} are open, and this process may have {open_files.limit():,}"
    )


def _check_limit() -> None:
    """LaunchFailed, when this process may have so few open files that no sandbox can be opened."""
    limit = open_files.original_limit()
    if limit < LEAST:
        raise LaunchFailed(
            "a sandbox cannot be opened",
            why=f"this process may have {limit} open files, and {LEAST} are needed",
            fix="raise the limit: ulimit -n 1024",
        )


FILE_ROOM = FileRoom()
