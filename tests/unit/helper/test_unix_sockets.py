"""Which socket may be connected to is decided by its path alone."""

from __future__ import annotations

import pytest

from staddle.helper.unix_sockets import Rules

RULES = Rules(
    (
        (b"beneath", b"/work"),
        (b"never", b"/work/secret"),
        (b"beneath", b"/tmp/private"),
        (b"never", b"/tmp"),
        (b"beneath", b"/same"),
        (b"never", b"/same"),
        (b"exactly", b"/run/named.sock"),
        (b"exactly", b"/work/secret/named.sock"),
    )
)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (b"/work/s", True),
        (b"/work/a/b/s", True),
        (b"/work", True),  # a directory: it is no socket, and is not connected to
        (b"/workshop/s", False),
        (b"/work/secret", False),
        (b"/work/secret/s", False),
        (b"/work/secrets", True),
        (b"/tmp/s", False),
        (b"/tmp/private/s", True),
        (b"/same/s", False),
        (b"/run/named.sock", True),
        (b"/run/named.sock/x", False),
        (b"/run/other.sock", False),
        (b"/work/secret/named.sock", True),
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
