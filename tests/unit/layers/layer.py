"""A layer and its base as plain directories, made by hand."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from staddle.layers.merged_view import LayerView


def whiteout(place: Path) -> None:
    """The kernel's mark for: nothing is here."""
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(place, stat.S_IFCHR, 0)


def write(place: Path, content: str | bytes = "", mode: int = 0o644) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    place.chmod(mode)
    return place


class Ground:
    """`host` and `layer` in a directory, and the view of the one on the other."""

    def __init__(self, top: Path) -> None:
        self.top, self.host, self.layer = top, top / "host", top / "layer"
        self.host.mkdir()
        self.layer.mkdir()

    @property
    def view(self) -> LayerView:
        return LayerView((str(self.layer),), (str(self.host),))
