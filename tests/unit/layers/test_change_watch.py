"""What a watch on a layer notices."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from staddle.layers import change_watch
from staddle.layers.change_watch import ChangeWatch
from staddle.layers.merged_view import LayerView


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    for name in ("layer", "host"):
        (tmp_path / name).mkdir()
    return tmp_path / "layer"


def watch(layer: Path) -> ChangeWatch:
    return ChangeWatch(LayerView((str(layer),), (str(layer.parent / "host"),)), at="/workspace")


def told(watch: ChangeWatch) -> list[str]:
    found = watch.look()
    assert found is not None
    return [change.path for change in found]


def test_what_comes_right_after_a_look_is_noticed_later(layer: Path) -> None:
    """The clock of files stands still for some milliseconds, so the layer's time may not have moved."""
    for number in range(5):
        place = layer.parent / f"layer{number}"
        place.mkdir()
        watching = watch(place)
        assert told(watching) == []
        (place / "new").touch()
        time.sleep(change_watch._STANDSTILL / 1e9 * 1.2)
        assert told(watching) == ["/workspace/new"]


class _NoListing:
    def __getattr__(self, name: str) -> object:
        assert name != "listdir", "there was no need to"
        return getattr(os, name)


def test_a_layer_that_nobody_touches_is_looked_at_once(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watch(layer)
    time.sleep(change_watch._STANDSTILL / 1e9 * 1.2)
    assert told(watching) == []
    monkeypatch.setattr(change_watch, "os", _NoListing())  # not for other threads
    assert told(watching) == []


def test_an_empty_layer_is_not_scanned(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watch(layer)
    monkeypatch.setattr(change_watch, "_scan", lambda *_: pytest.fail("there was no need to"))
    layer.chmod(0o700)
    assert told(watching) == []
