"""Values that must not be seen, taken out of output, events and errors.

Against accidents: a program that prints its settings, a traceback with a token in it. A program that
may read a value can print it in another spelling, which nothing here recognises.
"""

from __future__ import annotations

import os

from ..policy.secrets import is_secret
from .output import Tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..errors import StaddleError
    from ..events import Event

#: What stands where a value was.
MARK = b"(hidden)"
#: A variable that only looks like a secret is one from this length on: `AUTH=1` is a switch.
SHORTEST_GUESS = 8


def secret_values(layers: Iterable[Mapping[str, str]], declared: Iterable[str]) -> tuple[str, ...]:
    """The values to hide: of the declared names, and of names that look like secrets."""
    named = frozenset(declared)
    found = set()
    for layer in layers:
        for name, value in layer.items():
            if not isinstance(value, str):
                continue  # refused elsewhere, with a reason
            bare = value.strip()  # `cat` of a key file and a variable of it differ in the line end
            if bare and (name in named or (len(bare) >= SHORTEST_GUESS and is_secret(name, bare))):
                found.add(bare)
    return tuple(sorted(found))


class Redactor:
    """Replaces the values in a stream, wherever it is cut into chunks.

    What could be the beginning of a value is held back until it is known to be one or not,
    so at most the length of the longest value waits here.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        self._values = tuple(sorted({value for value in values if value}))
        self._held = b""
        self._covered = 0  # of what is held: the rest of an occurrence whose mark has been written

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; the ones that are certain by now."""
        if not self._values:
            return data
        data = self._held + data
        return self._emit(data, len(data) - self._begun(data))

    def finish(self) -> bytes:
        """The bytes that were held back."""
        return self._emit(self._held, len(self._held))

    def _emit(self, data: bytes, cut: int) -> bytes:
        """Everything before `cut`; the rest is kept."""
        out, at = bytearray(), 0
        before = [(0, self._covered)] if self._covered else []
        for start, end in _joined([*before, *self._occurrences(data)]):
            if before and start == 0:
                at = end  # its mark has been written
                continue
            if start >= cut:
                break
            out += data[at:start] + MARK
            at = end
        out += data[at:cut]
        self._covered = max(0, at - cut)
        self._held = data[cut:]
        return bytes(out)

    def _occurrences(self, data: bytes) -> list[tuple[int, int]]:
        found = []
        for value in self._values:
            start = at = data.find(value)
            while at >= 0:
                end = at + len(value)
                # `aaaa` in a long run of `a` overlaps itself at every place: go on from the last.
                at = data.rfind(value, at + 1, end - 1 + len(value))
                if at < 0:
                    found.append((start, end))
                    start = at = data.find(value, end)
        return found

    def _begun(self, data: bytes) -> int:
        """The number of bytes at the end that could begin a value."""
        most = 0
        for value in self._values:
            at = data.find(value[:1], max(0, len(data) - len(value) + 1))
            while at >= 0 and not value.startswith(data[at:]):
                at = data.find(value[:1], at + 1)
            most = max(most, len(data) - at if at >= 0 else 0)
        return most


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and those that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


class RedactedTail(Tail):
    """A Tail that never holds a value, not even in part: they are gone before anything is cut off.

    What it counts are the bytes after that.
    """

    def __init__(self, limit: int | None, values: Iterable[bytes]) -> None:
        super().__init__(limit)
        self._redactor = Redactor(values)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream; none at all is its end."""
        super().feed(self._redactor.feed(data) if data else self._redactor.finish())

    def value(self) -> bytes:
        """The kept bytes."""
        self.feed(b"")
        return super().value()


class Secrets:
    """The values of one call, and how they leave what is shown of it."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = tuple(os.fsencode(value) for value in values)
        # An error shows a name as Python spells it.
        self._spelled = {*self.values, *(os.fsencode(repr(value)[1:-1]) for value in values)}

    def text(self, text: str) -> str:
        """`text` without the values."""
        if not self.values:
            return text
        redactor = Redactor(self._spelled)
        data = redactor.feed(text.encode("utf-8", "surrogateescape")) + redactor.finish()
        return data.decode("utf-8", "surrogateescape")

    def event(self, event: Event) -> Event:
        """`event` without the values: what was made inside may be called anything."""
        if not self.values:
            return event
        return event.replace(
            what=self.text(event.what), rule=self.text(event.rule), allow=self.text(event.allow)
        )

    def strip(self, error: StaddleError) -> None:
        """Take the values out of what `error` says."""
        if self.values:
            error.what, error.why, error.fix = map(self.text, (error.what, error.why, error.fix))
            error.args = (error.what, error.why, error.fix)
