"""Work that must not be left half done because of Ctrl-C: signal handlers are deferred."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps costs ten times as much
import _thread
import os
import select
import sys
import threading
import time
from functools import partial, wraps
from types import FunctionType

from .errors import is_full, too_many_open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _thread
    from collections.abc import Callable, Sequence
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

_SIGNALS = range(1, _signal.NSIG)
#: Those of which a program may have handlers that raise an OSError. To look at all of them takes longer than
#: it may before each command.
_USUAL = tuple(
    getattr(_signal, f"SIG{name}")
    for name in (
        *("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM"),
        *("CHLD", "XCPU", "VTALRM", "PROF", "WINCH", "IO"),
    )
)
_GENERATOR = 0x20  # CO_GENERATOR


#: The main thread, which runs the handlers of signals. In a fork it is the one that has forked.
_main_thread = [threading.main_thread().ident]


def _after_fork() -> None:
    _main_thread[0] = _thread.get_ident()


os.register_at_fork(after_in_child=_after_fork)


class _Deferral:
    """Signals whose handlers are deferred in the main thread, and those that came meanwhile."""

    def __init__(self) -> None:
        self.came: list[tuple[int, object]] = []
        self.handlers: dict[int, Callable[[int, object], object]] = {}
        #: How many callers do work that must not be interrupted at all; whether there is a wait that may be.
        self.atomic, self.waits = 0, False

    def __call__(self, number: int, frame: object) -> None:
        if self.waits:
            self.handlers[number](number, frame)
        else:
            self.came.append((number, frame))

    def deliver(self) -> None:
        """Run the handlers of what came. One may raise; those after it run later."""
        while self.came:
            self.handlers[self.came[0][0]](*self.came.pop(0))


_deferral: _Deferral | None = None


def uninterrupted(work: Callable[[], T]) -> T:
    """Run `work` with the handlers of signals deferred; they run, and may raise, when it has returned.

    Python runs the handlers of signals in the main thread, between any two steps, and what they raise
    comes out there. So they are put off: no thread, which would take longer than most of this work does.
    """
    return _deferred(work, 1)


def owned(work: Callable[[], T]) -> T:
    """Run `work` so that nothing it makes is lost to the handler of a signal.

    The handlers are deferred, as by `uninterrupted`, but run while the work waits (`interruptible`,
    `wait_readable`), where everything that it has made has an owner that ends it. The result has one, too: it
    is dropped, and so closed, if a handler raises in the last moment.
    """
    return _deferred(work, 0)


def _deferred(work: Callable[[], T], atomic: int) -> T:
    global _deferral  # noqa: PLW0603 - one for the main thread
    if _thread.get_ident() != _main_thread[0]:
        return work()
    outer = _deferral
    if outer is not None:  # the handlers are deferred already
        outer.atomic += atomic
        try:
            return work()
        finally:
            outer.atomic -= atomic
    now = _Deferral()
    now.atomic = atomic
    try:
        for number, handler in _handlers():
            now.handlers[number] = handler
            _signal.signal(number, now)
        _deferral = now
        return work()
    finally:
        _deferral = None
        raised = _put_back(now.handlers)
        while now.came:  # nothing of them stays in this frame: see `unmistaken`
            try:
                now.deliver()
            except BaseException as error:
                raised = raised or error
        try:
            if raised is not None:
                raise raised
        finally:
            del raised  # see `unmistaken`


def interruptible(wait: Callable[[], T]) -> T:
    """Run `wait`, which makes nothing. In `owned` work, the handlers of signals run meanwhile and before."""
    now = _deferral
    if now is None or now.atomic or _thread.get_ident() != _main_thread[0]:
        return wait()
    try:
        now.waits = True
        now.deliver()
        return wait()
    finally:
        now.waits = False


def wait_readable(fd: int, seconds: float) -> None:
    """In `owned` work, wait until `fd` can be read, so long at most. Elsewhere a read can be interrupted."""
    if _deferral is not None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        interruptible(partial(poll.poll, seconds * 1000))


def _handlers() -> list[tuple[int, Callable[[int, object], object]]]:
    """The signals that have handlers in Python, and these."""
    found = zip(_SIGNALS, map(_signal.getsignal, _SIGNALS), strict=True)
    return [(number, handler) for number, handler in found if callable(handler)]


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
    if not _can_be_mistaken():
        return _as_raised(work)
    handlers: dict[int, _Carrier] = {}
    try:
        try:
            _Carrier.is_used = True
            for number, handler in _handlers():
                if handler is not _signal.default_int_handler:
                    # One of ours was left here by a signal that came in the last moment.
                    ours = handler if isinstance(handler, _Carrier) else _Carrier(handler)
                    handlers[number] = ours
                    _signal.signal(number, ours)
            return _as_raised(work)
        finally:
            _Carrier.is_used = False
            _set_again(handlers)
    except _Carried as carried:
        error = carried.error
    try:
        raise error
    finally:
        del error  # or else it would keep this frame alive, and all that the caller had


def _as_raised(work: Callable[[], T]) -> T:
    """Run `work`; an error that stands for another one comes out as that."""
    try:
        return work()
    except (RuntimeError, OSError) as error:
        if not (meant := _meant(error)):
            raise
    raise meant.pop()  # nothing of it stays in this frame: see `unmistaken`


def _meant(error: RuntimeError | OSError) -> list[BaseException]:
    """The error that this one stands for, if it does for another; to be taken out of the list.

    Until 3.12 an error in the middle of making a class, as by an import, becomes a RuntimeError. An
    OSError of ours may come from anywhere when no file can be opened.
    """
    if isinstance(error, OSError):
        return [too_many_open_files()] if is_full(error) else []
    is_wrapper = str(error).startswith("Error calling __set_name__")
    return [error.__cause__] if is_wrapper and error.__cause__ is not None else []


def _can_be_mistaken() -> bool:
    """Whether an OSError of a signal handler may be raised here. Quick: it is asked for every command."""
    if _Carrier.is_used or _thread.get_ident() != _main_thread[0]:
        return False
    now = list(map(_signal.getsignal, _USUAL))
    if now == _Carrier.without_handlers:
        return False
    if any(callable(handler) and handler is not _signal.default_int_handler for handler in now):
        return True
    _Carrier.without_handlers = now
    return False


def original(error: BaseException) -> BaseException:
    """The error as the caller's signal handler raised it, while it is on its way through our code."""
    return error.error if isinstance(error, _Carried) else error


