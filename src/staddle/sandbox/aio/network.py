"""The awaited face of a sandbox's network."""

from __future__ import annotations

from .event_loop import in_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from ...events import Event
    from ..sandbox import Sandbox


class AsyncReachable:
    """The part of an AsyncSandbox that knows about its network; see `Sandbox`."""

    if TYPE_CHECKING:

        async def _opened(self) -> Sandbox: ...

    async def connect(self, port: int) -> socket:
        """A connection to a server in the sandbox, at `port` of its 127.0.0.1; see `Sandbox.connect`."""
        return await in_thread((await self._opened()).connect, port, undo=lambda made: made.close())

    async def expose(self, port: int, host_port: int = 0) -> int:
        """A port of the host's 127.0.0.1 that leads to `port` inside; see `Sandbox.expose`."""
        return await in_thread((await self._opened()).expose, port, host_port)

    async def events(self) -> tuple[Event, ...]:
        """What was tried on the network since the last call: allowed, refused, failed."""
        return await in_thread((await self._opened()).events)

    async def refusals(self) -> tuple[Event, ...]:
        """What the network has refused, and no result has told yet."""
        return await in_thread((await self._opened()).refusals)
