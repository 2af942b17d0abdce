"""Direct TCP connections from the driver to a keeper, with one command at a time on each.

An empty call of a Ray actor takes longer than a short command, and half of that is CPU time of the driver.
Ray has no faster way to send small messages to a busy actor, so commands use these connections. Everything
else is an actor call, as are commands if there is no connection.

A keeper listens on its node's address. Each keeper has a new token, which Ray passes to the driver. Both
sides prove that they have it before either uses any message of the other. A message is its length in four
bytes and the content. It is executed whole or not at all.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable

#: Most connections between a driver and one keeper; further concurrent commands go through Ray.
MOST_CONNECTIONS = 64
#: Most bytes of a request; Ray's object store is better for larger ones.
MOST_REQUEST = 1 << 20
#: Seconds to connect and prove the token, and to wait before the next try after a failure.
_TO_GREET, _NOT_AGAIN = 5.0, 30.0
#: Seconds for a server in a sandbox to accept a connection.
_TO_TUNNEL = 30.0
_NONCE, _PROOF = 32, 32
_LENGTH = struct.Struct("!I")


class ChannelBroken(Exception):
    """The connection ended before the reply: the request may have been executed."""


class Acceptor:
    """A listening socket; a thread serves each connection, at most `most` at a time."""

    def __init__(self, listening: socket.socket, serve: Callable[[socket.socket], None], most: int) -> None:
        self._listening, self._serve = listening, serve
        self.port: int = listening.getsockname()[1]
        self._places = threading.BoundedSemaphore(most)
        threading.Thread(target=self._accept, name="staddle-fleet-accept", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections. Open ones end with their peer, or with this process."""
        try:
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        except OSError:
            pass  # already closed
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                if self._listening.fileno() < 0:
                    return
                time.sleep(0.1)  # temporarily out of descriptors
                continue
            if not self._places.acquire(blocking=False):
                peer.close()
                continue
            try:
                threading.Thread(
                    target=self._run, args=(peer,), name="staddle-fleet-peer", daemon=True
                ).start()
            except RuntimeError:  # no more threads
                self._places.release()
                peer.close()

    def _run(self, peer: socket.socket) -> None:
        try:
            with peer:
                self._serve(peer)
        finally:
            self._places.release()


class CommandServer:
    """The keeper's side: listens, and serves each connection in its own thread."""

    def __init__(self, host: str, answer: Callable[[bytes], tuple[bytes, socket.socket | None]]) -> None:
        self.token = secrets.token_bytes(32)
        self._answer = answer
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family, backlog=MOST_CONNECTIONS)
        self._acceptor = Acceptor(listening, self._serve, 2 * MOST_CONNECTIONS)
        self.address: tuple[str, int] = (host, self._acceptor.port)

    def close(self) -> None:
        """Accept no more connections."""
        self._acceptor.close()

    def _serve(self, peer: socket.socket) -> None:
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._is_ours(peer):
                return
            while (request := received(peer)) is not None:
                reply, other = self._answer(request)
                if other is not None:
                    with other:
                        peer.sendall(framed(reply))
                        relay(peer, other)
                    return
                peer.sendall(framed(reply))
        except OSError:
            pass  # the driver is gone, or gave up this call

    def _is_ours(self, peer: socket.socket) -> bool:
        """Whether the peer has the token; then prove that we have it, too."""
        end = time.monotonic() + _TO_GREET
        nonce = os.urandom(_NONCE)
        peer.settimeout(_TO_GREET)
        peer.sendall(nonce)
        said = exactly(peer, _NONCE + _PROOF, end)
        if said is None or not hmac.compare_digest(
            said[_NONCE:], proof(self.token, b"driver", nonce, said[:_NONCE])
        ):
            return False
        peer.sendall(proof(self.token, b"keeper", nonce, said[:_NONCE]))
        peer.settimeout(None)
        return True


