"""`sandbox.pty`: terminals with a shell on them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from .commands import HOME, TO_END, E2BCommandResult, at, streamed
from .errors import NotFoundException, TimeoutException, translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from staddle import Sandbox


@dataclass
class PtySize:
    """The size of a terminal."""

    rows: int
    cols: int


class PtyHandle:
    """A terminal; its output goes to `on_data`, in a thread."""

    def __init__(self, terminal: Any, on_data: Callable[[bytes], Any] | None) -> None:
        self._terminal, self._said, self._on_data = terminal, b"", on_data
        self._lock, self._until = threading.Lock(), float("inf")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The number of the shell inside."""
        return int(self._terminal.pid)

    @property
    def stdout(self) -> str:
        """Its output so far, of which the last MiB is kept."""
        return self._said.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Empty: a terminal has one stream."""
        return ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the shell; None while it runs."""
        code: int | None = self._terminal.poll()
        return code

    def listen(self, on_data: Callable[[bytes], Any] | None) -> None:
        """Give what is printed from now on to another function, or to none."""
        with self._lock:
            self._on_data = on_data

    def connected(self, timeout: float | None) -> None:
        """Have `wait` end in so many seconds from now (0 and None: never)."""
        self._until = time.monotonic() + timeout if timeout else float("inf")

    def wait(self, on_pty: Any = None, on_stdout: Any = None, on_stderr: Any = None) -> E2BCommandResult:
        """Wait for the end of the shell. `on_pty` gets what was printed so far, and what is printed then."""
        if on_pty is not None:
            with self._lock:
                if self._said:
                    on_pty(self._said)
                self._on_data = on_pty
        left = self._until - time.monotonic()
        self._thread.join(None if left == float("inf") else max(0.0, left))
        if self._thread.is_alive():
            raise TimeoutException("the shell runs on: the time of this connection to it is up")
        code = self._terminal.wait()
        return E2BCommandResult("", self._said.decode("utf-8", "replace"), code or 0)

    def kill(self) -> bool:
        """Kill the shell with everything it started."""
        running = self._terminal.poll() is None
        if running:
            self._terminal.kill()
            self._terminal.wait(TO_END)
        return running

    def send_stdin(self, data: str | bytes, request_timeout: float | None = None) -> None:
        """Type something."""
        with translated():
            self._terminal.write(data.encode() if isinstance(data, str) else data)

    def disconnect(self) -> None:
        """Hear no more of it; it runs on."""
        self.listen(None)

    def _follow(self) -> None:
        try:
            while data := self._terminal.read():
                with self._lock:
                    self._said = (self._said + data)[-(1 << 20) :]
                    if self._on_data is not None:
                        self._on_data(data)
        except Exception:  # noqa: S110 - the sandbox has ended
            pass


class Pty:
    """The terminals of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._terminals: dict[int, Any] = {}
        self._handles: dict[int, PtyHandle] = {}

    def create(
        self,
        size: PtySize,
        user: str | None = None,
        cwd: str | None = None,
        envs: dict[str, str] | None = None,
        timeout: float | None = 60,
        request_timeout: float | None = None,
        on_data: Callable[[bytes], Any] | None = None,
    ) -> PtyHandle:
        """A terminal with an interactive shell, which is killed after `timeout` seconds; 0 is no end."""
        with translated():
            terminal = self._sandbox.terminal(
                rows=size.rows, cols=size.cols, cwd=at(cwd or HOME), env=envs, user=user
            )
        self._terminals[terminal.pid] = terminal
        handle = self._handles[terminal.pid] = PtyHandle(terminal, on_data)
        if timeout:
            timer = threading.Timer(timeout, handle.kill)
            timer.daemon = True
            timer.start()
        return handle

    def connect(
        self,
        pid: int,
        timeout: float | None = 60,
        request_timeout: float | None = None,
        on_data: Callable[[bytes], Any] | None = None,
    ) -> PtyHandle:
        """The handle of a terminal that is open; `on_data` gets what it prints from now on.

        Its `wait` ends `timeout` seconds from now at the latest. The shell runs on.
        """
        self._terminal(pid)
        self._handles[pid].connected(timeout)
        if on_data is not None:
            self._handles[pid].listen(on_data)
        return self._handles[pid]

    def send_stdin(self, pid: int, data: bytes, request_timeout: float | None = None) -> None:
        """Type something."""
        with translated():
            self._terminal(pid).write(data)

    def stream_input(self, pid: int, data: Iterable[str | bytes], *, timeout: float | None = 60) -> None:
        """Type each piece of `data`."""
        self._terminal(pid)
        streamed(self._handles[pid].send_stdin, data, timeout)

    def resize(self, pid: int, size: PtySize, request_timeout: float | None = None) -> None:
        """Another size."""
        with translated():
            self._terminal(pid).resize(size.rows, size.cols)

    def kill(self, pid: int, request_timeout: float | None = None) -> bool:
        """Kill its shell; whether it ran."""
        terminal = self._terminals.get(pid)
        if terminal is None or terminal.poll() is not None:
            return False
        terminal.kill()
        terminal.wait(TO_END)  # its number is free then
        return True

    def _terminal(self, pid: int) -> Any:
        if pid not in self._terminals:
            raise NotFoundException(f"there is no terminal {pid}")
        return self._terminals[pid]
