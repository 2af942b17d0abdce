"""The pictures of docs/tui.md show what the UI shows. `make pictures` writes them anew."""

from __future__ import annotations

import re

import pytest

from tests.support.tui_scene import PICTURES, SCENES, pictures, readable


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pictures()


@pytest.mark.parametrize("name", SCENES)
def test_a_picture_is_current(name: str, made: dict[str, str]) -> None:
    kept = (PICTURES / f"tui-{name}.svg").read_text()
    assert readable(made[name]) == readable(kept), "run `make pictures`"


def test_pictures_load_nothing_from_elsewhere() -> None:
    for path in PICTURES.glob("tui-*.svg"):
        text = path.read_text()
        assert not re.search(r"url\((?!#)|<script|<image|href=", text), path
    assert len(list(PICTURES.glob("tui-*.svg"))) == len(SCENES)
