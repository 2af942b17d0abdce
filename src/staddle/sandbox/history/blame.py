"""Find the point that last wrote each line of a file, from the layers of the history."""

from __future__ import annotations

import os
import stat

from ..._value import Value
from ...errors import InvalidCall
from ...layers.merged_view import LayerView, OpenLayers, Side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...layers.stack import LayerSnapshot
    from .point import HistoryPoint

#: Larger files are refused: comparing versions takes time in proportion to their lines, or worse.
MOST_BYTES, MOST_LINES = 4 << 20, 50_000


class BlamedLine(Value):
    """One line of a file, from 1, and the point whose command last wrote it."""

    line: int
    text: str
    point: HistoryPoint

    def __str__(self) -> str:
        """Number of the point, its command, and the line."""
        told = self.point.command or f"({self.point.cause})"
        return f"{self.point.number:>4} {told[:30]:<30} {self.line:>5} {self.text}"


def blame(points: Sequence[HistoryPoint], root: str, path: str) -> list[BlamedLine]:
    """Return the lines of the file at `path` below the tree `root`, as at the last of `points`."""
    lines: list[bytes] = []
    owners: list[HistoryPoint] = []
    last: tuple[int, ...] = ()
    for point in points:
        tree = point.snapshot._trees.get(root)
        found = None if tree is None else _version(tree, path, last)
        if found is None:
            lines, owners, last = [], [], ()  # it did not exist: whoever makes it again writes every line
        elif found[0] != last:
            last, content = found
            now = content.splitlines(keepends=True)
            if len(now) > MOST_LINES:
                raise _too_large(path)
            owners = _carried(lines, owners, now, point)
            lines = now
    if not last:
        raise FileNotFoundError(2, os.strerror(2), path)
    texts = (line.decode("utf-8", "surrogateescape").rstrip("\r\n") for line in lines)
    return [
        BlamedLine(number, text, owner)
        for number, (text, owner) in enumerate(zip(texts, owners, strict=True), 1)
    ]


def by_point(lines: Sequence[BlamedLine]) -> dict[str, str]:
    """Return the numbers of the lines by the number of their point, as in `{"2": "1-3 7"}`."""
    runs: dict[int, list[list[int]]] = {}
    for each in lines:
        found = runs.setdefault(each.point.number, [])
        if found and found[-1][1] == each.line - 1:
            found[-1][1] = each.line
        else:
            found.append([each.line, each.line])
    return {
        str(number): " ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
        for number, found in runs.items()
    }


def _version(tree: LayerSnapshot, path: str, known: tuple[int, ...]) -> tuple[tuple[int, ...], bytes] | None:
    """Return the identity and content of a file in these layers; None if it is not a file."""
    parent, _, name = path.rpartition("/")
    with OpenLayers(LayerView((), (*(layer.upper for layer in tree.layers), *tree.bases))) as opened:
        which = tuple(range(len(opened.bases)))
        above = ""
        for part in parent.split("/") if parent else ():
            which = _below(opened, which, above, part)
            above = f"{above}/{part}" if above else part
        side = Side(opened.bases, which, parent, True)
        try:
            found = side.resolve(name)
            if found.status is None or not stat.S_ISREG(found.status.st_mode):
                return None
            status = found.status
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if identity == known:
                return identity, b""
            if status.st_size > MOST_BYTES:
                raise _too_large(path)
            index = found.trees[0]
            fd = opened.bases[index].file(side.descriptor(index), name)
            with open(fd, "rb") as file:
                return identity, file.read(MOST_BYTES)
        finally:
            side.close()


def _below(opened: OpenLayers, which: tuple[int, ...], parent: str, name: str) -> tuple[int, ...]:
    """Return the trees that have a part in the directory `name`."""
    side = Side(opened.bases, which, parent, True)
    try:
        found = side.resolve(name)
        return found.trees if found.is_directory else ()
    finally:
        side.close()


def _carried(
    before: list[bytes], owners: list[HistoryPoint], now: list[bytes], point: HistoryPoint
) -> list[HistoryPoint]:
    """Return the owners of the lines `now`: those of equal lines before, else `point`."""
    from difflib import SequenceMatcher

    found = [point] * len(now)
    for old, new, size in SequenceMatcher(None, before, now, autojunk=False).get_matching_blocks():
        found[new : new + size] = owners[old : old + size]
    return found


def _too_large(path: str) -> InvalidCall:
    return InvalidCall(
        f"{path!r} is too large to blame",
        why=f"it had more than {MOST_BYTES:,} bytes or {MOST_LINES:,} lines",
        fix="compare two points with point.diff(other)",
    )
