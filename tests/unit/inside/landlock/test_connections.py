"""Which socket may be connected to is decided by its path alone."""

from __future__ import annotations

import pytest

from staddle.inside.landlock.connections import Rules

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
