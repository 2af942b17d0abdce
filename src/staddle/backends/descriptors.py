"""Descriptors for a launcher: files to show, texts, its arguments, the filter.

A descriptor cannot be swapped for something else between the check and the start, and what
it holds is on no command line. The launcher closes every one of these before the command begins.
"""

from __future__ import annotations

import fcntl
import os

from ..mounts.host import open_named


class Descriptors:
    """Open descriptors that belong to one launch, closed together."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def keep(self, descriptor: int) -> int:
        """Close this one too. Never one of the standard three, should our caller have closed those."""
        if descriptor <= 2:
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        self._open.append(descriptor)
        return descriptor

    def holding(self, data: bytes) -> int:
        """A nameless file in memory with `data`, to be read from its start."""
        descriptor = self.keep(os.memfd_create("staddle"))
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:] if written else data, written)
        return descriptor

    def naming(self, path: str) -> int:
        """The file or directory at `path`, in which no component may be a link."""
        return self.keep(open_named(path))

    def all(self) -> tuple[int, ...]:
        """Every descriptor to pass on."""
        return tuple(self._open)

    def close(self) -> None:
        """Close them all. Never raises, and a second time does nothing."""
        while self._open:
            try:
                os.close(self._open.pop())
            except OSError:
                continue