def unmistakable(
    *, but: tuple[str, ...] = (), also: tuple[str, ...] = (), own: tuple[str, ...] = ()
) -> Callable[[type[T]], type[T]]:
    """Decorate a class: its public methods run `unmistaken`, `but` for some that call others for all.

    Of its properties those do that are named in `also`. The methods named in `own` run `owned`.
    """

    def decorated(cls: type[T]) -> type[T]:
        for name in also:
            found: property = vars(cls)[name]
            setattr(cls, name, property(unmistaken_method(found.fget), doc=found.__doc__))  # type: ignore[arg-type]
        for name, method in list(vars(cls).items()):
            is_plain = isinstance(method, FunctionType) and not method.__code__.co_flags & _GENERATOR
            if is_plain and not name.startswith("_") and name not in but:
                setattr(cls, name, unmistaken_method(owned_method(method) if name in own else method))
        return cls

    return decorated


def owned_method(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method: it runs `owned`."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return owned(partial(method, *args, **kwargs))

    return called


def unmistaken_method(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method: it runs `unmistaken`."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _can_be_mistaken():
            return unmistaken(partial(method, *args, **kwargs))
        try:  # as in `_as_raised`, which would cost every command another call
            return method(*args, **kwargs)
        except (RuntimeError, OSError) as error:
            if not (meant := _meant(error)):
                raise
        raise meant.pop()

    return called


class _Carrier:
    """A signal handler of the caller whose OSErrors are carried through our code."""

    #: Whether `unmistaken` has put them in the place of the caller's.
    is_used = False
    #: What the usual signals do while the caller has no handlers, when that was last seen.
    without_handlers: list[object] = []  # noqa: RUF012

    def __init__(self, handler: Callable[[int, object], object]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: object) -> object:
        try:
            return self.handler(number, frame)
        except OSError as error:
            raise (_Carried(error) if _Carrier.is_used else error) from None


def _set_again(handlers: dict[int, _Carrier]) -> None:
    """Set the caller's own handlers again; a signal that comes meanwhile is raised when that is done."""
    late: BaseException | None = None
    while handlers:
        try:
            number, ours = next(iter(handlers.items()))
            if _signal.getsignal(number) is ours:  # else the caller has set another one meanwhile
                _signal.signal(number, ours.handler)
            del handlers[number]
        except BaseException as error:
            late = error
    try:
        if late is not None:
            raise late
    finally:
        del late  # see `unmistaken`


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


def with_all(locks: Sequence[_thread.LockType | threading.RLock], work: Callable[[], T]) -> T:
    """Run `work` while all of these are held, and return its result.

    A `with` of a lock is the one way to hold it that nothing can come between, unless the handlers of
    signals are deferred: then they run while a lock is waited for.
    """
    if not locks:
        return work()
    if _deferral is None:
        with locks[0]:
            return with_all(locks[1:], work)
    while not locks[0].acquire(blocking=False):
        interruptible(partial(_touch, locks[0]))
    try:
        return with_all(locks[1:], work)
    finally:
        locks[0].release()


def _touch(lock: _thread.LockType | threading.RLock) -> None:
    """Wait until the lock is free. It is not kept."""
    with lock:
        pass


def breathe() -> None:
    """Let the handlers of signals run: in a long loop of `owned` work, where everything has an owner."""
    if _deferral is not None and _deferral.came:
        interruptible(int)