class CommandChannel:
    """The driver's side: the idle and the open connections to one keeper."""

    def __init__(self, address: tuple[str, int], token: bytes) -> None:
        self._address, self._token = address, token
        self._idle: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._not_before = 0.0

    def idle(self) -> socket.socket | None:
        """Take an idle connection, if there is one."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    @property
    def has_room(self) -> bool:
        """Whether another connection may be opened now."""
        return (
            not self._closed and len(self._open) < MOST_CONNECTIONS and time.monotonic() >= self._not_before
        )

    def connected(self) -> socket.socket | None:
        """A new connection; None if there can be none now. Blocks for the network."""
        if not self.has_room:
            return None
        try:
            made = self._greeted()
        except OSError:
            made = None
        if made is None:
            self._not_before = time.monotonic() + _NOT_AGAIN
            return None
        with self._lock:
            if not self._closed:
                self._open.add(made)
                return made
        made.close()
        return None

    async def _connected_awaited(self) -> socket.socket | None:
        """`connected` on an event loop. After cancellation, other calls can use the connection."""

        def keep(done: asyncio.Future[socket.socket | None]) -> None:
            if not done.cancelled() and (made := done.result()) is not None:
                self.give_back(made)

        opening = asyncio.get_running_loop().run_in_executor(None, self.connected)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(keep)
            raise

    def _greeted(self) -> socket.socket | None:
        end = time.monotonic() + _TO_GREET
        made = socket.create_connection(self._address, timeout=_TO_GREET)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce, own = exactly(made, _NONCE, end), os.urandom(_NONCE)
            if nonce is not None:
                made.sendall(own + proof(self._token, b"driver", nonce, own))
                found = exactly(made, _PROOF, end)
                if found is not None and hmac.compare_digest(
                    found, proof(self._token, b"keeper", nonce, own)
                ):
                    return made
        except BaseException:
            made.close()
            raise
        made.close()
        return None

    def give_back(self, connection: socket.socket) -> None:
        """Return a connection after its whole reply was read."""
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self, connection: socket.socket) -> None:
        """Close a connection whose next bytes may not start a reply."""
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """End all connections; calls that wait on one raise ChannelBroken."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            waited, self._open = self._open - set(idle), set()
        for connection in idle:
            connection.close()
        for connection in waited:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already ended

    def exchange(self, request: bytes) -> bytes | None:
        """Send a request and wait for its reply. None if it was not sent; then use Ray."""
        connection = self.idle() or self.connected()
        if connection is None:
            return None
        try:
            connection.settimeout(None)
            try:
                connection.sendall(framed(request))
            except OSError:
                self.drop(connection)
                return None  # the peer got no complete message
            found = received(connection)
        except BaseException as error:
            self.drop(connection)
            if isinstance(error, OSError):
                raise ChannelBroken(str(error)) from None
            raise
        if found is None:
            self.drop(connection)
            raise ChannelBroken("the keeper closed the connection")
        self.give_back(connection)
        return found

    def tunnel(self, request: bytes) -> tuple[socket.socket, bytes] | None:
        """A new connection with a request, and its reply. The connection then belongs to the caller."""
        connection = self.connected()
        if connection is None:
            return None
        with self._lock:
            self._open.discard(connection)
        try:
            end = time.monotonic() + _TO_TUNNEL
            connection.settimeout(_TO_TUNNEL)
            connection.sendall(framed(request))
            size = exactly(connection, _LENGTH.size, end)
            found = None if size is None else exactly(connection, _LENGTH.unpack(size)[0], end)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise ChannelBroken(str(error)) from None
            raise
        if found is None:
            connection.close()
            raise ChannelBroken("the keeper closed the connection")
        connection.settimeout(None)
        return connection, found

    async def exchange_awaited(self, request: bytes) -> bytes | None:
        """`exchange` on an event loop. Cancelling it ends the connection."""
        connection = self.idle()
        if connection is None and self.has_room:
            connection = await self._connected_awaited()
        if connection is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            connection.setblocking(False)
            try:
                await loop.sock_sendall(connection, framed(request))
            except OSError:
                self.drop(connection)
                return None
            found = bytearray()
            size = _LENGTH.size
            while len(found) < size:
                more = await loop.sock_recv(connection, size - len(found) if found else 1 << 16)
                if not more:
                    raise ChannelBroken("the keeper closed the connection")
                found += more
                if size == _LENGTH.size and len(found) >= size:
                    size += _LENGTH.unpack_from(found)[0]
        except BaseException as error:
            self.drop(connection)
            if isinstance(error, OSError):
                raise ChannelBroken(str(error)) from None
            raise
        self.give_back(connection)
        return bytes(found[_LENGTH.size :])


def proof(token: bytes, side: bytes, *nonces: bytes) -> bytes:
    """One side's proof that it has the token, valid for this connection only."""
    return hmac.digest(token, side + b"".join(nonces), "sha256")


def framed(message: bytes) -> bytes:
    """A message with its length, ready to send."""
    return _LENGTH.pack(len(message)) + message


def received(peer: socket.socket) -> bytes | None:
    """The next message; None at the end of the connection."""
    first = peer.recv(1 << 16)
    while 0 < len(first) < _LENGTH.size:
        more = peer.recv(1 << 16)
        if not more:
            return None
        first += more
    if not first:
        return None
    size = _LENGTH.unpack_from(first)[0]
    found = bytearray(first[_LENGTH.size :])
    while len(found) < size:
        more = peer.recv(min(size - len(found), 1 << 20))
        if not more:
            return None
        found += more
    return bytes(found) if len(found) == size else None


def exactly(peer: socket.socket, size: int, end: float) -> bytes | None:
    """Exactly `size` bytes before the time `end`; None if they do not arrive."""
    found = b""
    while len(found) < size:
        left = end - time.monotonic()
        if left <= 0:
            return None
        peer.settimeout(left)
        more = peer.recv(size - len(found))
        if not more:
            return None
        found += more
    return found


def relay(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes in both directions until both sides have ended."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass  # one side was reset; shut down the other
        for each, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            try:
                each.shutdown(how)
            except OSError:
                pass  # already ended

    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join()
