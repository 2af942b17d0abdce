"""The sockets of a gateway that has not said a word yet: whether anything was tried there.

A gateway takes a moment to be there. Whoever asks meanwhile what was refused need not wait for
it when nobody has tried anything: whatever was tried waits in these sockets. The gateway says
that it is there before it takes the first thing out of them.
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class UnreadSockets:
    """Copies of the sockets, until the gateway is heard or this is closed."""

    def __init__(self) -> None:
        self._poll: select.poll | None = select.poll()
        self._descriptors: list[int] = []

    def add(self, descriptors: Iterable[int]) -> None:
        """The gateway is given these."""
        if self._poll is not None:
            for descriptor in descriptors:
                self._descriptors.append(os.dup(descriptor))
                self._poll.register(self._descriptors[-1], select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether nothing waits for the gateway. To be asked before seeing whether it was heard."""
        return self._poll is not None and not any(event & select.POLLIN for _, event in self._poll.poll(0))

    def close(self) -> bool:
        """It was heard, or has ended: without our copies, its sockets end with it. True the first time."""
        unheard, self._poll = self._poll is not None, None
        while self._descriptors:
            os.close(self._descriptors.pop())
        return unheard
