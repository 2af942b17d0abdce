"""A sandbox of a server in the UI. It stays, with its terminals and snapshots, when the UI ends.

Does not import textual.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from functools import cached_property

from staddle.errors import StaddleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from staddle import Enforcement, Plan

    from .log_pane import EventFeed

#: Seconds that a request for events waits, and the bytes of a terminal's old output that are shown.
_WAIT, _BEFORE = 10.0, 1 << 17
_PIECE = 1 << 16
#: Messages of a terminal's WebSocket.
_TEXT, _BINARY = 1, 2


class AttachedSandbox:
    """A `ServerSandbox` with the calls that the UI makes of a `Sandbox`. `close()` only detaches."""

    def __init__(self, client: Any, name: str, feed: EventFeed) -> None:
        self._client, self._feed = client, feed
        self._sandbox = client.get(name)
        self.id = self._sandbox.id
        self.alive = True
        self._terminals: set[str] = set()  # those that a tab shows, or has shown
        self._asked: set[str] = set()
        self._last = client.events(1 << 40)["last"]
        threading.Thread(target=self._follow, name="staddle-tui events", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    @cached_property
    def enforced(self) -> Enforcement:
        """The protections in force; asked once, because the UI draws them often."""
        found: Enforcement = self._sandbox.enforced
        return found

    @cached_property
    def plan(self) -> Plan:
        """The policy, resolved on the server's host."""
        found: Plan = self._sandbox.plan
        return found

    def fork(self, n: int = 1) -> list[AttachedSandbox]:
        """Open `n` sandboxes in the server that continue from here."""
        return [AttachedSandbox(self._client, made.id, self._feed) for made in self._sandbox.fork(n)]

    def review(self, paths: Sequence[str] | None = None) -> AttachedReview:
        """Return what a commit would do."""
        return AttachedReview(self._sandbox.review(paths))

    def terminal(self, argv: Sequence[str] | None = None, *, rows: int, cols: int) -> AttachedTerminal:
        """Attach to the newest open terminal that no tab has shown yet, else open one."""
        every = self._sandbox.terminals()
        found = [each for each in every if each.id not in self._terminals and each.poll() is None]
        chosen = found[-1] if found else self._sandbox.terminal(argv, rows=rows, cols=cols)
        self._terminals.add(chosen.id)
        attached = AttachedTerminal(chosen)
        attached.resize(rows, cols)
        return attached

    def close(self) -> None:
        """Detach. The sandbox stays."""
        self.alive = False

    def _follow(self) -> None:
        """Pass the server's records of this sandbox, and its questions, to the UI."""
        is_first = True
        while self.alive:
            try:
                found = self._client.events(self._last, 0.0 if is_first else _WAIT, self.id)
                self._last = found["last"]
                kinds = {record["kind"] for record in found["events"]}
                self.alive &= "closed" not in kinds
                for record in found["events"]:
                    if record["kind"] not in ("question", "answer", "created"):
                        facts = record.get("facts") or {}
                        self._feed.record({**facts, "what": record["kind"], "at": record["at"]})
                if is_first or "question" in kinds:
                    self._ask()
                is_first = False
            except (StaddleError, OSError, ValueError):
                return  # the client was closed, or the server is gone

    def _ask(self) -> None:
        for each in self._sandbox.questions():
            if each["id"] not in self._asked:
                self._asked.add(each["id"])
                threading.Thread(target=self._answer, args=(each,), daemon=True).start()

    def _answer(self, question: dict[str, Any]) -> None:
        allowed = self._feed.on_connect(question["event"])
        with suppress(StaddleError, OSError):  # another client has answered, or its time was up
            if allowed or not self._feed.is_closed:  # who leaves has not refused: others may answer
                self._sandbox.answer(question["id"], bool(allowed))


class AttachedReview:
    """A `ServerReview` whose conflicts are decided one by one."""

    def __init__(self, review: Any) -> None:
        self._review = review

    def __getattr__(self, name: str) -> Any:
        return getattr(self._review, name)

    def commit(self, paths: Sequence[str] | None, *, on_conflict: Any, allow: Sequence[str]) -> Any:
        """Write the reviewed changes at these paths. Conflicts are overwritten only if all of them may be."""
        chosen = (
            None
            if paths is None
            else {self.root + "/" + path.removeprefix(f"{self.root}/") for path in paths}
        )
        found = [each for each in self.conflicts if chosen is None or f"{self.root}/{each.path}" in chosen]
        may = bool(found) and all(on_conflict(each) == "overwrite" for each in found)
        return self._review.commit(paths, on_conflict="overwrite" if may else "refuse", allow=allow)


class AttachedTerminal:
    """A terminal of a server through a descriptor, as the UI's panes use one. `close()` only detaches."""

    def __init__(self, terminal: Any) -> None:
        self._terminal, self._status, self._is_closed = terminal, terminal.poll(), False
        self.pid = terminal.pid
        #: Its output so far.
        self.before = terminal.read(0.0)[-_BEFORE:]
        self._socket, self._messages = terminal.attach(terminal.offset)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        for work in (self._pass_output, self._pass_input):
            threading.Thread(target=work, name="staddle-tui attached", daemon=True).start()

    def fileno(self) -> int:
        """The descriptor to wait for output."""
        return self._ours.fileno()

    def read_some(self) -> bytes | None:
        """Read the available output; None if there is none yet, empty at the end."""
        try:
            return self._ours.recv(_PIECE)
        except BlockingIOError:
            return None

    def write_some(self, data: bytes | memoryview) -> int:
        """Type as much of `data` as fits. Returns the number of bytes."""
        try:
            return self._ours.send(data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)

    def resize(self, rows: int, cols: int) -> None:
        """Set the size."""
        with suppress(OSError):
            self._messages.send(_TEXT, json.dumps({"rows": rows, "cols": cols}).encode())

    def poll(self) -> int | None:
        """The exit status of its program; None while it runs."""
        status: int | None = self._status
        return status

    def close(self) -> None:
        """Detach. Its program goes on."""
        if not self._is_closed:
            self._is_closed = True
            for each in (self._socket, self._theirs):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._ours.close()

    def _pass_output(self) -> None:
        try:
            while (message := self._messages.message()) is not None:
                kind, data = message
                if kind == _BINARY:
                    self._theirs.sendall(data)
                elif "exit_code" in (said := json.loads(data)):
                    self._status = said["exit_code"]
        except Exception:  # noqa: S110 - it was detached, or the server is gone
            pass
        with suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)

    def _pass_input(self) -> None:
        with suppress(Exception):  # the same
            while data := self._theirs.recv(_PIECE):
                self._messages.send(_BINARY, data)
