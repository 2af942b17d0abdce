"""One connection out of a sandbox: decide, inspect its first bytes, connect, relay.

The destination is the local address of the accepted socket. The gateway connects at once and relays the
server's bytes at once, because some servers speak first. It holds back the client's bytes until they show a
name that matches the destination, or turn out to be neither TLS nor HTTP.
"""

from __future__ import annotations

import _socket
import os

from ..rules import sniff
from ..rules.rules import decide, refused_alias
from ..rules.sniff import objection
from .loop import ENDING, READABLE
from .tcp_relay import AGAIN, ENDED, Flow, reset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...policy.network import Network
    from ..rules.rules import Verdict
    from .context import GatewayContext

#: Timeouts in seconds: from the first byte to a name, for one of several addresses, for all addresses.
_LOOKING, _ONE_ADDRESS, _DIALLING = 5.0, 3.0, 15.0
#: The opening is parsed again after each piece, so a client must not send it in more pieces than this.
_PIECES = 256
_NONBLOCKING = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
#: The rule in the verdict of a connection from the host into the sandbox.
EXPOSED = "exposed"


class Connection:
    """A connection from accept to close. `verdict` is about the destination, `name` is its name, if any."""

    __slots__ = (
        "_addresses",
        "_ahead",
        "_client",
        "_closed",
        "_context",
        "_deadline",
        "_down",
        "_ending",
        "_foreign",
        "_give_up",
        "_is_inspected",
        "_look_until",
        "_looking",
        "_name",
        "_opening",
        "_pieces",
        "_places",
        "_queued",
        "_server",
        "_up",
        "_verdict",
        "touched",
    )

    def __init__(
        self, context: GatewayContext, client: _socket.socket, verdict: Verdict, name: str | None
    ) -> None:
        self._context, self._client, self._verdict, self._name = context, client, verdict, name
        self._server: _socket.socket | None = None
        self._up: Flow | None = None
        self._down: Flow | None = None
        self._addresses: list[tuple[str, int]] = []
        self._ahead = False  # whether the server is connected
        self._looking = True
        self._is_inspected = context.is_inspected(name, verdict.port)
        self._opening, self._pieces = b"", 0
        self._closed = self._ending = False
        self._queued: list[Flow] = []  # flows that have more to move
        self._places: list[tuple[str, int]] = []  # addresses to try with a given socket
        self._foreign = False  # whether another process may have a copy of the server's socket
        self.touched = context.loop.now
        self._look_until = 0.0
        self._deadline = self._give_up = context.loop.now + _DIALLING
        context.loop.watch(client.fileno(), self._client_told)

    def unlooked(self) -> None:
        """Do not inspect the first bytes. Used for allowed ports of the host, and for exposed ports."""
        self._looking = False

    def begin(self) -> None:
        """Resolve the destination and connect to it."""
        if self._name is None:
            self.found((self._verdict.host,), "")
        else:
            self._context.dns_client.resolve(self._name, self.found)

    def hold(self, seconds: float) -> None:
        """Wait up to `seconds` for `decided`."""
        self._deadline = self._give_up = self._context.loop.now + seconds + 1

    def decided(self, allowed: bool) -> None:
        """Apply the host program's decision about the destination."""
        if self._closed:
            return
        if not allowed:
            self.fail("refused", f"{self._verdict.rule}, and it was not allowed when asked")
            return
        self._verdict = self._verdict.replace(allowed=True, rule="allowed when asked", allow="")
        self._deadline = self._give_up = self._context.loop.now + _DIALLING
        self.begin()

    def found(self, addresses: tuple[str, ...], why: str, aliases: tuple[str, ...] = ()) -> None:
        """Connect to the allowed ones of these addresses. `aliases` are the CNAMEs that led to them."""
        if self._closed:
            return
        verdict = self._verdict
        if not addresses:
            self.fail("failed", why)
            return
        refused = refused_alias(verdict.host, aliases, verdict.port, self._context.network)
        for address in () if refused is not None else addresses:
            if self._name is not None:
                about = self._context.resolved(self._name, address, verdict.port)
                if not about.allowed:
                    refused = about
                    continue
            self._addresses.append((address, verdict.port))
        if not self._addresses and refused is not None:
            self._context.events.about("refused", refused)
            self.close(abort=True)
            return
        self._dial("")

    def through(self, server: _socket.socket, places: list[tuple[str, int]]) -> None:
        """Connect with this socket of another network namespace, to one address after the other."""
        server.setblocking(False)
        self._server, self._foreign = server, True
        self._places = places
        if self._next_place(server):
            self._context.loop.watch(server.fileno(), self._dialled)

    def _next_place(self, server: _socket.socket) -> bool:
        """Connect to the next address with the same socket; False if none is left."""
        error: OSError | None = None
        while self._places:
            try:
                try:
                    server.connect(self._places[0])
                except ConnectionAbortedError:  # from the previous address; reported once
                    server.connect(self._places[0])
            except BlockingIOError:
                del self._places[0]
                return True
            except OSError as refused:
                del self._places[0]
                error = refused
            else:
                del self._places[0]
                return True
        if error is not None:
            self.fail("failed", os.strerror(error.errno or 0))
        return False

    def fail(self, outcome: str, why: str) -> None:
        """Report why the connection failed, and close it."""
        self._context.events.about(outcome, self._verdict, why)
        self.close(abort=True)

    def judge_again(self, network: Network) -> None:
        """Close the connection if the changed rules refuse its destination. Exposed ports stay open."""
        verdict = self._verdict
        is_other = self._is_inspected != self._context.is_inspected(self._name, verdict.port)
        if verdict.rule != EXPOSED and (is_other or not decide(verdict.host, verdict.port, network).allowed):
            self.fail("refused", "the network of the sandbox was changed")

    def look_at_the_clock(self, now: float, idle: float) -> None:
        """Close the connection if a timeout has passed, or connect to the next address."""
        if not self._ahead and now >= self._deadline:
            if now >= self._give_up or not self._addresses:
                self.fail("failed", "it does not answer")
            else:
                self._dial("it does not answer")
        elif self._look_until and now >= self._look_until:
            self.fail("refused", "its opening did not come to an end")
        elif idle and self._ahead and now - self.touched >= idle:
            self.fail("failed", f"nothing was sent for {idle:.0f} seconds")

    def close(self, abort: bool = False) -> None:
        """Close both sides. `abort` sends a reset."""
        if self._closed:
            return
        self._closed = True
        for each in (self._client, self._server):
            if each is not None:
                if self._foreign:
                    self._context.loop.forget(each.fileno())
                else:
                    self._context.loop.drop(each.fileno())
                if abort:
                    reset(each)
                else:
                    each.close()
        for flow in (self._up, self._down):
            if flow is not None:
                flow.close()
        self._context.ended(self)

    # Connecting.

    def _dial(self, why: str) -> None:
        """Connect to the next address. `why` is the reason why the last one failed."""
        if self._server is not None:
            self._context.loop.forget(self._server.fileno())
            self._server.close()
            self._server = None
        while self._addresses:
            address = self._addresses.pop(0)
            family = _socket.AF_INET6 if ":" in address[0] else _socket.AF_INET
            self._deadline = self._give_up
            if self._addresses:
                self._deadline = min(self._give_up, self._context.loop.now + _ONE_ADDRESS)
            try:
                server = self._server = _socket.socket(family, _NONBLOCKING)
                server.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                try:
                    server.connect(address)
                except BlockingIOError:
                    self._context.loop.watch(server.fileno(), self._dialled)
                    return
            except OSError as error:
                why = os.strerror(error.errno or 0)
                if self._server is not None:
                    self._server.close()
                    self._server = None
                continue
            self._context.loop.watch(server.fileno(), self._server_told)
            self._connected(server)
            return
        self.fail("failed", why)

    def _dialled(self, event: int) -> None:
        server = self._server
        if server is None:
            return
        error = server.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if error and self._places:
            self._next_place(server)
            return
        if error:
            self._dial(os.strerror(error))
            return
        # A server that speaks first may have closed already. epoll reports that only once, here.
        self._ending = self._ending or bool(event & ENDING)
        self._context.loop.hand(server.fileno(), self._server_told)
        self._connected(server)

    def _connected(self, server: _socket.socket) -> None:
        self._ahead = True
        self._context.events.about("allowed", self._verdict)
        if not self._is_inspected:
            self._down = Flow(server, self._client, self._context.budget)
        if not self._looking:
            self._open_up()
        self._move(self._up, self._down)

    # Inspecting the first bytes.

    def _look(self) -> None:
        """Read the client's first bytes until the protocol is known."""
        while self._looking:
            try:
                data = self._client.recv(sniff.LONGEST - len(self._opening))
            except BlockingIOError:
                return
            self._opening += data
            seen = sniff.parse_opening(self._opening)
            if not data:
                # The client sends no more. A partial opening is an error, no opening at all is fine.
                seen = seen or (
                    sniff.Opening("other", None, "its opening is cut off") if self._opening else sniff.OTHER
                )
            if seen is None:
                self._look_until = self._look_until or self._context.loop.now + _LOOKING
                self._pieces += 1
                if self._pieces < _PIECES:
                    continue
            why = "its opening comes in too many pieces"
            if seen is not None:
                why = objection(seen, self._name, self._context.network) or self._uninspectable(seen)
            if why:
                self.fail("refused", why)
                return
            self._looking, self._look_until = False, 0.0
            self._open_up()
            if self._up is not None:
                self._move(self._up, None)

    def _open_up(self) -> None:
        """Let the client's bytes through, starting with the bytes that were held back."""
        if self._server is None or not self._ahead:
            return
        if self._is_inspected:
            self._hand_over(self._server)
            return
        self._up = Flow(self._client, self._server, self._context.budget)
        self._up.put(self._opening)
        self._opening = b""

    # Connections of hosts with HTTP rules or secrets.

    def _uninspectable(self, seen: sniff.Opening) -> str:
        """Return the reason why a connection cannot be inspected although its host has to be, or nothing."""
        if self._is_inspected:
            is_plain = seen.protocol == "other"
            return "only HTTP can be inspected, and this is neither TLS nor HTTP" if is_plain else ""
        if self._context.is_inspected(seen.name, self._verdict.port):
            return f"{seen.name} has HTTP rules or secrets, and is reached here by an address"
        return ""

    def _hand_over(self, server: _socket.socket) -> None:
        inspector, opening, self._opening = self._context.inspector, self._opening, b""
        if inspector is None or self._name is None:
            self.fail("refused", "there is no HTTP inspector")
            return

        def done(is_sent: bool) -> None:
            if not is_sent:
                self.fail("refused", "the HTTP inspector is gone, or has too much to do")
            elif not self._closed:
                self._foreign = True  # the inspector has copies: closing them does not unregister them
                self.close()

        for side in (self._client, server):
            self._context.loop.forget(side.fileno())
        inspector.hand_over(self._name, self._verdict.port, opening, (self._client, server), done)

    # Relaying.

    def _client_told(self, event: int) -> None:
        self._told(event, self._up, self._down)

    def _server_told(self, event: int) -> None:
        self._told(event, self._down, self._up)

    def _told(self, event: int, reading: Flow | None, writing: Flow | None) -> None:
        """Handle an event: one side is readable, or writable again."""
        if event & ENDING:
            # Reported only once, perhaps while we cannot read. A short read is no longer the end of the data.
            self._ending = True
            self._move(self._up, self._down)
        elif writing is not None and writing.is_blocked():
            self._move(writing, reading if event & READABLE else None)
        else:
            self._move(reading, None)

    def _move(self, first: Flow | None, second: Flow | None) -> None:
        if self._closed:
            return
        self.touched = self._context.loop.now
        try:
            if self._looking:
                self._look()
                if self._closed:
                    return
            moved = [(flow.move(self._ending), flow) for flow in (first, second) if flow is not None]
        except OverflowError as error:
            self.fail("refused", str(error))
        except OSError:
            self.close(abort=True)  # pass a reset on to the other side
        else:
            for state, flow in moved:
                if state == ENDED and self._is_finished():
                    self.close()
                elif state == AGAIN and flow not in self._queued:
                    self._queued.append(flow)
                    if len(self._queued) == 1:
                        self._context.loop.soon(self._again)

    def _is_finished(self) -> bool:
        return all(flow is not None and flow.finished for flow in (self._up, self._down))

    def _again(self) -> None:
        first, *rest = self._queued
        self._queued.clear()
        self._move(first, rest[0] if rest else None)
