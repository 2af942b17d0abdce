"""The direct way to a keeper: only with the token, one answer for each request, and an end that is told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from staddle.fleet import channel
from staddle.fleet.channel import ChannelBroken, CommandChannel, CommandServer
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.same_for_everyone


class Keeper:
    """Answers a request with itself in capitals. "wait" waits, "echo" connects with an echo server."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go_on = threading.Event()
        self.server = CommandServer("127.0.0.1", self.answer)

    def answer(self, request: bytes) -> tuple[bytes, socket.socket | None]:
        self.asked.append(request)
        if request == b"wait":
            self.go_on.wait(PATIENCE)
        if request == b"echo":
            ours, theirs = socket.socketpair()
            threading.Thread(target=self.echo, args=(theirs,), daemon=True).start()
            return b"connected", ours
        return request.upper(), None

    @staticmethod
    def echo(peer: socket.socket) -> None:
        with peer:
            peer.sendall(b"hello ")
            while data := peer.recv(100):
                peer.sendall(data)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.go_on.set()
    made.server.close()


def channel_to(keeper: Keeper) -> CommandChannel:
    return CommandChannel(keeper.server.address, keeper.server.token)


def test_requests_are_answered_on_one_connection(keeper: Keeper) -> None:
    way = channel_to(keeper)
    for request in (b"a", b"", b"c" * 300_000):
        assert way.exchange(request) == request.upper()
    assert len(way._open) == 1

    async def awaited() -> list[bytes | None]:
        one = [await way.exchange_awaited(b"d"), await way.exchange_awaited(b"e" * 300_000)]
        return [*one, *await asyncio.gather(*(way.exchange_awaited(b"f") for _ in range(5)))]

    assert asyncio.run(awaited()) == [b"D", b"E" * 300_000, *[b"F"] * 5]
    assert way.exchange(b"g") == b"G"
    way.close()
    assert way.exchange(b"h") is None
    assert keeper.asked.count(b"h") == 0


def test_who_has_not_the_token_is_not_listened_to(keeper: Keeper) -> None:
    way = CommandChannel(keeper.server.address, b"x" * 32)
    assert way.exchange(b"a") is None
    with socket.create_connection(keeper.server.address, timeout=PATIENCE) as peer:
        peer.sendall(channel.framed(b"a" * 60))  # as many bytes as a proof has
        with peer.makefile("rb") as said:
            assert len(said.read()) == 32  # the nonce, and then the end
    assert keeper.asked == []


def test_a_keeper_that_has_not_the_token_is_told_nothing() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            with listening.accept()[0] as peer:
                peer.sendall(b"n" * 32)
                heard.append(peer.recv(1000))
                peer.sendall(b"p" * 32)
                heard.append(peer.recv(1000))

        threading.Thread(target=pretend, daemon=True).start()
        way = CommandChannel(("127.0.0.1", listening.getsockname()[1]), b"t" * 32)
        assert way.exchange(b"secret") is None
        assert until(lambda: len(heard) == 2)
    assert b"secret" not in b"".join(heard)


def test_peers_that_say_nothing_do_not_keep_others_out(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [socket.create_connection(keeper.server.address, timeout=PATIENCE) for _ in range(20)]
    way = channel_to(keeper)
    assert way.exchange(b"a") == b"A"
    for peer in silent:
        peer.close()
    way.close()


def test_an_end_in_the_middle_is_told_and_nothing_is_sent_twice(keeper: Keeper) -> None:
    way = channel_to(keeper)
    assert way.exchange(b"a") == b"A"
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(way.exchange(b"wait"))
        except ChannelBroken as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert until(lambda: b"wait" in keeper.asked)
    way.close()  # as when the keeper is lost
    asking.join(PATIENCE)
    assert isinstance(found[0], ChannelBroken)
    assert keeper.asked.count(b"wait") == 1


def test_a_cancelled_request_ends_its_connection(keeper: Keeper) -> None:
    way = channel_to(keeper)

    async def scenario() -> bytes | None:
        asking = asyncio.ensure_future(way.exchange_awaited(b"wait"))
        while b"wait" not in keeper.asked:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return await way.exchange_awaited(b"b")  # on another one: never the answer to "wait"

    assert asyncio.run(scenario()) == b"B"
    assert len(way._open) == 1
    way.close()


def test_there_are_not_more_connections_than_allowed(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_CONNECTIONS", 1)
    way = channel_to(keeper)
    asking = threading.Thread(target=way.exchange, args=(b"wait",))
    asking.start()
    assert until(lambda: b"wait" in keeper.asked)
    assert way.exchange(b"more") is None  # Ray has to do
    keeper.go_on.set()
    asking.join(PATIENCE)
    assert way.exchange(b"then") == b"THEN"
    way.close()


def test_a_keeper_that_is_gone_is_not_asked_again_and_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = ("127.0.0.1", listening.getsockname()[1])
    way = CommandChannel(address, b"t" * 32)
    assert way.exchange(b"a") is None
    assert not way.has_room


def test_a_connection_becomes_one_to_another_server(keeper: Keeper) -> None:
    way = channel_to(keeper)
    opened = way.tunnel(b"echo")
    assert opened is not None
    connection, reply = opened
    assert reply == b"connected"
    with connection:
        connection.settimeout(PATIENCE)
        connection.sendall(b"world")
        connection.shutdown(socket.SHUT_WR)
        data = b""
        while more := connection.recv(100):
            data += more
    assert data == b"hello world"
    way.close()
