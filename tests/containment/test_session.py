"""A process of a session is held like a command of its own: every protection, and no gap."""

from __future__ import annotations

from .checks import Containment


class TestSession(Containment):
    backend = "session"

    def test_it_declares_no_gap(self) -> None:
        assert self.report()["gaps"] == []

    def test_everything_ends_with_whoever_started_it(self) -> None:
        """Killing the host program is tried with the fork server itself, in tests/kernel/test_zygote.py."""
