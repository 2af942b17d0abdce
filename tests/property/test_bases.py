"""An image that was damaged anywhere is refused or harmless: nothing outside its base, nothing left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.bases.store import import_image
from staddle.errors import ArchiveRefused
from staddle.files.tar import UnpackBounds
from staddle.policy import base
from tests.unit.bases.images import directory, docker_save, file, layer, link, oci, plain, symlink

SMALL = UnpackBounds(bytes=1 << 16, entries=64, depth=8)

names = st.sampled_from(
    ["a", "a/b", "a/b/c", "l", "l/x", "../x", "/etc/x", "./a/../b", ".wh.a", "a/.wh.b", "a/.wh..wh..opq", "."]
)
targets = st.sampled_from(["a", "/", "..", "../../../x", "/etc/passwd", "l", "a/b", "", "/proc/self/root"])
members = st.one_of(
    st.builds(file, names, st.binary(max_size=8), st.sampled_from([0o644, 0o4755, 0o000])),
    st.builds(directory, names, st.sampled_from([0o755, 0o000, 0o1777])),
    st.builds(symlink, names, targets),
    st.builds(link, names, targets),
)


def imported(image: Path, here: Path) -> bool:
    """Whether a base was made of it. The only directory that anything may have been made in is looked at."""
    outside = here / "x"
    with mock.patch.dict(os.environ, {base.VARIABLE: str(here / "bases")}):
        try:
            made = import_image(str(image), "one", bounds=SMALL)
        except ArchiveRefused:
            assert os.listdir(here / "bases") == []
            return False
        finally:
            assert sorted(set(os.listdir(here)) - {"bases"}) == ["image.tar"]
            assert not outside.exists()
    assert sorted(os.listdir(here / "bases/one")) == ["about.json", "root"]
    for path in Path(made.root).rglob("*"):
        if not path.is_symlink():
            assert not path.stat().st_mode & 0o7000
    return True


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(members, max_size=6), min_size=1, max_size=3))
def test_whatever_its_layers_hold(layers: list[list[object]]) -> None:
    with tempfile.TemporaryDirectory() as here:
        made = [layer(*changes) for changes in layers]  # type: ignore[arg-type]
        imported(docker_save(Path(here, "image.tar"), made), Path(here))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_was_changed_in_it(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as here:
        image = oci(
            Path(here, "image.tar"), [layer(file("a", b"1"), symlink("l", "/"), directory("d"))], plain
        )
        content = bytearray(image.read_bytes())
        for _ in range(data.draw(st.integers(0, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        del content[data.draw(st.integers(len(content) // 2, len(content))) :]
        image.write_bytes(content)
        imported(image, Path(here))
