"""A copy of staddle in which some text is another: without a protection."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .switches import Edit

SOURCE = Path(__file__).parents[2] / "src"
#: What another interpreter is about to write.
HALF_WRITTEN = re.compile(r".*\.pyc\..*")


@contextlib.contextmanager
def edited(edits: Sequence[Edit]) -> Iterator[Path]:
    """The directory of the copy; that of staddle itself when nothing is to be changed."""
    if not edits:
        yield SOURCE
        return
    with tempfile.TemporaryDirectory(prefix="mutated-") as place:
        os.chmod(place, 0o755)
        target = Path(place) / "src"
        named = {path.parent for edit in edits for path in (SOURCE / "staddle").glob(edit.file)}
        _shadow(SOURCE, target, named)
        for edit in edits:
            edit.apply(target)
        yield target


def _shadow(source: Path, target: Path, named: set[Path]) -> None:
    """Make `target` stand for `source`: links, but for directories on the way to those `named`.

    A thousand links to files, and their removal, took as long as to run most of the checks.
    """
    target.mkdir()
    for entry in os.scandir(source):
        path, copy = Path(entry.path), target / entry.name
        if any(each.is_relative_to(path) for each in named) or (
            entry.name == "__pycache__" and source in named
        ):
            _shadow(path, copy, named)
        elif not HALF_WRITTEN.fullmatch(entry.name):
            copy.symlink_to(path)
