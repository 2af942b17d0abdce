"""Our own namespaces hold every protection; the only gap is abstract sockets when the network is open."""

from __future__ import annotations

from .checks import DEFAULT_LIMITS, Containment


class TestNamespaces(Containment):
    backend = "namespaces"

    def test_it_declares_no_gap_but_defaults_of_limits(self) -> None:
        assert {gap["protection"] for gap in self.report()["gaps"]} <= DEFAULT_LIMITS
