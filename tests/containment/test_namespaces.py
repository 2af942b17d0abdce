"""Our own namespaces hold every protection; the only gap is abstract sockets when the network is open."""

from __future__ import annotations

from .checks import Containment


class TestNamespaces(Containment):
    backend = "namespaces"

    def test_it_declares_no_gap(self) -> None:
        assert self.report()["gaps"] == []
