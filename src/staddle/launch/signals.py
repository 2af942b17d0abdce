"""Wait for signals together with descriptors, instead of being interrupted by them.

On Linux, in a program with one thread, this is a signalfd, because importing `signal` would cost every
`staddle run` five milliseconds. Elsewhere it is that module's wake-up descriptor.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self

#: Equal on all supported systems.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 3, 9, 13, 15
SIGCHLD, SIGXFSZ = (20, 25) if sys.platform == "darwin" else (17, 25)


class _Descriptor:
    """Signals by signalfd (Linux).

    Inside the context, the signals arrive at `descriptor` and have no other effect. Signals that were ignored
    when this process started (nohup) stay ignored. For the main thread.
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
        """Return the signals since the last call."""
        from ..linux import process

        return process.read_signals(self.descriptor)

    def __exit__(self, *_: object) -> None:
        from ..linux import process

        self.read()  # discard the rest, which must not act once unblocked
        os.close(self.descriptor)
        process.unblock_signals(self._numbers)


class _WakeUp:
    """Signals by the signal module (macOS, or programs with other threads)."""

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
        """Return the signals since the last call."""
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
    """Return a context that waits for these signals in the way of this system."""
    if sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1:
        return _Descriptor(numbers)
    return _WakeUp(numbers)  # another thread could receive a signal, and the descriptor would not have it


def waiting_among_threads(numbers: Iterable[int]) -> _WakeUp:
    """Return such a context for a program with several threads, any of which may receive a signal."""
    return _WakeUp(numbers)
