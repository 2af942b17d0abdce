"""The facts of a watched run: one for each path, socket and host that it used."""

from __future__ import annotations

from .._value import Value
from ..egress_request import EgressRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Use = Literal["read", "list", "run", "write", "connect"]
    State = Literal["used", "hidden"]


class Fact(Value):
    """`program` used `path`, first in the command with this number.

    The state is "used" if the path was there inside, "hidden" if it exists on the host only, or is a mask of
    a denied path. A write is "used" whether or not it succeeded. `directory` tells the kind of file.
    """

    path: str
    use: Use
    program: str
    state: State = "used"
    directory: bool = False
    command: int = 1


class HostFact(Value):
    """A program connected to `host` (as in `host:port`); `allowed` tells whether it was let through."""

    host: str
    allowed: bool
    command: int = 1


class Measured(Value):
    """Resources of a run: seconds, the most bytes of memory, the most processes and threads at once."""

    seconds: float = 0.0
    memory: int | None = None
    processes: int = 0


class Recording(Value):
    """The facts of all commands so far. `is_whole`: nothing was left out because there was too much.

    `unread` counts calls whose path could not be read.
    """

    facts: tuple[Fact, ...]
    hosts: tuple[HostFact, ...] = ()
    commands: tuple[str, ...] = ()
    #: Whether every command succeeded; None if none has ended.
    succeeded: bool | None = None
    measured: Measured = Measured()
    calls: int = 0
    unread: int = 0
    is_whole: bool = True
    #: Requests to hosts whose connections were inspected.
    requests: tuple[EgressRequest, ...] = ()
