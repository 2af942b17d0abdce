"""A prepared command: what a backend returns and what `launch/` starts."""

from __future__ import annotations

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..limits.command_limits import CommandLimits
    from ..network.host.gateway_log import GatewayLog


class Launch(Value):
    """A confined command, ready to be started once.

    `status` is the read end of a pipe on which the launcher tells how far it came, and
    `failure` turns what was read there into a sentence when the command never started; the
    pipe is the taker's to close. `relays` says that the started process passes signals on
    to everything it started. `close` releases our copies of `pass_fds` and whatever else was
    kept for the start: call it once the process is started, or will not be. It never raises.
    `uid` is who the command will be on the host where that is not the caller (root's sandbox
    has an unused id): a pipe made for its streams must belong to it, or it cannot open /dev/stdout.
    `here`, where there is one, starts the same as a child of this process instead of `argv`:
    for a small program of ours with a single thread. It calls its argument in the child
    before anything else, and returns the child's pid. `gateway_log`, where there is a network gateway,
    is what it tells: to be read while the command runs, and finished at the end. `limited` is what
    holds its limits where those take more than its own process: to be closed at the end.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    pass_fds: tuple[int, ...] = ()
    status: int | None = None
    failure: Callable[[bytes], str | None] = lambda _: None
    relays: bool = False
    close: Callable[[], None] = lambda: None
    uid: int | None = None
    here: Callable[[Callable[[], None]], int] | None = None
    gateway_log: GatewayLog | None = None
    limited: CommandLimits | None = None
