"""`Marks`: signatures by path, as a dictionary whose copies share their common part.

Each snapshot has a copy. A plain dictionary would cost each snapshot memory for every path.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Signature = tuple[int, ...]


class Marks:
    """Signatures by path; None if nothing was there.

    The entries at the time of the last copy are in read-only dictionaries, the oldest first. Two are joined
    as soon as the newer one is as large. So a copy costs little more than its new entries.
    """

    def __init__(self, found: Mapping[str, Signature | None] | None = None) -> None:
        self._shared: tuple[dict[str, Signature | None], ...] = ()
        self._own = dict(found or {})
        self._lock = threading.Lock()

    def copy(self) -> Marks:
        """Return a copy; later changes to either do not show in the other."""
        with self._lock:
            self._freeze()
            other = Marks()
            other._shared = self._shared
            return other

    def _freeze(self) -> None:
        newest, shared = self._own, self._shared
        if not newest:
            return
        while shared and len(shared[-1]) <= len(newest):
            newest, shared = {**shared[-1], **newest}, shared[:-1]
        self._shared, self._own = (*shared, newest), {}

    def as_dict(self) -> dict[str, Signature | None]:
        """Return all entries."""
        found: dict[str, Signature | None] = {}
        for one in (*self._shared, self._own):
            found.update(one)
        return found

    def get(self, path: str, other: Signature | None = None) -> Signature | None:
        """Return the signature at `path`; `other` if it is unknown."""
        for one in (self._own, *reversed(self._shared)):
            if path in one:
                return one[path]
        return other

    def setdefault(self, path: str, mark: Signature | None) -> None:
        """Set the signature at `path`, if it is unknown."""
        if path not in self:
            self[path] = mark

    def __contains__(self, path: str) -> bool:
        return path in self._own or (bool(self._shared) and any(path in one for one in self._shared))

    def __getitem__(self, path: str) -> Signature | None:
        if path not in self:
            raise KeyError(path)
        return self.get(path)

    def __setitem__(self, path: str, mark: Signature | None) -> None:
        with self._lock:
            self._own[path] = mark

    def forget(self, paths: list[str]) -> None:
        """Forget the signatures of these paths."""
        with self._lock:
            found = self.as_dict()
            for path in paths:
                found.pop(path, None)
            self._shared, self._own = (), found

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __bool__(self) -> bool:
        return bool(self._own or self._shared)
