"""A sandbox that waited: whether it still lives."""

from __future__ import annotations

import _socket
import os

import pytest

from staddle.forkserver.connection import ForkReply


@pytest.fixture
def line() -> tuple[_socket.socket, int]:
    """The end of a sandbox, and ours."""
    theirs, ours = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    return theirs, ours.detach()


def test_one_that_has_said_something_lives(line: tuple[_socket.socket, int]) -> None:
    theirs, ours = line
    theirs.send(b"here I am")
    found = ForkReply([ours], "", waited=True)
    assert not found.has_been_killed
    assert os.read(ours, 100) == b"here I am", "it is still there to be heard"
    found.close()
    theirs.close()


def test_one_that_has_ended_without_a_word_was_killed(line: tuple[_socket.socket, int]) -> None:
    theirs, ours = line
    theirs.close()
    found = ForkReply([ours], "", waited=True)
    assert found.has_been_killed
    found.close()


def test_one_that_was_just_made_is_not_waited_for(line: tuple[_socket.socket, int]) -> None:
    theirs, ours = line
    found = ForkReply([ours], "", waited=False)
    assert not found.has_been_killed
    found.close()
    theirs.close()
