"""What every test may rely on."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_root: starts something only root can start; left out of the run as an ordinary user"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As an ordinary user `make test` leaves out what needs root, and says so once."""
    if os.geteuid() == 0:
        return
    kept = [item for item in items if item.get_closest_marker("needs_root") is None]
    if len(kept) != len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
