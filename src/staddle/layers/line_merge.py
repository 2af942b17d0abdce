"""Merge two versions of a text by line, as `diff3` and `git merge-file` do.

The sandbox chooses the texts, so the work is bounded: `Effort` counts the steps of all merges of one call.
difflib is not used: its time grows with the square of the lines if many lines are equal.
"""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    #: A changed range of lines: start and end in the base, start and end in the other version.
    Hunk = tuple[int, int, int, int]

#: Steps of one call: about two seconds.
MOST_STEPS = 6_000_000
#: Edits between two versions, which bound the memory: four million numbers.
MOST_EDITS = 2_000


class TooDifferent(Exception):
    """The comparison would take too many steps."""


class Effort:
    """Steps that are left."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take steps; TooDifferent if none is left."""
        self.left -= steps
        if self.left < 0:
            raise TooDifferent


class LineConflict(Value):
    """A range of lines that both versions changed, each in its own way."""

    base: bytes
    ours: bytes
    theirs: bytes


def merge_lines(
    base: bytes, ours: bytes, theirs: bytes, effort: Effort | None = None
) -> list[bytes | LineConflict]:
    """Merge the changes of `ours` and `theirs` to `base`. Returns merged text and conflicts, in order.

    Changes conflict if they overlap or touch, unless they are equal. Lines end at a newline only; the last
    one may have none. Raises TooDifferent if the texts need too many steps.
    """
    effort = effort or Effort()
    old, mine, other = lines(base), lines(ours), lines(theirs)
    pieces: list[bytes | LineConflict] = []
    done = 0
    for group in _groups(hunks(old, mine, effort), hunks(old, other, effort)):
        low = min(hunk[0] for side in group for hunk in side)
        high = max(hunk[1] for side in group for hunk in side)
        pieces.append(b"".join(old[done:low]))
        was = b"".join(old[low:high])
        one, two = (_text(old, new, side, low, high) for new, side in zip((mine, other), group, strict=True))
        if two in (one, was):
            pieces.append(one)
        elif one == was:
            pieces.append(two)
        else:
            pieces.append(LineConflict(was, one, two))
        done = high
    pieces.append(b"".join(old[done:]))
    return pieces


def joined(pieces: Sequence[bytes | LineConflict], side: Literal["ours", "theirs"] | None = None) -> bytes:
    """Return the text; each conflict becomes that `side`, or a block with git's markers."""
    return b"".join(
        piece if isinstance(piece, bytes) else getattr(piece, side) if side else _marked(piece)
        for piece in pieces
    )


def _marked(piece: LineConflict) -> bytes:
    found = []
    for mark, text in (
        (b"<<<<<<< ours", piece.ours),
        (b"||||||| base", piece.base),
        (b"=======", piece.theirs),
    ):
        found += [mark, b"\n", text, b"" if text.endswith(b"\n") or not text else b"\n"]
    return b"".join(found) + b">>>>>>> theirs\n"


def lines(data: bytes) -> list[bytes]:
    """Split into lines, each with its newline."""
    found = data.split(b"\n")
    return [line + b"\n" for line in found[:-1]] + ([found[-1]] if found[-1] else [])


def _groups(ours: list[Hunk], theirs: list[Hunk]) -> Iterator[tuple[list[Hunk], list[Hunk]]]:
    """Yield the hunks of both sides in groups that overlap or touch."""
    tagged = sorted([(*hunk, 0) for hunk in ours] + [(*hunk, 1) for hunk in theirs])
    group: tuple[list[Hunk], list[Hunk]] = ([], [])
    high = -1
    for low, end, start, stop, side in tagged:
        if low > high and (group[0] or group[1]):
            yield group
            group = ([], [])
        group[side].append((low, end, start, stop))
        high = max(high, end)
    if group[0] or group[1]:
        yield group


def _text(old: list[bytes], new: list[bytes], side: list[Hunk], low: int, high: int) -> bytes:
    """Return the lines of a version for the base's range from `low` to `high`."""
    found: list[bytes] = []
    for start, end, first, last in side:
        found += old[low:start] + new[first:last]
        low = end
    return b"".join(found + old[low:high])


def hunks(old: list[bytes], new: list[bytes], effort: Effort) -> list[Hunk]:
    """Return the changed ranges from `old` to `new`: a shortest edit script, changes as late as possible."""
    pairs = _matches(old, new, effort)
    found: list[Hunk] = []
    i = j = 0
    for a, b in [*pairs, (len(old), len(new))]:
        if (a, b) != (i, j):
            found.append((i, a, j, b))
        i, j = a + 1, b + 1
    return _late(old, new, found)


def _late(old: list[bytes], new: list[bytes], found: list[Hunk]) -> list[Hunk]:
    """Move each pure insertion and deletion down while the text stays the same, as git does."""
    done: list[Hunk] = []
    for hunk in reversed(found):
        a, b, c, d = hunk
        limit = done[-1][0] if done else len(old)
        while b < limit and (a == b or c == d):
            if (new[c] != new[d]) if a == b else (old[a] != old[b]):
                break
            a, b, c, d = a + 1, b + 1, c + 1, d + 1
        if done and b == done[-1][0]:
            _, b, _, d = done.pop()
        done.append((a, b, c, d))
    return done[::-1]


def _matches(old: list[bytes], new: list[bytes], effort: Effort) -> list[tuple[int, int]]:
    """Return the pairs of equal lines that stay, in order."""
    low, shorter = 0, min(len(old), len(new))
    while low < shorter and old[low] == new[low]:
        low += 1
    high = 0
    while high < shorter - low and old[-1 - high] == new[-1 - high]:
        high += 1
    effort.spend(low + high)
    found = [(index, index) for index in range(low)]
    ends = len(old) - high, len(new) - high
    # A line that the other version lacks matches nothing, and would only cost time.
    there, here = set(old[low : ends[0]]), set(new[low : ends[1]])
    first = [index for index in range(low, ends[0]) if old[index] in here]
    second = [index for index in range(low, ends[1]) if new[index] in there]
    number: dict[bytes, int] = {}
    one = [number.setdefault(old[index], len(number)) for index in first]
    two = [number.setdefault(new[index], len(number)) for index in second]
    found += [(first[i], second[j]) for i, j in _shortest(one, two, effort)]
    return found + [(ends[0] + index, ends[1] + index) for index in range(high)]


def _shortest(one: list[int], two: list[int], effort: Effort) -> list[tuple[int, int]]:
    """Return the matches of a shortest edit script: Myers, "An O(ND) Difference Algorithm", 1986."""
    n, m = len(one), len(two)
    reach, trace = {1: 0}, []
    for edits in range(n + m + 1):
        if edits > MOST_EDITS:
            raise TooDifferent
        effort.spend(2 * edits + 1)
        trace.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            begun = x = reach[k + 1] if down else reach[k - 1] + 1
            while x < n and x - k < m and one[x] == two[x - k]:
                x += 1
            effort.spend(x - begun)
            reach[k] = x
            if x >= n and x - k >= m:
                return _traced(trace, n, m)
    return []


def _traced(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    """Follow the edits back from the end."""
    found: list[tuple[int, int]] = []
    for edits in range(len(trace) - 1, 0, -1):
        reach, k = trace[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before = k + 1 if down else k - 1
        was = reach[before]
        while x > was + (not down):
            x, y = x - 1, y - 1
            found.append((x, y))
        x, y = was, was - before
    found += [(index, index) for index in reversed(range(x))]
    return found[::-1]
