"""Reports and questions to the host program. Both are bounded, and the gateway never waits for them.

Attempts that repeat within a second are reported once with a count. If the host program does not read, or if
a sandbox causes too many reports, the gateway drops the rest and reports their number.

Questions concern destinations that no entry of the policy mentions. The gateway holds the connection until
the host program answers, and sends nothing before, not even a DNS query. Anything except a timely yes is a
no. Destinations that an entry refuses are never asked about.
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

#: Attempts queued for the socket, and attempts reported in one second.
_WAITING, _A_SECOND = 256, 200


class EventSender:
    """Sends reports and questions over the gateway's socket."""

    def __init__(self, loop: Loop, socket: _socket.socket) -> None:
        self._loop, self._socket = loop, socket
        self._waiting: deque[bytes] = deque()
        self._recent: dict[tuple[str, str, str, int, str, str], int] = {}
        self._second, self._told, self._lost = 0, 0, 0
        loop.sweep(self._sweep)

    def about(self, outcome: str, verdict: Verdict, why: str = "") -> None:
        """Report the outcome for a destination."""
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
        """Report an attempt, or count it."""
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
        """Ask for more unconnected sockets."""
        self._queue(encode_need_sockets(count), wish=True)

    def ask(self, question: ConnectQuestion) -> None:
        """Ask the host program for a decision."""
        self._queue(encode_question(question), wish=True)

    def send_flush(self, number: int) -> None:
        """Report everything, including repetitions, then confirm with `number`."""
        self._next_second(self._second)
        self._waiting.append(encode_flush(number))
        self.flush()

    def flush(self) -> None:
        """Send queued messages as far as the socket accepts them."""
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except OSError:
                return  # full, or closed, which the next read reports
            self._waiting.popleft()

    def _next_second(self, second: int) -> None:
        """Report the repetitions of the last second, one message for each attempt."""
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
        """Queue a message. A request (`wish`) is never dropped, because a connection waits for it."""
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


#: Number of open questions and of cached answers.
_MOST_QUESTIONS, _REMEMBERED = 32, 1024
#: Seconds for which an answer is valid, and before an unanswered question is asked again.
_FRESH, _UNANSWERED = 300.0, 10.0


class Approvals:
    """Questions and answers of one gateway. An answer may take `seconds`; with 0 the gateway does not ask."""

    def __init__(self, loop: Loop, events: EventSender, seconds: int) -> None:
        self._loop, self._events, self.seconds = loop, events, float(seconds)
        self._known: dict[tuple[str, int], tuple[bool, float]] = {}
        self._waiting: dict[int, tuple[Verdict, float, list[Callable[[bool], None]]]] = {}
        self._last = 0
        loop.sweep(self._sweep)

    def can(self, verdict: Verdict) -> bool:
        """Whether to ask about this refusal: only if no entry refuses the destination."""
        return bool(self.seconds and verdict.allow)

    def ask(self, verdict: Verdict, decided: Callable[[bool], None]) -> None:
        """Call `decided` once with the answer, at once if it is known."""
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
        """Forget all answers, because the rules have changed."""
        self._known.clear()

    def decided(self, identity: int, allowed: bool | None, fresh: float = _FRESH) -> None:
        """Process the answer to a question, valid for `fresh` seconds. A late answer is ignored.

        None is a no that is not cached.
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
