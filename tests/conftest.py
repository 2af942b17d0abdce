"""What every test may rely on."""

from __future__ import annotations

import os

import pytest

from staddle.policy.environment import PATH
from staddle.policy.layouts import SYSTEM


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_root: starts something only root can start; left out of the run as an ordinary user"
    )
    # A toolchain in the home of whoever runs the tests is seen inside. Tests say themselves which there are.
    usual = [place for place in os.environ.get("PATH", "").split(":") if place in SYSTEM]
    os.environ["PATH"] = ":".join(usual) or PATH


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As an ordinary user `make test` leaves out what needs root, and says so once."""
    if os.geteuid() == 0:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if item.get_closest_marker("needs_root") is None else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
