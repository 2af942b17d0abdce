"""The process that sandboxes are cloned from: when it has ended, so have they."""

from __future__ import annotations

import _socket
import os
import select
import signal
import time
from typing import Any

import pytest

from staddle.forkserver import spare
from staddle.forkserver.spare import Cloner, CloneServer
from staddle.linux.process import has_ended

pytestmark = pytest.mark.same_for_everyone


def test_a_clone_that_cannot_be_handed_over_any_more_ends_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it makes its layer while the fork server removes all layers."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()

    def make(*_: Any) -> tuple[int, _socket.socket]:
        pid = os.fork()
        if pid == 0:
            os.close(theirs.fileno())
            time.sleep(60)
            os._exit(0)
        os.write(writing, b"%d" % pid)
        hung_up = select.poll()
        hung_up.register(theirs, 0)
        hung_up.poll()
        return pid, _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)[0]

    monkeypatch.setattr(spare, "make", make)
    monkeypatch.setattr("staddle.linux.process.close_from", lambda *_, **__: None)
    cloner = Cloner.__new__(Cloner)
    cloner._socket, cloner._process = ours, os.fork()
    if cloner._process == 0:
        signal.alarm(30)
        ours.close()
        server = CloneServer.__new__(CloneServer)
        server._socket, server._children = theirs, set()
        server._template = None  # type: ignore[assignment]
        server.serve()
    theirs.close()
    try:
        cloner.ask(b"layer")
        clone = int(os.read(reading, 20))
        cloner.end()
        assert has_ended(clone)
    finally:
        os.close(reading)
        os.close(writing)
