"""Messages between the host program and the agent: exactly what was said arrives, or nothing does."""

from __future__ import annotations

import _socket
import os

import pytest

from staddle.ipc import agent_messages
from staddle.ipc.wire import Malformed


def example(shape: object) -> object:
    """Some value of this shape, as wire.py describes shapes."""
    if isinstance(shape, list):
        return (example(shape[0]),) * 2
    if isinstance(shape, tuple):
        return tuple(example(inner) for inner in shape)
    return {bytes: b"abc", int: 7}[shape]  # type: ignore[index]


EXAMPLES = {kind: tuple(map(example, shapes)) for kind, (shapes, _) in agent_messages.SHAPES.items()}


def pair() -> tuple[_socket.socket, _socket.socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_is_encoded_is_decoded(kind: bytes) -> None:
    count = agent_messages.SHAPES[kind][1][-1]
    assert agent_messages.decode(agent_messages.encode(kind, *EXAMPLES[kind]), count) == (
        kind,
        EXAMPLES[kind],
    )


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_wrong_number_of_descriptors_is_refused(kind: bytes) -> None:
    with pytest.raises(Malformed):
        agent_messages.decode(agent_messages.encode(kind, *EXAMPLES[kind]), 99)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"S",
        agent_messages.encode(agent_messages.PING, 1)[:-1],
        agent_messages.encode(agent_messages.PING, 1) + b"x",
        b"i" + agent_messages.encode(agent_messages.SIGNAL, 1, 2)[1:],
        b"k" + agent_messages.encode(agent_messages.REFUSED, b"x")[1:],
    ],
)
def test_whatever_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        agent_messages.decode(data)


def test_fields_of_another_shape_are_refused() -> None:
    for fields in [(1,), (b"1", 2), (1, 2, 3)]:
        with pytest.raises(Malformed):
            agent_messages.encode(agent_messages.SIGNAL, *fields)


def test_a_long_message_travels_in_a_file() -> None:
    ours, theirs = pair()
    long = agent_messages.encode(agent_messages.SHELL, b"/bin/bash", (b"A=" + b"x" * 100_000,), b"/")
    agent_messages.send_message(ours, long)
    with pytest.raises(Malformed):
        agent_messages.receive_message(theirs)  # the host program takes no files
    agent_messages.send_message(ours, long)
    message = agent_messages.receive_message(theirs, bodies=True)
    assert message is not None
    assert message.fields[1] == (b"A=" + b"x" * 100_000,)
    assert message.descriptors == []


def test_what_no_program_could_take_is_not_said() -> None:
    ours, _theirs = pair()
    with pytest.raises(OSError, match="longer than any program"):
        agent_messages.send_message(ours, bytes(agent_messages.LONGEST_BODY + 1))


def test_descriptors_arrive_and_are_closed_when_they_do_not_belong() -> None:
    ours, theirs = pair()
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    agent_messages.send_message(ours, agent_messages.encode(agent_messages.PING, 1), (read,))
    with pytest.raises(Malformed):
        agent_messages.receive_message(theirs)
    assert len(os.listdir("/proc/self/fd")) <= before
    agent_messages.send_message(ours, agent_messages.encode(agent_messages.STARTED, 1), (read,))
    message = agent_messages.receive_message(theirs)
    assert message is not None
    os.write(write, b"x")
    assert os.read(message.descriptors[0], 1) == b"x"
    message.close()
    os.close(read)
    os.close(write)


def test_the_end_of_a_line_is_heard() -> None:
    ours, theirs = pair()
    ours.close()
    assert agent_messages.receive_message(theirs) is None
