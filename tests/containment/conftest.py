"""A private systemd for the tests of its backend, started when the first of them asks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.private_systemd import SOURCE_INSIDE, PrivateSystemd

HERE = Path(__file__).parent
#: What is compiled goes along, so that a copy does not begin with compiling; not what is being written.
HALF_WRITTEN = shutil.ignore_patterns("*.pyc.*")


def copy_in(machine: PrivateSystemd, source: Path, name: str) -> str:
    """A copy of the tree at `source` inside, readable by everyone there; returns its path."""
    inside = f"{SOURCE_INSIDE}/{name}" if name else SOURCE_INSIDE
    target = machine.outside(inside)
    shutil.copytree(source, target, ignore=HALF_WRITTEN, dirs_exist_ok=True)
    for folder, _, files in os.walk(target):
        os.chmod(folder, 0o755)
        for file in files:
            os.chmod(os.path.join(folder, file), 0o644)
    return inside


@pytest.fixture(scope="session")
def machine() -> Iterator[PrivateSystemd]:
    """One machine for the whole run, with the catalogue in it."""
    with PrivateSystemd() as made:
        copy_in(made, HERE, "containment")
        yield made
