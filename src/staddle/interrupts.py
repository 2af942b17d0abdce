"""Defer signal handlers during work that Ctrl-C must not leave half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the wrappers in `signal` take ten times as long
import _thread
import os
import select
import sys
import time

from .errors import is_full, too_many_open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _thread
    import threading
    from collections.abc import Callable, Sequence
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

_SIGNALS = range(1, _signal.NSIG)
#: Signals for which programs install handlers that may raise an OSError. This is checked before each command,
#: and checking all signals would take too long.
_USUAL = tuple(
    getattr(_signal, f"SIG{name}")
    for name in (
        *("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM"),
        *("CHLD", "XCPU", "VTALRM", "PROF", "WINCH", "IO"),
    )
)
_GENERATOR = 0x20  # CO_GENERATOR


#: The main thread, which runs signal handlers. In a forked child it is the thread that called fork.
#: A launcher does not import `threading`, which takes five milliseconds. If another thread of it imports this
#: first, no thread counts as the main one, and nothing is deferred.
_threading = sys.modules.get("threading")
_is_first = sys.platform != "linux" or _thread.get_native_id() == os.getpid()
_main_thread = [_thread.get_ident() if _is_first else 0]
if _threading is not None:
    _main_thread[0] = _threading.main_thread().ident


def _after_fork() -> None:
    _main_thread[0] = _thread.get_ident()


os.register_at_fork(after_in_child=_after_fork)


class _Deferral:
    """Deferred signal handlers of the main thread, and the signals that arrived meanwhile."""

    def __init__(self) -> None:
        self.came: list[tuple[int, object]] = []
        self.handlers: dict[int, Callable[[int, object], object]] = {}
        #: `atomic` counts callers whose work must not be interrupted. `waits` is True in an interruptible
        #: wait.
        self.atomic, self.waits = 0, False

    def __call__(self, number: int, frame: object) -> None:
        if self.waits:
            self._handle(number, frame)
        else:
            self.came.append((number, frame))

    def deliver(self) -> None:
        """Run the handlers of the signals that arrived. If one raises, the next call runs the rest."""
        while self.came:
            self._handle(*self.came.pop(0))

    def _handle(self, number: int, frame: object) -> None:
        try:
            self.handlers[number](number, frame)
        except OSError as error:
            raise _Carried(error) from None


_deferral: _Deferral | None = None


def uninterrupted(work: Callable[[], T]) -> T:
    """Run `work` with signal handlers deferred; they run, and may raise, after it has returned.

    Python runs signal handlers in the main thread, between any two bytecodes, and their exceptions
    propagate from there. A separate thread would avoid that, but takes longer than most of this work.
    """
    return _deferred(work, 1)


def owned(work: Callable[[], T]) -> T:
    """Run `work` so that a signal handler that raises cannot leak anything that it has created.

    Handlers are deferred, as in `uninterrupted`, but run while the work waits (`interruptible`,
    `wait_readable`). At these points an owner closes everything that was created. If a handler raises after
    the last one, the result is dropped and thereby closed.
    """
    return _deferred(work, 0)


def _deferred(work: Callable[[], T], atomic: int) -> T:
    if _thread.get_ident() != _main_thread[0]:
        return work()
    outer = _deferral
    if outer is not None:
        outer.atomic += atomic
        try:
            return work()
        finally:
            outer.atomic -= atomic
    try:
        return _outermost(work, atomic)
    except _Carried as carried:
        if _Carrier.is_used:
            raise  # to `unmistaken`, which runs this
        error = carried.error
    try:
        raise error
    finally:
        del error  # see `unmistaken`


def _outermost(work: Callable[[], T], atomic: int) -> T:
    """Run `work` with handlers deferred; an OSError that a handler raises comes out as `_Carried`."""
    global _deferral  # noqa: PLW0603 - one for the main thread
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
        while now.came:  # this frame keeps no reference to them: see `unmistaken`
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
    """Run `wait`, which must create nothing. In `owned` work, signal handlers run before and during it."""
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
    """In `owned` work, wait at most `seconds` until `fd` is readable. Elsewhere a read can be interrupted."""
    if _deferral is not None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        interruptible(lambda: poll.poll(seconds * 1000))


#: Dispositions of all signals without handlers of the caller's, as last seen, and what `_handlers` found.
_plain: tuple[list[object], list[tuple[int, Callable[[int, object], object]]]] = ([], [])


def _handlers() -> list[tuple[int, Callable[[int, object], object]]]:
    """Return (signal, handler) for each signal with a handler in Python. Quick if these are Python's own."""
    global _plain  # noqa: PLW0603 - read and replaced whole
    now = list(map(_signal.getsignal, _SIGNALS))
    seen, found = _plain
    if now == seen:
        return found
    found = [(number, handler) for number, handler in zip(_SIGNALS, now, strict=True) if callable(handler)]
    if all(handler is _signal.default_int_handler for _, handler in found):
        _plain = now, found
    return found


def _put_back(handlers: dict[int, Callable[[int, object], object]]) -> BaseException | None:
    """Install all these handlers again; return the last exception that one of them raised meanwhile."""
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

    from functools import partial, wraps  # not in a launcher, which defers but decorates nothing

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return uninterrupted(partial(method, *args, **kwargs))

    return called


