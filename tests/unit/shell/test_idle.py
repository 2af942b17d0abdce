"""Idle shells are maintained, once for each time they were used."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from staddle.shell.idle import QUIET, IdleMaintenance
from tests.support.waiting import until


class Used:
    """A shell that counts its maintenance; it is `used_in` one of them once."""

    def __init__(self, *, used_in: bool = False) -> None:
        self.idle_from, self.count = time.monotonic() + QUIET, 0
        self._used_in = used_in

    def maintain(self) -> None:
        self.count += 1
        if self._used_in:
            self._used_in = False
            self.idle_from = time.monotonic() + QUIET


@pytest.fixture
def maintenance() -> Iterator[IdleMaintenance]:
    made = IdleMaintenance()
    yield made
    assert until(lambda: not made._waiting)


def test_a_shell_is_maintained_once_however_often_it_is_scheduled(maintenance: IdleMaintenance) -> None:
    shell = Used()
    for _ in range(3):
        maintenance.schedule(shell)
    assert until(lambda: not maintenance._waiting)
    assert shell.count == 1


def test_a_shell_that_is_used_meanwhile_is_maintained_again(maintenance: IdleMaintenance) -> None:
    shell = Used(used_in=True)
    maintenance.schedule(shell)
    assert until(lambda: shell.count == 2)


def test_a_shell_in_use_waits_and_one_that_was_forgotten_is_left(maintenance: IdleMaintenance) -> None:
    busy, idle = Used(), Used()
    busy.idle_from = time.monotonic() + 3600
    maintenance.schedule(busy)
    maintenance.schedule(idle)
    assert until(lambda: idle.count == 1)
    assert busy.count == 0
    maintenance.forget(busy)
