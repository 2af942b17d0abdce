"""The output of a command as it is kept: bounded in memory, counted exactly, whole on disk when asked."""

from __future__ import annotations

import codecs
import os

from ..errors import InvalidCall
from ..launch.output import FLOOD, Flooded, HeadTail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_NO_END = float("inf")


class Capture:
    """One stream: head and tail within `limit`; more than that goes to a file, if there is a `spill`.

    The file exists only when something was dropped here, and holds all of the stream.
    """

    __slots__ = ("_kept", "_limit", "_most", "_spill")

    def __init__(self, limit: int | None, spill: Spill | None = None, *, taken: bool = False) -> None:
        """`taken`: somebody hears all of it, however much that is."""
        self._kept: HeadTail | None = None  # most commands print nothing to one of their streams
        self._limit = limit
        self._spill = spill
        self._most = _NO_END if taken or spill or limit is None else max(limit, FLOOD)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._kept is None:
            self._kept = HeadTail(self._limit)
        kept = self._kept
        if self._spill is not None and self._limit is not None and kept.total + len(data) > self._limit:
            if not self._spill.begun:
                self._spill.write(kept.value())  # until now nothing was dropped: this is all of it
            self._spill.write(data)
        kept.feed(data)
        if kept.total > self._most:
            raise Flooded

    def finish(self) -> tuple[bytes, int, str | None]:
        """What was kept, how much was not, and the file with all of the stream, if there is one."""
        kept = self._kept
        spilled = None if self._spill is None else self._spill.finish()
        return (b"", 0, spilled) if kept is None else (kept.value(), kept.dropped, spilled)


class Spill:
    """A file of the host that takes what does not fit in memory.

    It is made on the first write, readable by its owner only, under a name that nobody had.
    When the disk is full the file is removed: a part of the output would look like all of it.
    """

    def __init__(self, directory: str, stream: str) -> None:
        self._directory = directory
        self._stream = stream
        self._path: str | None = None
        self._fd = -1
        self.begun = False

    def write(self, data: bytes) -> None:
        """Append. What cannot be written is not an error of the command."""
        try:
            if not self.begun:
                self.begun = True
                self._path = os.path.join(self._directory, f"{self._stream}-{os.urandom(6).hex()}.txt")
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o600)
            rest = memoryview(data)
            while rest and self._fd >= 0:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            self._give_up()

    def finish(self) -> str | None:
        """Close it; its path, if all of the output is there."""
        if self._fd < 0:
            return None
        os.close(self._fd)
        self._fd = -1
        return self._path

    def _give_up(self) -> None:
        if self._fd >= 0 and self._path is not None:
            os.close(self._fd)
            os.unlink(self._path)
        self._fd, self._path = -1, None


def spills(directory: object) -> tuple[Spill, Spill] | tuple[None, None]:
    """Where stdout and stderr spill to: into `directory`, an existing one of the host; None is nowhere."""
    if directory is None:
        return None, None
    if not isinstance(directory, str | os.PathLike):
        raise InvalidCall(f"spill is {directory!r}", why="it is not a path", fix="name a directory")
    path = os.path.abspath(os.fsdecode(directory))
    if not os.path.isdir(path):
        raise InvalidCall(f"spill is {path!r}", why="there is no such directory", fix="make it first")
    return Spill(path, "stdout"), Spill(path, "stderr")


class Told:
    """Passes a stream on to a callback as text, as it comes; a character is never cut in two."""

    def __init__(self, callback: Callable[[str], object]) -> None:
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if text := self._decoder.decode(data):
            self._callback(text)

    def finish(self) -> None:
        """The stream is over: half a character is an odd one now."""
        if text := self._decoder.decode(b"", final=True):
            self._callback(text)
