"""The layered trees of one sandbox, as they are mounted inside: exchanged for others, and held still."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

from ...errors import LayerError
from ...forkserver.connection import in_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ...forkserver.connection import OverlayDirs
    from ...ipc.agent_client import AgentClient


class MountedTrees:
    """The trees that the agent of one sandbox has mounted.

    `make` has the fork server mount trees that are attached nowhere, and send them to the agent at the
    other end of a socket. Without it there are no layers, and only `stopped` can be used.
    """

    def __init__(
        self, agent: AgentClient, make: Callable[[Mapping[str, OverlayDirs], int], None] | None = None
    ) -> None:
        self._agent, self._make = agent, make

    def swap(self, trees: Mapping[str, OverlayDirs], *, alone: bool) -> bool:
        """Mount `trees`, by their roots inside, in place of those of the same roots.

        With `alone`, False and nothing is done when a process other than an idle shell uses the old ones.
        """
        if self._make is None:
            raise LayerError("this sandbox has no layers")
        return not self._agent.swap(in_order(trees), partial(self._make, trees), alone=alone)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Every process of the sandbox is stopped meanwhile."""
        self._agent.pause()
        try:
            yield
        finally:
            self._agent.resume()
