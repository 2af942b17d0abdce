"""A copy of staddle in which some text is another: without a protection."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .checks import SOURCE
from .conftest import HALF_WRITTEN
from .switches import Edit


@contextlib.contextmanager
def edited(edits: Sequence[Edit]) -> Iterator[Path]:
    """The directory of the copy; that of staddle itself when nothing is to be changed."""
    if not edits:
        yield SOURCE
        return
    with tempfile.TemporaryDirectory(prefix="mutated-") as place:
        os.chmod(place, 0o755)
        target = Path(place) / "src"
        shutil.copytree(SOURCE, target, ignore=HALF_WRITTEN, copy_function=_linked)
        for edit in edits:
            edit.apply(target)
        yield target


def _linked(source: str, target: str) -> None:
    """The same file, where that can be: what is edited is made anew."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
