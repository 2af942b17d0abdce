"""Call `on_connect`, which decides about destinations that no entry of the policy mentions.

It receives an Event of kind "question". `what` is `host:port`: the name or address that a program inside
connects to over TCP. `rule` is the reason for the refusal, and `allow` is the entry that would allow it. If
`what` is an address, `rule` also names its kind: public, private, loopback, link-local or metadata. Only True
allows the connection; None refuses it this time, and the next connection asks again. Calls run in our own
threads, a few at a time, so a slow call does not delay the others. The gateway waits no longer than its
settings say.
"""

from __future__ import annotations

import _thread
import time
from collections import deque

from ... import check
from ...errors import InvalidCall
from ...events import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.gateway_messages import ConnectQuestion
    from ...policy.network import Network

    OnConnect = Callable[[Event], object]
    #: The question, functions that receive the answer and errors, and the time after which not to ask.
    Answer = Callable[[ConnectQuestion, bool | None], None]
    Waiting = tuple[ConnectQuestion, Answer, Callable[[Event], None], float]

#: Simultaneous calls, and questions that wait for a turn: as many as a gateway waits for.
_AT_ONCE, _WAITING = 8, 32
#: Requests that "always" allows.
_REMEMBERED = 1024
_LONGEST = 300
#: Seconds between two looks whether all is answered.
_PAUSE = 0.002
_COROUTINE = 0x80 | 0x100  # CO_COROUTINE, CO_ITERABLE_COROUTINE


class ApprovalCalls:
    """Calls `on_connect` and passes its answers on. Thread-safe; starts threads only for questions."""

    name = "on_connect"

    def __init__(self, on_connect: OnConnect, network: Network, seconds: int) -> None:
        self._ask, self._network, self._seconds = on_connect, network, seconds
        self._lock = _thread.allocate_lock()
        self._waiting: deque[Waiting] = deque()
        self._running = 0
        self._closed = False

    def ask(self, question: ConnectQuestion, answer: Answer, note: Callable[[Event], None]) -> None:
        """Call `answer` with the decision, from another thread, if it comes in time."""
        waiting = (question, answer, note, time.monotonic() + self._seconds)
        with self._lock:
            if self._closed or len(self._waiting) >= _WAITING:
                return  # no answer means no
            if self._running >= _AT_ONCE:
                self._waiting.append(waiting)
                return
            self._running += 1
        try:
            _thread.start_new_thread(self._work, (waiting,))
        except RuntimeError:  # too many threads
            with self._lock:
                self._running -= 1

    def wait(self) -> None:
        """Wait until the questions so far are answered, or too old."""
        until = time.monotonic() + self._seconds
        while self._running and time.monotonic() < until:
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Stop calling `on_connect`."""
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _work(self, waiting: Waiting | None) -> None:
        while waiting is not None:
            question, answer, note, until = waiting
            if time.monotonic() < until and not self._closed:
                answer(question, self._decided(question, note))
            with self._lock:
                waiting = self._waiting.popleft() if self._waiting else None
                if waiting is None:
                    self._running -= 1

    def _decided(self, question: ConnectQuestion, note: Callable[[Event], None]) -> bool | None:
        """Return the decision of `on_connect`. Anything except True refuses; None asks again next time."""
        found = self._judged(question)
        return found if isinstance(found, bool) else self._answered(found, note)

    def _judged(self, question: ConnectQuestion) -> Event | bool:
        """Return the event to ask about, or the decision if there is nothing to ask."""
        from ...hostnames import special
        from ..rules.rules import decide

        # The gateway handles untrusted data, so its question is judged again. Destinations that an entry
        # refuses, and invalid ones, are never asked about.
        verdict = decide(question.host, question.port, self._network)
        if verdict.allowed or not verdict.allow:
            return verdict.allowed
        what = _where(verdict.host, verdict.port)
        # The addresses of a name are unknown here; they are judged once resolved.
        kind = special(verdict.host) or "a public address" if _is_address(verdict.host) else ""
        rule = f"{verdict.rule}; it is {kind}" if kind else verdict.rule
        return Event("question", what, rule, verdict.allow)

    def _accepted(self, answer: object, event: Event) -> bool | None:
        """Return the decision that a valid answer is. Raises ValueError for any other answer."""
        if answer is True or answer is False or answer is None:
            return answer
        raise ValueError("not an answer")

    def _answered(self, event: Event, note: Callable[[Event], None]) -> bool | None:
        what = event.what
        try:
            answer = self._ask(event)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            note(Event("note", what, f"refused, because {self.name} raised {text[:_LONGEST]}"))
            return False
        try:
            return self._accepted(answer, event)
        except ValueError:
            pass
        close = getattr(answer, "close", None) if hasattr(answer, "__await__") else None
        if close is not None:
            close()  # prevents the warning that it was never awaited
        said = "something to be awaited" if hasattr(answer, "__await__") else repr(answer)[:_LONGEST]
        note(Event("note", what, f"refused, because {self.name} returned {said}, which is not True"))
        return False


class RequestApprovals(ApprovalCalls):
    """Calls `on_request` about HTTP requests that no rule allows. "always" also allows equal ones later."""

    name = "on_request"

    def __init__(self, on_request: OnConnect, network: Network, seconds: int) -> None:
        super().__init__(on_request, network, seconds)
        self._always: set[str] = set()

    def _judged(self, question: ConnectQuestion) -> Event | bool:
        text = question.host  # METHOD HOST[:PORT]/PATH, which is also the rule that would allow it
        return text in self._always or Event("question", text, "no rule allows this request", text)

    def _accepted(self, answer: object, event: Event) -> bool | None:
        if answer == "always" and len(self._always) < _REMEMBERED:
            self._always.add(event.what)
        return True if answer == "always" else super()._accepted(answer, event)


def checked(on_connect: object, *, awaited: bool, name: str = "on_connect") -> OnConnect | None:
    """Return `on_connect` if it can be called. Accepts a coroutine function only if `awaited`."""
    if on_connect is None:
        return None
    on_connect = check.function(name, on_connect, "give a function that takes an Event")
    code = getattr(on_connect, "__code__", None) or getattr(type(on_connect).__call__, "__code__", None)
    if not awaited and code is not None and code.co_flags & _COROUTINE:
        raise InvalidCall(
            f"{name} is a coroutine function",
            why="there is no event loop here to await it on",
            fix="use AsyncSandbox, or an ordinary function",
        )
    return on_connect


def checked_for_requests(on_request: object, network: Network, *, awaited: bool) -> OnConnect | None:
    """Return `on_request` if it can be called, and has something to decide."""
    if on_request is not None and not network.http:
        raise InvalidCall(
            "on_request has nothing to decide",
            why="no host of the network has HTTP rules, so no request is inspected",
            fix='use Network.allow(http=["GET api.example.com/**"])',
        )
    return checked(on_request, awaited=awaited, name="on_request")


def _where(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
