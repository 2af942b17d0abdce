"""Why there is no sandbox, or no shell, is said as it was told."""

from __future__ import annotations

import _socket
import os

import pytest

from staddle.errors import LaunchFailed
from staddle.ipc import agent_messages
from staddle.ipc.agent_client import AgentClient, SpawnedProcess


def refusing(why: bytes) -> AgentClient:
    """A link whose agent has said only that."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    agent_messages.send_message(theirs, agent_messages.encode(agent_messages.REFUSED, why))
    theirs.close()
    return AgentClient(ours.detach())


def test_a_sandbox_that_could_not_be_made_is_not_told_as_a_matter_of_its_shell() -> None:
    link = refusing(b"while its own part of the view was made: mount: No space left on device")
    with pytest.raises(LaunchFailed, match="the sandbox could not be made") as caught:
        link.announced()
    assert caught.value.why == "while its own part of the view was made: mount: No space left on device"
    link.close()


def test_an_answer_to_somebody_who_was_interrupted_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    link = AgentClient(ours.detach())
    read, write = os.pipe()

    def interrupt(line: _socket.socket) -> agent_messages.Message:
        monkeypatch.undo()
        agent_messages.send_message(theirs, agent_messages.encode(agent_messages.STARTED, 7), (write,))
        os.close(write)
        agent_messages.send_message(theirs, agent_messages.encode(agent_messages.PONG, 1))
        agent_messages.send_message(
            theirs, agent_messages.encode(agent_messages.COUNTED, (0, 0, 0, 0, 0, 42))
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(agent_messages, "receive_message", interrupt)
    with pytest.raises(KeyboardInterrupt):
        link.spawn(["true"], {}, "/", stdio=(0, 1, 2))
    assert os.read(read, 1) == b"", "the program's line is closed: it ends"
    os.close(read)
    assert link.count()[5] == 42
    link.close()
    theirs.close()


def test_the_end_that_another_thread_has_read_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    process = SpawnedProcess(7, ours.detach())

    def poll() -> None:
        process._status = 137  # by another thread, after this one has looked
        process.close()

    monkeypatch.setattr(process, "poll", poll)
    assert process.wait() == 137
    theirs.close()
