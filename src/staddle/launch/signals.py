"""Signals as something to wait for, beside descriptors, instead of something that interrupts.

On Linux a signalfd: the `signal` module would cost every `staddle run` five milliseconds of
imports. Elsewhere that module's wake-up descriptor.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self

#: The same on every system we run on.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 3, 9, 13, 15
SIGCHLD, SIGXFSZ = (20, 25) if sys.platform == "darwin" else (17, 25)


class _Descriptor:
    """By signalfd (Linux).

    While it is entered, the signals arrive at `descriptor` and do nothing else. Those that
    this process was started with ignored (nohup) stay ignored. For the main thread.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = tuple(numbers)
        self.descriptor = -1

    def __enter__(self) -> Self:
        from ..linux import process

        ignored = process.ignored_signals()
        self._numbers = tuple(n for n in self._numbers if n == SIGCHLD or n not in ignored)
        process.block_signals(self._numbers)
        self.descriptor = process.signal_descriptor(self._numbers)
        return self

    def read(self) -> list[int]:
        """Read the signals that arrived since the last time."""
        from ..linux import process

        return process.read_signals(self.descriptor)

    def __exit__(self, *_: object) -> None:
        from ..linux import process

        self.read()  # what came last was seen; it must not strike when it is let through again
        os.close(self.descriptor)
        process.unblock_signals(self._numbers)


class _WakeUp:
    """The same by the signal module (macOS, or where other threads run)."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = tuple(numbers)
        self.descriptor = -1

    def __enter__(self) -> Self:
        import signal

        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._old: dict[int, Any] = {}
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN or number == SIGCHLD:
                self._old[number] = signal.signal(number, lambda *_: None)
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def read(self) -> list[int]:
        """Read the signals that arrived since the last time."""
        try:
            return list(os.read(self.descriptor, 512))
        except BlockingIOError:
            return []

    def __exit__(self, *_: object) -> None:
        import signal

        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._write)


def waiting(numbers: Iterable[int]) -> _Descriptor | _WakeUp:
    """These signals as something to wait for, in the way that this system has."""
    return _Descriptor(numbers) if sys.platform == "linux" else _WakeUp(numbers)


def waiting_among_threads(numbers: Iterable[int]) -> _WakeUp:
    """The same in a program with more threads than one: a signal may meet any of them."""
    return _WakeUp(numbers)
