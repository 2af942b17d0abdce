"""The table of names that the faces of a sandbox share.

A face is a sandbox that is called in another way: awaited, on a node of a fleet, behind a server. A method
that only passes its call on is a row here, and not a function in every face:

    class SandboxNames:
        diff = Forwarded(Sandbox.diff)

    class AsyncSandbox(AwaitedFace, SandboxNames): ...     # await sb.diff(["src"])
    class FleetSandbox(BlockingFace, SandboxNames): ...    # sb.diff(["src"])

Each face says in `_forward` how a call travels. Type checkers see the parameters of the local method; an
`AwaitedFace` returns a coroutine of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from .sandbox.files import Files
from .sandbox.processes import Process
from .sandbox.sandbox import Sandbox
from .sandbox.session import Session
from .sandbox.terminal import Terminal

if TYPE_CHECKING:
    from .enforcement import Enforcement
    from .limits.usage import Usage
    from .policy import Policy
    from .policy.plan import Plan
    from .sandbox.session import SessionState

P = ParamSpec("P")
T = TypeVar("T")


class Forwarded(Generic[P, T]):
    """One row: a method that faces pass on. `undo` gets the result that a cancelled caller did not get."""

    name = ""
    is_property = False

    def __init__(
        self, method: Callable[Concatenate[Any, P], T], undo: Callable[[T], object] | None = None
    ) -> None:
        self.method, self.undo = method, undo

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:

        @overload
        def __get__(self, face: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
        @overload
        def __get__(self, face: BlockingFace, owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(self, face: AwaitedFace, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
        def __get__(self, face: Any, owner: type) -> Any: ...


def forwarded_property(found: Any) -> Any:
    """Return the row of a property; without `keeps_properties` a method, because the face has to ask."""
    row = Forwarded(found.fget)
    row.is_property = True
    return row


class BlockingFace:
    """A face whose methods return the result."""

    #: Whether properties of the sandbox are properties here.
    keeps_properties = False

    def __init_subclass__(cls) -> None:
        for row in rows(cls):
            called: Any = _blocking(row)
            setattr(cls, row.name, property(called) if row.is_property and cls.keeps_properties else called)

    def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        """Make the call of `row` with these arguments."""
        raise NotImplementedError


class AwaitedFace:
    """A face whose methods are coroutines."""

    def __init_subclass__(cls) -> None:
        for row in rows(cls):
            setattr(cls, row.name, _awaited(row))

    async def _forward(self, row: Forwarded[Any, Any], args: Any, options: Any) -> Any:
        """Make the call of `row` with these arguments."""
        raise NotImplementedError


def _blocking(row: Forwarded[Any, Any]) -> Callable[..., Any]:
    @wraps(row.method)
    def called(self: BlockingFace, /, *args: Any, **options: Any) -> Any:
        return self._forward(row, args, options)

    return called


def _awaited(row: Forwarded[Any, Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(row.method)
    async def called(self: AwaitedFace, /, *args: Any, **options: Any) -> Any:
        return await self._forward(row, args, options)

    return called


def rows(table: type) -> list[Forwarded[Any, Any]]:
    """List the rows of a class that no class before them replaces."""
    found: dict[str, Any] = {}
    for kind in table.__mro__:
        for name, value in vars(kind).items():
            found.setdefault(name, value)
    return [value for value in found.values() if isinstance(value, Forwarded)]


def names(table: type) -> frozenset[str]:
    """Return the names of a table."""
    return frozenset(row.name for row in rows(table))


def same_arguments(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Decorate a method of a face that takes the arguments of `method`, and does something else with them."""

    def decorated(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        @wraps(method)
        def called(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
            return function(self, *args, **options)

        called.__doc__ = function.__doc__
        return called

    return decorated


# ------------------------------------------------------------ every face


class SandboxNames:
    """Methods of a sandbox that every face passes on."""

    code = Forwarded(Sandbox.code)
    diff = Forwarded(Sandbox.diff)
    discard = Forwarded(Sandbox.discard)
    events = Forwarded(Sandbox.events)
    extend = Forwarded(Sandbox.extend)
    keep_downloads = Forwarded(Sandbox.keep_downloads)
    kill = Forwarded(Sandbox.kill)
    packages = Forwarded(Sandbox.packages)
    ps = Forwarded(Sandbox.ps)
    python = Forwarded(Sandbox.python)
    requests = Forwarded(Sandbox.requests)
    set_network = Forwarded(Sandbox.set_network)
    set_timeout = Forwarded(Sandbox.set_timeout)
    use_downloads = Forwarded(Sandbox.use_downloads)


class FilesNames:
    """Methods of a sandbox's files that every face passes on."""

    append = Forwarded(Files.append)
    chmod = Forwarded(Files.chmod)
    copy = Forwarded(Files.copy)
    edit = Forwarded(Files.edit)
    exists = Forwarded(Files.exists)
    glob = Forwarded(Files.glob)
    grep = Forwarded(Files.grep)
    list = Forwarded(Files.list)
    mkdir = Forwarded(Files.mkdir)
    read = Forwarded(Files.read)
    read_bytes = Forwarded(Files.read_bytes)
    readlink = Forwarded(Files.readlink)
    realpath = Forwarded(Files.realpath)
    remove = Forwarded(Files.remove)
    rename = Forwarded(Files.rename)
    stat = Forwarded(Files.stat)
    write_many = Forwarded(Files.write_many)


# ------------------------------------------------------------ faces of a sandbox in another process


class RemoteSandboxNames(SandboxNames):
    """Names of a sandbox that a face in another process passes on."""

    interrupt = Forwarded(Sandbox.interrupt)
    pause = Forwarded(Sandbox.pause)
    refusals = Forwarded(Sandbox.refusals)
    reset = Forwarded(Sandbox.reset)
    resume = Forwarded(Sandbox.resume)
    violations = Forwarded(Sandbox.violations)
    enforced: Forwarded[[], Enforcement] = forwarded_property(Sandbox.enforced)
    labels: Forwarded[[], dict[str, str]] = forwarded_property(Sandbox.labels)
    plan: Forwarded[[], Plan] = forwarded_property(Sandbox.plan)
    policy: Forwarded[[], Policy] = forwarded_property(Sandbox.policy)
    state: Forwarded[[], SessionState] = forwarded_property(Sandbox.state)
    usage: Forwarded[[], Usage] = forwarded_property(Sandbox.usage)


class RemoteSessionNames:
    """Names of a session that a face in another process passes on."""

    close = Forwarded(Session.close)
    interrupt = Forwarded(Session.interrupt)
    restart = Forwarded(Session.restart)
    state: Forwarded[[], SessionState] = forwarded_property(Session.state)


class RemoteProcessNames:
    """Names of a background process that a face in another process passes on."""

    close_stdin = Forwarded(Process.close_stdin)
    kill = Forwarded(Process.kill)
    poll = Forwarded(Process.poll)
    send_stdin = Forwarded(Process.send_stdin)
    wait = Forwarded(Process.wait)
    wait_for_port = Forwarded(Process.wait_for_port)
    failure: Forwarded[[], str] = forwarded_property(Process.failure)


class RemoteTerminalNames:
    """Names of a terminal that a face in another process passes on."""

    close = Forwarded(Terminal.close)
    kill = Forwarded(Terminal.kill)
    poll = Forwarded(Terminal.poll)
    read = Forwarded(Terminal.read)
    resize = Forwarded(Terminal.resize)
    signal = Forwarded(Terminal.signal)
    wait = Forwarded(Terminal.wait)
    write = Forwarded(Terminal.write)
