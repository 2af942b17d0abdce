"""A hostile peer of HTTP/2 comes to an end: nothing spins, and nothing grows with what it sends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.settings
import pytest
from hyperframe import frame as frames

from staddle.network.inspection.decisions import RequestVerdict
from staddle.network.inspection.http2 import Http2Relay

WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
HEAD = [(":method", "POST"), (":scheme", "https"), (":authority", "api.example"), (":path", "/a")]


class Side:
    """An endpoint that keeps what the relay sends."""

    def __init__(self) -> None:
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data

    def taken(self) -> bytes:
        taken, self.sent = self.sent, b""
        return taken


class World:
    """A relay between a client and a server. It plays the connection and the inspector as well."""

    secrets, all_values, failure = (), None, ""

    def __init__(self) -> None:
        self.place = ("api.example", 443, True)
        self.client, self.server = Side(), Side()
        self.reports: list[dict[str, Any]] = []
        self.finished = self.resumed = 0
        self.verdict = RequestVerdict(True, "", "")
        self.asked: list[Callable[[bool], None]] = []
        self.relay = Http2Relay(self)  # type: ignore[arg-type]
        self.down = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False))
        self.up = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.down.initiate_connection()
        self.up.initiate_connection()
        self.settle()

    inspector = property(lambda self: self)

    def decide(self, *_: object) -> RequestVerdict:
        return self.verdict

    def ask(self, *given: Any) -> bool:
        self.asked.append(given[-1])
        return True

    def values_of(self, *_: object) -> None: ...

    def count_request(self, *_: object) -> None: ...

    def count_bytes(self, *_: object) -> None: ...

    def next_id(self) -> int:
        return 1

    def report(self, **fields: Any) -> None:
        self.reports.append(fields)

    def connection_failed(self, _: object, why: str) -> None:
        self.reports.append({"outcome": "failed", "why": why})

    def resume(self) -> None:
        self.resumed += 1

    def finish(self) -> None:
        self.finished += 1

    close = abort = finish

    def settle(self) -> None:
        """Pass bytes on until nobody has any."""
        while True:
            moved = False
            for source, take in (
                (self.down.data_to_send, self.relay.from_client),
                (self.up.data_to_send, self.relay.from_server),
                (self.client.taken, self.down.receive_data),
                (self.server.taken, self.up.receive_data),
            ):
                if found := source():
                    take(found)
                    moved = True
            if not moved:
                return

    def begin(self, *, ends: bool = False) -> int:
        """Send the head of a request."""
        number = self.down.get_next_available_stream_id()
        self.down.send_headers(number, HEAD, end_stream=ends)
        self.settle()
        return number

    def why(self) -> str:
        return str(self.reports[-1]["why"]) if self.reports else ""


@pytest.fixture
def world() -> Iterator[World]:
    """A relay that must be done within ten seconds."""

    def late(*_: object) -> None:
        raise TimeoutError("the relay does not come to an end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    try:
        yield World()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pieces(world: World) -> int:
    """How many pieces of bodies wait."""
    streams = world.relay._streams.values()
    return sum(len(body.pieces) for each in streams for body in (each.to_server, each.to_client))


def data(number: int, content: bytes) -> bytes:
    return bytes(frames.DataFrame(number, content).serialize())


@pytest.mark.parametrize("window", [65535, 10, 5])
def test_an_answer_ends_whatever_the_window_is(world: World, window: int) -> None:
    """A client that lowers its window below what it has received makes it negative."""
    number = world.begin(ends=True)
    world.up.send_headers(1, [(":status", "200")])
    world.up.send_data(1, b"x" * 10)
    world.settle()
    world.down.update_settings({WINDOW: window})
    world.settle()
    world.up.end_stream(1)
    world.relay.from_server(world.up.data_to_send())
    assert world.client.sent.endswith(frames.DataFrame(number, flags=["END_STREAM"]).serialize())
    assert world.reports[-1]["outcome"] == "allowed"


def test_a_window_of_nothing_holds_an_answer_back(world: World) -> None:
    world.down.update_settings({WINDOW: 0})
    number = world.begin(ends=True)
    world.up.send_headers(1, [(":status", "200")])
    world.up.send_data(1, b"x" * 10, end_stream=True)
    world.settle()
    assert not world.reports
    assert pieces(world)
    world.down.increment_flow_control_window(10, number)
    world.settle()
    assert world.reports[-1]["outcome"] == "allowed"
    assert not world.relay._streams


@pytest.mark.parametrize("content", [b"", b"x"])
def test_small_pieces_of_a_body_do_not_fill_the_memory(world: World, content: bytes) -> None:
    world.up.update_settings({WINDOW: 0})
    world.settle()
    number = world.begin()
    request = world.relay._streams[number].request
    request.kept = []
    world.relay.from_client(data(number, b"x"))
    for _ in range(20):
        world.relay.from_client(data(number, content) * 1000)
    assert pieces(world) < 100
    assert len(request.kept) == 1 + 20_000 * len(content)
    assert not world.finished
    world.up.increment_flow_control_window(1 << 20, 1)
    world.settle()
    assert request.sent == 1 + 20_000 * len(content)
    assert not pieces(world)


def test_settings_without_end_are_refused(world: World) -> None:
    """Each change of the table's size is kept until the next head is written."""
    settings = b"".join(frames.SettingsFrame(0, {1: 10 + each % 2}).serialize() for each in range(100))
    world.relay.from_client(settings)
    assert not world.finished  # the control
    for _ in range(20):
        world.relay.from_client(settings)
    assert world.finished
    assert "settings" in world.why()
    assert len(world.relay._down.encoder.table_size_changes) < 2000


