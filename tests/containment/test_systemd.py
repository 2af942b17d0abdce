"""systemd holds every protection, as an ordinary user with a user manager and as root with the system's.

In a private machine with a real systemd of its own, where attacks and canaries both live.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.support.private_systemd import PrivateSystemd

from . import machines
from .checks import DEFAULT_LIMITS, Containment


class _InTheMachine(Containment):
    backend = "systemd"
    user: ClassVar[bool]
    machine: ClassVar[PrivateSystemd]
    reports: ClassVar[dict[str, dict[str, Any]]]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _machine(cls, machine: PrivateSystemd) -> None:
        cls.machine = machine
        cls.reports = {}

    def report(self, network: str = "deny") -> dict[str, Any]:
        if network not in self.reports:
            self.reports[network] = self.in_a_process({"network": network})
        return self.reports[network]

    def in_a_process(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return machines.report(self.machine, self.user, {**self.usual, **arguments})

    def in_a_terminal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return machines.in_a_terminal(self.machine, self.user, {**self.usual, **arguments})

    def test_it_declares_no_gap_but_defaults_of_limits(self) -> None:
        assert {gap["protection"] for gap in self.report()["gaps"]} <= DEFAULT_LIMITS


@pytest.mark.needs_root
class TestUserManager(_InTheMachine):
    user = True

    def test_the_command_is_who_started_it(self) -> None:
        assert set(self.report()["uids"]) == {self.machine.uid}


@pytest.mark.needs_root
class TestSystemManager(_InTheMachine):
    user = False
