"""Reports to the host program, and the questions that it answers: bounded, and never waited for.

The same thing in one second is told once, with a count. When the host side does not read, or
a sandbox makes more noise than anybody could read, the rest is counted and the count is told.

Questions are about destinations that no entry of the policy mentions. The connection is held while the
host program thinks; nothing has left by then, no DNS question either. Anything but a yes in time is a no. An
entry that refuses is never asked about.
"""

from __future__ import annotations

import _socket
from collections import deque

from ...ipc.gateway_messages import (
    Attempt,
    ConnectQuestion,
    encode_attempt,
    encode_flush,
    encode_need_sockets,
    encode_question,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..rules.rules import Verdict
    from .loop import Loop

#: Attempts that wait for the socket, and attempts in one second.
_WAITING, _A_SECOND = 256, 200


class EventSender:
    """The gateway's own end of the socket, for sending."""

    def __init__(self, loop: Loop, socket: _socket.socket) -> None:
        self._loop, self._socket = loop, socket
        self._waiting: deque[bytes] = deque()
        self._recent: dict[tuple[str, str, str, int, str, str], int] = {}
        self._second, self._told, self._lost = 0, 0, 0
        loop.sweep(self._sweep)

    def about(self, outcome: str, verdict: Verdict, why: str = "") -> None:
        """Tell what became of a destination."""
        self.tell(
            Attempt(
                outcome,  # type: ignore[arg-type]
                verdict.protocol,
                verdict.host,
                verdict.port,
                why or verdict.rule,
                verdict.allow,
            )
        )

    def tell(self, attempt: Attempt) -> None:
        """Tell it, soon, or count it."""
        second = int(self._loop.now)
        if second != self._second:
            self._next_second(second)
        key = (attempt.outcome, attempt.protocol, attempt.host, attempt.port, attempt.why, attempt.allow)
        seen = self._recent.get(key)
        if seen is not None:
            self._recent[key] = seen + 1
            return
        self._told += 1
        if self._told > _A_SECOND:
            self._lost += 1
            return
        self._recent[key] = 0
        self._queue(encode_attempt(attempt))

    def need_sockets(self, count: int) -> None:
        """Ask for more sockets that are not connected yet."""
        self._queue(encode_need_sockets(count), wish=True)

    def ask(self, question: ConnectQuestion) -> None:
        """Ask for a decision."""
        self._queue(encode_question(question), wish=True)

    def send_flush(self, number: int) -> None:
        """Tell what there is, repetitions too, then that this was all until now."""
        self._next_second(self._second)
        self._waiting.append(encode_flush(number))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except OSError:
                return  # full; or gone, which reading from it tells
            self._waiting.popleft()

    def _next_second(self, second: int) -> None:
        """A new second: the repetitions of the last one, as one message each."""
        for (outcome, protocol, host, port, why, allow), again in self._recent.items():
            if again:
                repeated = Attempt(outcome, protocol, host, port, why, allow, again)  # type: ignore[arg-type]
                self._queue(encode_attempt(repeated))
        self._recent.clear()
        if second != self._second:
            self._second, self._told = second, 0
        if self._lost:
            lost, self._lost = self._lost, 0
            self._queue(
                encode_attempt(Attempt("note", "", "", 0, f"{lost} attempts were not reported", count=lost))
            )

    def _queue(self, message: bytes, wish: bool = False) -> None:
        """Send it when the socket takes it. A request is never dropped: a connection waits for it."""
        if wish:
            self._waiting.appendleft(message)
        elif len(self._waiting) >= _WAITING:
            self._lost += 1
            return
        else:
            self._waiting.append(message)
        self.flush()

    def _sweep(self, now: float) -> bool:
        if int(now) != self._second and (self._recent or self._lost):
            self._next_second(int(now))
        self.flush()
        return bool(self._recent or self._waiting or self._lost)


#: Questions that wait at once, and answers that are remembered.
_MOST_QUESTIONS, _REMEMBERED = 32, 1024
#: Seconds: for which an answer holds, and before a question without an answer is asked again.
_FRESH, _UNANSWERED = 300.0, 10.0


class Approvals:
    """Questions and answers of one gateway. `seconds` is the time for an answer; 0 does not ask."""

    def __init__(self, loop: Loop, events: EventSender, seconds: int) -> None:
        self._loop, self._events, self.seconds = loop, events, float(seconds)
        self._known: dict[tuple[str, int], tuple[bool, float]] = {}
        self._waiting: dict[int, tuple[Verdict, float, list[Callable[[bool], None]]]] = {}
        self._last = 0
        loop.sweep(self._sweep)

    def can(self, verdict: Verdict) -> bool:
        """Whether this refusal is one to ask about: nothing refuses it by name."""
        return bool(self.seconds and verdict.allow)

    def ask(self, verdict: Verdict, decided: Callable[[bool], None]) -> None:
        """Have `decided` called once, perhaps at once."""
        known = self._known.get((verdict.host, verdict.port))
        if known is not None and known[1] > self._loop.now:
            decided(known[0])
            return
        for asked, _, callbacks in self._waiting.values():
            if (asked.host, asked.port) == (verdict.host, verdict.port):
                if len(callbacks) < _REMEMBERED:
                    callbacks.append(decided)
                else:
                    decided(False)
                return
        if len(self._waiting) >= _MOST_QUESTIONS:
            decided(False)
            return
        self._last += 1
        self._waiting[self._last] = (verdict, self._loop.now + self.seconds, [decided])
        self._events.ask(ConnectQuestion(self._last, verdict.host, verdict.port))

    def forget(self) -> None:
        """Ask again about everything: the rules are others now."""
        self._known.clear()

    def decided(self, identity: int, allowed: bool | None, fresh: float = _FRESH) -> None:
        """The answer to a question, and how long it holds; one that is not waiting any more is too late.

        None is a no that is not remembered.
        """
        waiting = self._waiting.pop(identity, None)
        if waiting is None:
            return
        verdict, _, callbacks = waiting
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        if allowed is not None:
            self._known[verdict.host, verdict.port] = (allowed, self._loop.now + fresh)
        for callback in callbacks:
            callback(allowed is True)

    def _sweep(self, now: float) -> bool:
        for identity, (_, deadline, _) in list(self._waiting.items()):
            if now >= deadline:
                self.decided(identity, False, _UNANSWERED)
        return bool(self._waiting)
