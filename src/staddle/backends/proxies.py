"""The HTTP proxy of a launch, for backends whose sandboxes have no network of their own."""

from __future__ import annotations

import os

from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.plan import Plan

#: What fits into a pipe at once, on every system.
_LONGEST_SETTINGS = 8192


class LaunchProxy:
    """The proxy of a launch, which its launcher will start: where it listens, and what it is told.

    `variables` lead programs to it. See `network.gateway.http_proxy`.
    """

    def __init__(self, plan: Plan) -> None:
        """Does nothing for a policy without a list of hosts."""
        self.port, self.word = 0, ""
        self.variables: dict[str, str] = {}
        self.descriptors: tuple[int, ...] = ()
        if plan.network.mode != "allow":
            return
        import _socket

        self.word = word = os.urandom(16).hex()
        settings = "\n".join([word, " ".join(plan.network.dns), *map(str, plan.network.rules)]).encode()
        if len(settings) > _LONGEST_SETTINGS:
            raise PolicyError(
                "the allow list is too long for the proxy",
                why=f"its {len(plan.network.rules)} entries have more than {_LONGEST_SETTINGS} bytes",
                fix="use wildcards and networks",
            )
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        read, write = os.pipe()
        os.write(write, settings)
        os.close(write)
        self.descriptors = (listener.detach(), read)
        address = f"http://staddle:{word}@127.0.0.1:{self.port}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        self.variables = {spelling: address for name in names for spelling in (name, name.lower())}

    def close(self) -> None:
        """Let go of our copies."""
        descriptors, self.descriptors = self.descriptors, ()
        for fd in descriptors:
            try:
                os.close(fd)
            except OSError:
                continue
