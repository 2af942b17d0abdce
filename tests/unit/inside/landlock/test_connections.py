"""Which socket may be connected to is decided by its path alone."""

from __future__ import annotations

import errno
import os

import pytest

from staddle.inside.landlock import connections
from staddle.inside.landlock.connections import Broker, ConnectRefused, Rules
from staddle.ipc.exec_spec import ExecSpec

RULES = Rules(
    (
        (b"beneath", b"/open"),
        (b"never", b"/open/secret"),
        (b"beneath", b"/tmp/private"),
        (b"never", b"/tmp"),
        (b"beneath", b"/same"),
        (b"never", b"/same"),
        (b"exactly", b"/run/named.sock"),
        (b"exactly", b"/open/secret/named.sock"),
    )
)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (b"/open/s", True),
        (b"/open/a/b/s", True),
        (b"/open", True),  # a directory: it is no socket, and is not connected to
        (b"/opening/s", False),
        (b"/open/secret", False),
        (b"/open/secret/s", False),
        (b"/open/secrets", True),
        (b"/tmp/s", False),
        (b"/tmp/private/s", True),
        (b"/same/s", False),
        (b"/run/named.sock", True),
        (b"/run/named.sock/x", False),
        (b"/run/other.sock", False),
        (b"/open/secret/named.sock", True),
        (b"/", False),
        (b"", False),
        (b"work/s", False),
    ],
)
def test_the_innermost_rule_decides(path: bytes, allowed: bool) -> None:
    assert RULES.allow(path) is allowed


def test_no_rule_is_no_socket() -> None:
    assert not Rules(()).allow(b"/run/docker.sock")


def test_the_root_can_be_granted() -> None:
    assert Rules(((b"beneath", b"/"),)).allow(b"/run/docker.sock")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_nothing_listens_where_no_descriptor_can_be_had(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kind could be read in /proc, but the caller could swap the socket before the kernel looks."""

    def refuse(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(connections, "_descriptor", refuse)
    broker = Broker(-1, ExecSpec(argv=(b"true",), environment=(), directory=b"/"))
    with pytest.raises(ConnectRefused) as refused:
        broker._listening(1, os.getpid(), 3, 5)
    assert refused.value.number == errno.EACCES
