"""`PastFiles`: the files of a sandbox as they were at a point, for reading."""

from __future__ import annotations

import threading
from typing import Self

from ..files import MOST_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from ..files import AnyPath, FileInfo, Files, Match, Names
    from .point import HistoryPoint

    class PastSandbox(Protocol):
        """Fork at a point."""

        @property
        def files(self) -> Files: ...
        def close(self) -> None: ...


class PastFiles:
    """Files as they were at a point. The present does not change, and nothing can be written here.

    The first call opens a fork at the point, so a path leads to the same file as it did inside, and files
    denied to commands are denied here. Close it, or use it in a `with` block.
    """

    def __init__(self, point: HistoryPoint, fork: Callable[[], PastSandbox]) -> None:
        self.point, self._fork = point, fork
        self._sandbox: PastSandbox | None = None
        self._opening = threading.Lock()

    @property
    def _files(self) -> Files:
        with self._opening:
            if self._sandbox is None:
                self._sandbox = self._fork()
            return self._sandbox.files

    def read(
        self, path: AnyPath, *, limit: int = MOST_READ, offset: int = 0, length: int | None = None
    ) -> str:
        """Return the text of a file; see `Files.read`."""
        return self._files.read(path, limit=limit, offset=offset, length=length)

    def read_bytes(
        self, path: AnyPath, *, limit: int = MOST_READ, offset: int = 0, length: int | None = None
    ) -> bytes:
        """Return a file of at most `limit` bytes; see `Files.read_bytes`."""
        return self._files.read_bytes(path, limit=limit, offset=offset, length=length)

    def list(self, path: AnyPath = ".") -> Sequence[FileInfo]:
        """List a directory, sorted by name."""
        return self._files.list(path)

    def exists(self, path: AnyPath) -> bool:
        """Whether there was something at `path`."""
        return self._files.exists(path)

    def stat(self, path: AnyPath) -> FileInfo:
        """Return the facts of a file."""
        return self._files.stat(path)

    def glob(self, pattern: str) -> Names:
        """Return the sorted paths that match `pattern`; see `Files.glob`."""
        return self._files.glob(pattern)

    def grep(self, pattern: str, path: AnyPath = ".", *, limit: int = 1000) -> Sequence[Match]:
        """Find lines that match a POSIX extended pattern; see `Files.grep`."""
        return self._files.grep(pattern, path, limit=limit)

    def close(self) -> None:
        """Close the fork. A second call does nothing."""
        if self._sandbox is not None:
            self._sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PastFiles of {self.point!r}>"
