"""Decisions of the host program about destinations that no entry of the policy mentions.

The connection is held while they think; nothing has left by then, no DNS question either.
Anything but a yes in time is a no. An entry that refuses is never asked about.
"""

from __future__ import annotations

from ...ipc.gateway_messages import ConnectQuestion

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..rules.rules import Verdict
    from .event_sender import EventSender
    from .loop import Loop

#: Questions that wait at once, and answers that are remembered.
_WAITING, _REMEMBERED = 32, 1024
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
        if len(self._waiting) >= _WAITING:
            decided(False)
            return
        self._last += 1
        self._waiting[self._last] = (verdict, self._loop.now + self.seconds, [decided])
        self._events.ask(ConnectQuestion(self._last, verdict.host, verdict.port))

    def decided(self, identity: int, allowed: bool, fresh: float = _FRESH) -> None:
        """The answer to a question, and how long it holds; one that is not waiting any more is too late."""
        waiting = self._waiting.pop(identity, None)
        if waiting is None:
            return
        verdict, _, callbacks = waiting
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[verdict.host, verdict.port] = (allowed, self._loop.now + fresh)
        for callback in callbacks:
            callback(allowed)

    def _sweep(self, now: float) -> bool:
        for identity, (_, deadline, _) in list(self._waiting.items()):
            if now >= deadline:
                self.decided(identity, False, _UNANSWERED)
        return bool(self._waiting)
