"""What a run did, as data: one fact for each path, socket and host."""

from __future__ import annotations

from .._value import Value

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
    """What the run took: seconds, the most bytes of memory, the most processes and threads that were seen."""

    seconds: float = 0.0
    memory: int | None = None
    processes: int = 0


class Recording(Value):
    """Everything that was recorded. `is_whole`: nothing was left out because there was too much.

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