def flood(world: World, kind: str) -> None:
    """Send what `kind` names."""
    number = world.begin() if kind != "resets" else 0
    if kind == "resets":
        for each in range(1, 2000, 2):
            world.down.send_headers(each, HEAD)
            world.down.reset_stream(each)
            world.relay.from_client(world.down.data_to_send())
    elif kind == "resets that we make":
        opened = b""
        for _ in range(1000):
            world.down.reset_stream(number)  # so that it has room for another
            update = frames.WindowUpdateFrame(number, window_increment=(1 << 31) - 1)
            world.down.clear_outbound_data_buffer()
            world.relay.from_client(opened + update.serialize())
            number = world.down.get_next_available_stream_id()
            world.down.send_headers(number, HEAD)
            opened = world.down.data_to_send()
    elif kind == "a window that overflows":
        world.relay.from_client(frames.WindowUpdateFrame(0, window_increment=(1 << 31) - 1).serialize())
    elif kind == "a head without end":
        fields = b"\x00\x01a\x01b" * 2000
        opened = frames.HeadersFrame(number + 2, fields[:5]).serialize()
        world.relay.from_client(opened + frames.ContinuationFrame(number + 2, fields).serialize() * 100)
    elif kind == "a setting that overflows":
        world.relay.from_client(frames.SettingsFrame(0, {4: 1 << 31}).serialize())
    elif kind == "a goodbye":
        world.relay.from_client(frames.GoAwayFrame(0).serialize())


@pytest.mark.parametrize(
    "kind",
    [
        "resets",
        "resets that we make",
        "a window that overflows",
        "a head without end",
        "a setting that overflows",
        "a goodbye",
    ],
)
def test_a_flood_ends_the_connection(world: World, kind: str) -> None:
    flood(world, kind)
    assert world.finished
    assert not world.relay._streams
    assert not world.relay.wants_client()
    count, sent = len(world.reports), len(world.server.sent)
    assert count == len([each for each in world.reports if each["outcome"] == "failed"])
    world.relay.from_client(frames.PingFrame(0, b"12345678").serialize() * 100)
    assert (len(world.reports), len(world.server.sent)) == (count, sent)  # and nothing follows


@pytest.mark.parametrize("kind", ["pings", "priorities"])
def test_frames_without_a_request_keep_nothing(world: World, kind: str) -> None:
    """What the answers to pings may take is bounded by the connection, which stops to read."""
    for at in range(20):
        one = frames.PingFrame(0, b"12345678") if kind == "pings" else frames.PriorityFrame(2 * at + 1)
        world.relay.from_client(one.serialize() * 1000)
    assert not world.finished
    assert not world.relay._streams
    assert len(world.relay._down.streams) == 0
    assert len(world.client.sent) <= 20 * 1000 * 17
    world.client.sent = b""
    world.begin(ends=True)
    assert world.relay._streams


@pytest.mark.parametrize(("ended", "why"), [("reset", "gave up"), ("goodbye", "ended the connection")])
def test_a_request_that_ends_while_a_person_is_asked(world: World, ended: str, why: str) -> None:
    world.verdict = RequestVerdict(False, "", "no rule", undecided=True)
    number = world.begin()
    if ended == "reset":
        world.down.reset_stream(number)
    else:
        world.down.close_connection()
    world.settle()
    assert not world.relay._streams
    world.asked[0](True)
    world.settle()
    assert not world.up.streams
    assert why in world.why()


@pytest.mark.parametrize("last", [0, 1])
def test_a_server_that_says_goodbye_answers_no_later_request(world: World, last: int) -> None:
    world.begin(ends=True)
    world.begin(ends=True)
    world.relay.from_server(frames.GoAwayFrame(0, last_stream_id=last).serialize())
    assert len(world.reports) == (2 if last == 0 else 1)
    assert "does not answer" in world.why()
    world.begin(ends=True)
    assert "takes no more requests" in world.why()


def test_a_refused_answer_of_empty_pieces_is_not_kept_for_long(world: World) -> None:
    world.begin()
    stream = world.relay._streams[1]
    stream.request.used, stream.request.kept = ("token",), []
    world.up.send_headers(1, [(":status", "401")])
    world.settle()
    assert stream.held is not None  # the request may be sent again
    for _ in range(70):
        world.relay.from_server(data(1, b"") * 1000)
    assert stream.held is None
    assert stream.answered
