"""Work that must not be left half done because of Ctrl-C: signal handlers are deferred."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps costs ten times as much
import sys
import threading
import time
from functools import partial, wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _thread
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

_SIGNALS = range(1, _signal.NSIG)


def uninterrupted(work: Callable[[], T]) -> T:
    """Run `work` with the handlers of signals deferred; they run, and may raise, when it has returned.

    Python runs the handlers of signals in the main thread, between any two steps, and what they raise
    comes out there. So they are put off: no thread, which would take longer than most of this work does.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    came: list[tuple[int, object]] = []
    handlers: dict[int, Callable[[int, object], object]] = {}

    def put_off(number: int, frame: object) -> None:
        came.append((number, frame))

    try:
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                _signal.signal(number, put_off)
        return work()
    finally:
        raised = _put_back(handlers)
        for number, frame in came:
            try:
                handlers[number](number, frame)
            except BaseException as error:
                raised = raised or error
        if raised is not None:
            raise raised


def _put_back(handlers: dict[int, Callable[[int, object], object]]) -> BaseException | None:
    """Install these handlers again, all of them; return what one of them has raised meanwhile."""
    raised = None
    while True:
        try:
            for number, handler in handlers.items():
                _signal.signal(number, handler)
            return raised
        except BaseException as error:
            raised = error


def uninterruptible(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method: it runs `uninterrupted`."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return uninterrupted(partial(method, *args, **kwargs))

    return called


class _Carried(BaseException):
    """An OSError of the caller's, on its way through our code."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def unmistaken(work: Callable[[], T]) -> T:
    """Run `work` so that no OSError of a signal handler is taken for one of ours on its way out.

    An alarm that raises TimeoutError is the usual case. The error comes out of here as it was raised.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    handlers: dict[int, tuple[object, object]] = {}
    try:
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler) and handler is not _signal.default_int_handler:
                    handlers[number] = handler, _carrying(handler)
                    _signal.signal(number, handlers[number][1])
            return work()
        finally:
            _set_again(handlers)
    except _Carried as carried:
        raise carried.error from None


def _set_again(handlers: dict[int, tuple[object, object]]) -> None:
    """Set the caller's own handlers again; a signal that comes meanwhile is raised when that is done."""
    late: _Carried | None = None
    while handlers:
        try:
            number, (handler, ours) = next(iter(handlers.items()))
            if _signal.getsignal(number) is ours:  # else the caller has set another one meanwhile
                _signal.signal(number, handler)
            del handlers[number]
        except _Carried as carried:
            late = carried
    if late is not None:
        raise late


def _carrying(handler: Callable[[int, object], object]) -> Callable[[int, object], object]:
    def handle(number: int, frame: object) -> object:
        try:
            return handler(number, frame)
        except OSError as error:
            raise _Carried(error) from None

    return handle


def is_of_a_handler(error: BaseException) -> bool:
    """Whether a signal handler of the caller raised `error` in the middle of our code.

    A TimeoutError of theirs is an OSError, as one of ours is. An error of a system call was raised in our
    code, or in a module of Python's own that we called; one of a handler in the handler.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return False
    module = str(place.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return module != "staddle" and module not in sys.stdlib_module_names


def free_within(seconds: float, lock: _thread.LockType) -> bool:
    """Wait until `lock` is not held, for so long at most; return whether it is free. It is not taken."""
    end = time.monotonic() + seconds
    while lock.locked():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def with_all(locks: Sequence[AbstractContextManager[object]], work: Callable[[], T]) -> T:
    """Run `work` while all of these are held, and return its result.

    A `with` of a lock is the one way to hold it that nothing can come between.
    """
    if not locks:
        return work()
    with locks[0]:
        return with_all(locks[1:], work)