class _Carried(BaseException):
    """Wraps an OSError from the caller's signal handler, so that our `except OSError` does not catch it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def unmistaken(work: Callable[[], T]) -> T:
    """Run `work`; an OSError from the caller's signal handler propagates unchanged.

    Our code would otherwise handle it as an error of a system call. The usual case is an alarm that raises
    TimeoutError.
    """
    if not _can_be_mistaken():
        return _as_raised(work)
    handlers: dict[int, _Carrier] = {}
    try:
        try:
            _Carrier.is_used = True
            for number, handler in _handlers():
                if handler is not _signal.default_int_handler:
                    # A signal at the end of an earlier call may have left our wrapper installed.
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
        del error  # its traceback would keep this frame alive, and every object of the caller's frames


def _as_raised(work: Callable[[], T]) -> T:
    """Run `work`, and replace a wrapping error with the error that it stands for."""
    try:
        return work()
    except (RuntimeError, OSError) as error:
        if not (meant := _meant(error)):
            raise
    raise meant.pop()  # this frame keeps no reference to it: see `unmistaken`


def _meant(error: RuntimeError | OSError) -> list[BaseException]:
    """Return the error that `error` stands for, in a list for the caller to pop, or an empty list.

    Before Python 3.12, an exception during the creation of a class, as in an import, becomes a RuntimeError.
    If the process can open no more files, any of our calls may raise an OSError.
    """
    if isinstance(error, OSError):
        return [too_many_open_files()] if is_full(error) else []
    is_wrapper = str(error).startswith("Error calling __set_name__")
    return [error.__cause__] if is_wrapper and error.__cause__ is not None else []


def _can_be_mistaken() -> bool:
    """Whether a signal handler may raise an OSError here. Quick, because every command checks it."""
    if _Carrier.is_used or _deferral is not None or _thread.get_ident() != _main_thread[0]:
        return False  # deferred handlers carry their OSErrors
    now = list(map(_signal.getsignal, _USUAL))
    if now == _Carrier.without_handlers:
        return False
    if any(callable(handler) and handler is not _signal.default_int_handler for handler in now):
        return True
    _Carrier.without_handlers = now
    return False


def original(error: BaseException) -> BaseException:
    """Return the error as the caller's signal handler raised it, if `error` wraps one."""
    return error.error if isinstance(error, _Carried) else error


def unmistakable(
    *, but: tuple[str, ...] = (), also: tuple[str, ...] = (), own: tuple[str, ...] = ()
) -> Callable[[type[T]], type[T]]:
    """Decorate a class: its public methods run `unmistaken`, except those in `but`, which only call others.

    The properties named in `also` run `unmistaken` too. The methods named in `own` run `owned`.
    """

    def decorated(cls: type[T]) -> type[T]:
        for name in also:
            found: property = vars(cls)[name]
            setattr(cls, name, property(unmistaken_method(found.fget), doc=found.__doc__))  # type: ignore[arg-type]
        for name, method in list(vars(cls).items()):
            is_plain = isinstance(method, type(_after_fork)) and not method.__code__.co_flags & _GENERATOR
            if is_plain and not name.startswith("_") and name not in but:
                setattr(cls, name, unmistaken_method(owned_method(method) if name in own else method))
        return cls

    return decorated


def owned_method(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method: it runs `owned`."""

    from functools import partial, wraps  # not in a launcher, which defers but decorates nothing

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return owned(partial(method, *args, **kwargs))

    return called


def unmistaken_method(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method: it runs `unmistaken`."""

    from functools import partial, wraps  # not in a launcher, which defers but decorates nothing

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _can_be_mistaken():
            return unmistaken(partial(method, *args, **kwargs))
        try:  # a copy of `_as_raised`, to save every command another call
            return method(*args, **kwargs)
        except (RuntimeError, OSError) as error:
            if not (meant := _meant(error)):
                raise
        raise meant.pop()

    return called


class _Carrier:
    """Wraps a signal handler of the caller, and its OSErrors in `_Carried`."""

    #: Whether `unmistaken` has installed these wrappers.
    is_used = False
    #: Dispositions of the usual signals when the caller was last seen without handlers.
    without_handlers: list[object] = []  # noqa: RUF012

    def __init__(self, handler: Callable[[int, object], object]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: object) -> object:
        try:
            return self.handler(number, frame)
        except OSError as error:
            raise (_Carried(error) if _Carrier.is_used else error) from None


def _set_again(handlers: dict[int, _Carrier]) -> None:
    """Install the caller's own handlers again; then raise the last exception that one raised meanwhile."""
    late: BaseException | None = None
    while handlers:
        try:
            number, ours = next(iter(handlers.items()))
            if _signal.getsignal(number) is ours:  # else the caller has installed another handler meanwhile
                _signal.signal(number, ours.handler)
            del handlers[number]
        except BaseException as error:
            late = error
    try:
        if late is not None:
            raise late
    finally:
        del late  # see `unmistaken`


def free_within(seconds: float, lock: _thread.LockType) -> bool:
    """Wait at most `seconds` until `lock` is free, without acquiring it; return whether it is free."""
    end = time.monotonic() + seconds
    while lock.locked():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def with_all(locks: Sequence[_thread.LockType | threading.RLock], work: Callable[[], T]) -> T:
    """Run `work` with all these locks held, and return its result.

    Only a `with` statement cannot be interrupted between acquiring a lock and the code that releases it.
    If signal handlers are deferred, they run while we wait for a lock.
    """
    if not locks:
        return work()
    if _deferral is None:
        with locks[0]:
            return with_all(locks[1:], work)
    while not locks[0].acquire(blocking=False):
        interruptible(lambda: _touch(locks[0]))
    try:
        return with_all(locks[1:], work)
    finally:
        locks[0].release()


def _touch(lock: _thread.LockType | threading.RLock) -> None:
    """Wait until the lock is free, and leave it free."""
    with lock:
        pass


def breathe() -> None:
    """Run pending signal handlers. For long loops of `owned` work, where everything has an owner."""
    if _deferral is not None and _deferral.came:
        interruptible(int)
