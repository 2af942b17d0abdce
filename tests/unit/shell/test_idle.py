"""Idle shells are maintained, once for each time they were used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from staddle.shell.idle import QUIET, IdleMaintenance
from tests.support.waiting import until


class Used:
    """A shell that counts its maintenance; a command of it ends during the first one, if that is given."""

    def __init__(self, ends: Callable[[Used], None] | None = None) -> None:
        self.idle_from, self.count = time.monotonic() + QUIET, 0
        self._ends = ends

    def maintain(self) -> None:
        self.count += 1
        ends, self._ends = self._ends, None
        if ends is not None:
            ends(self)


@pytest.fixture
def maintenance() -> Iterator[IdleMaintenance]:
    made = IdleMaintenance()
    yield made
    assert until(lambda: not made._waiting)


def test_a_shell_is_maintained_once_however_often_it_is_scheduled(maintenance: IdleMaintenance) -> None:
    shell = Used()
    for _ in range(3):
        maintenance.schedule(shell)
    assert until(lambda: shell.count)
    assert not maintenance._waiting
    assert shell.count == 1


def test_a_shell_that_is_used_meanwhile_is_maintained_again(maintenance: IdleMaintenance) -> None:
    """Even if it was scheduled for a time that is over: a short command began before maintenance did."""
    for seconds in (QUIET, 0.0):

        def end(shell: Used, seconds: float = seconds) -> None:
            shell.idle_from = time.monotonic() + seconds if seconds else shell.idle_from
            maintenance.schedule(shell)

        shell = Used(end)
        maintenance.schedule(shell)
        assert until(lambda shell=shell: shell.count == 2, 10)


def test_a_shell_in_use_waits_and_one_that_was_forgotten_is_left(maintenance: IdleMaintenance) -> None:
    busy, idle = Used(), Used()
    busy.idle_from = time.monotonic() + 3600
    maintenance.schedule(busy)
    maintenance.schedule(idle)
    assert until(lambda: idle.count == 1)
    assert busy.count == 0
    maintenance.forget(busy)
