"""Our own standard output and error for a program that must not print secrets there.

A stream that is a terminal stays what it is: a person sits there, whose secrets they are.
"""

from __future__ import annotations

import os
from functools import partial

from ..background import start_thread
from ..linux.fileio import write_all
from .redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Self

    from .redaction import Secrets

#: So long a process that was left behind can keep a stream open after the program's end, in seconds.
_PATIENCE = 0.5


class RedactedStreams:
    """`stdout` and `stderr` are descriptors for a program: our own, or pipes that are relayed to them."""

    def __init__(self, secrets: Secrets | None) -> None:
        self.stdout, self.stderr = 1, 2
        self._pipes: list[int] = []
        self._relays: list[threading.Thread] = []
        if secrets is None or not secrets.values:
            return
        for name, fd in (("stdout", 1), ("stderr", 2)):
            if is_relayed(fd):
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                self._pipes.append(theirs)
                setattr(self, name, theirs)
                self._relays.append(start_thread(partial(_relay, ours, fd, secrets.spelled), "staddle-relay"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        for relay in self._relays:
            relay.join(_PATIENCE)


def is_relayed(fd: int) -> bool:
    """Whether a stream of ours is open, and is no terminal."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return not os.isatty(fd)


def _relay(ours: int, fd: int, values: tuple[bytes, ...]) -> None:
    redactor = Redactor(values)
    try:
        while data := os.read(ours, 65536):
            write_all(fd, redactor.feed(data))
        write_all(fd, redactor.finish())
    except OSError:
        pass  # its reader is gone: the program hears of it, the pipe closes
    finally:
        os.close(ours)
