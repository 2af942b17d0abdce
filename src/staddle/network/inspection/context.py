"""The interfaces between the parts of the inspector: what a request and a relay may use. No code."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..gateway.loop import Loop
    from .decisions import RequestVerdict
    from .endpoint import ClientContext, Endpoint, ServerContext
    from .messages import InspectedSecret
    from .substitution import Values

    Place = tuple[str, int, bool]
    Answer = Callable[[bool], None]

    class InspectionContext(Protocol):
        """The inspector, for its connections and requests."""

        loop: Loop
        clients: ClientContext
        servers: ServerContext
        secrets: tuple[InspectedSecret, ...]
        all_values: Values | None

        def decide(self, method: str, host: str, port: int, target: str) -> RequestVerdict: ...
        def values_of(self, host: str, port: int) -> Values | None: ...
        def ask(self, method: str, host: str, port: int, path: str, then: Answer) -> bool: ...
        def refresh(self, names: tuple[str, ...], then: Answer) -> None: ...
        def count_request(self, host: str, port: int) -> None: ...
        def count_bytes(self, host: str, port: int, count: int) -> None: ...
        def next_id(self) -> int: ...
        def report(self, **fields: Any) -> None: ...
        def connection_failed(self, place: Place, why: str) -> None: ...
        def ended(self, connection: Any) -> None: ...

    class RelayContext(Protocol):
        """A connection, for the relay of its requests."""

        inspector: InspectionContext
        place: Place
        client: Endpoint
        server: Endpoint | None
        failure: str

        def resume(self) -> None: ...
        def finish(self) -> None: ...
        def abort(self) -> None: ...
        def close(self) -> None: ...
