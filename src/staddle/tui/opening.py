"""Opens the sandbox of the UI in a thread, while the UI is still being loaded. Loads no textual."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from staddle import Sandbox

    from .feed import EventFeed


class SandboxOpening:
    """A sandbox that is being opened.

    `open_it` opens one for `feed`, for the first tab the kept one, later ones anew. It is called in a
    thread that lives as long as the program.
    """

    def __init__(
        self,
        open_it: Callable[[EventFeed, bool], Sandbox],
        feed: EventFeed,
        *,
        directory: str,
        label: str,
        timeout: float | None = None,
        policy_file: str | None = None,
        keep: str | None = None,
    ) -> None:
        self.feed, self.directory, self.label = feed, directory, label
        self.timeout, self.policy_file, self.keep = timeout, policy_file, keep
        self._open_it = open_it
        self._lock = threading.Lock()
        self._opened: Sandbox | BaseException | None = None
        self._then: Callable[[Sandbox | BaseException], object] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to open it."""
        self._thread = threading.Thread(target=self._work, name="staddle-tui open", daemon=True)
        self._thread.start()

    def when_open(self, then: Callable[[Sandbox | BaseException], object]) -> None:
        """Have `then` called with the sandbox, or the error, perhaps at once; from any thread."""
        with self._lock:
            self._then = then
            opened = self._opened
        if opened is not None:
            then(opened)

    def another(self) -> Sandbox:
        """One more sandbox of the same kind, not a kept one."""
        return self._open_it(self.feed, False)

    def close(self) -> None:
        """End a sandbox that was opened for no tab; wait for one that is being opened."""
        if self._thread is not None:
            self._thread.join()
        if self._opened is not None and not isinstance(self._opened, BaseException):
            self._opened.close()

    @property
    def error(self) -> BaseException | None:
        """Reason why it could not be opened."""
        return self._opened if isinstance(self._opened, BaseException) else None

    def _work(self) -> None:
        opened: Sandbox | BaseException
        try:
            opened = self._open_it(self.feed, True)
        except BaseException as error:
            opened = error
        with self._lock:
            self._opened = opened
            then = self._then
        if then is not None:
            then(opened)
