"""Sandboxes with a workspace, wherever files of one are tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from staddle import Sandbox

#: name: backend, mode
HABITATS = {
    "namespaces": ("namespaces", "overlay"),
    "namespaces-bind": ("namespaces", "bind"),
    "bwrap": ("bwrap", "bind"),
    "native": ("native", "bind"),
}


class Place(NamedTuple):
    """A sandbox, and the directory of the host that its workspace is."""

    habitat: str
    sandbox: Sandbox
    workspace: Path

    @property
    def is_root(self) -> bool:
        """Whether permissions mean nothing to its user."""
        return self.habitat == "native" and os.geteuid() == 0


@pytest.fixture(params=HABITATS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each in turn, empty."""
    with opened(request.param, tmp_path) as sandbox:
        yield Place(request.param, sandbox, tmp_path / "work")


def opened(habitat: str, tmp_path: Path) -> Sandbox:
    """A sandbox for the directory `work`, which is made."""
    backend, mode = HABITATS[habitat]
    (tmp_path / "outside").mkdir(exist_ok=True)
    (tmp_path / "work").mkdir(exist_ok=True)
    return Sandbox(tmp_path / "work", backend=backend, mode=mode, best_effort=True)
