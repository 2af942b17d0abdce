"""Why there is no sandbox, or no shell, is said as it was told."""

from __future__ import annotations

import _socket

import pytest

from staddle.errors import LaunchFailed
from staddle.session.link import AgentLink
from staddle.zygote import requests


def refusing(why: bytes) -> AgentLink:
    """A link whose agent has said only that."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    requests.say(theirs, requests.encode(requests.REFUSED, why))
    theirs.close()
    return AgentLink(ours.detach())


def test_a_sandbox_that_could_not_be_made_is_not_told_as_a_matter_of_its_shell() -> None:
    link = refusing(b"while its own part of the view was made: mount: No space left on device")
    with pytest.raises(LaunchFailed, match="the sandbox could not be made") as caught:
        link.announced()
    assert caught.value.why == "while its own part of the view was made: mount: No space left on device"
    link.close()
