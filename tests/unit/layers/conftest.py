"""A base and a layer, with the state of commits out of the user's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.layers import commit_dir, trash
from tests.unit.layers.layer import Ground


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(commit_dir, "homes", lambda: iter([f"{tmp_path}/state/staddle/commits"]))
    yield Ground(tmp_path)
    trash.wait()
    assert not (tmp_path / "state/staddle").exists(), "a commit left something"
