"""SystemdSpec are understood exactly, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from staddle.inside.systemd_client import _Client
from staddle.inside.systemd_unit import _is_bounded
from staddle.ipc.systemd_spec import MAGIC, SystemdSpec, decode, encode
from staddle.ipc.wire import Malformed
from staddle.mounts.operations import BIND


def orders(**fields: Any) -> SystemdSpec:
    defaults = {
        "starter": (b"/usr/bin/systemd-run", b"--user"),
        "starter_environment": (b"A=b",),
        "status": 5,
        "launcher": 1,
        "view": ((BIND, b"/a\xff", 1, 0, 0, b""),),
        "namespaces": 0x04000000,
        "uid": 1000,
        "gid": 1000,
        "host": b"sandbox",
        "unprivileged_uid": -1,
        "foreign": ((b"net", 4026531840),),
        "bounds": ((b"memory.max", 1 << 40),),
        "command": b"...",
        "network": (),
        "gateway": (),
        "cgroup_fds": (),
    }
    return SystemdSpec(**{**defaults, **fields})


def test_what_was_said_is_what_is_heard() -> None:
    assert decode(encode(orders())) == orders()


@pytest.mark.parametrize(
    "fields",
    [
        {"starter": ()},
        {"starter": (b"systemd-run",)},
        {"starter": "text"},
        {"view": ((b"bind", b"relative", 0, 0, 0, b""),)},
        {"view": ((b"bind", b"/nul\0", 0, 0, 0, b""),)},
        {"view": ((b"remove", b"/a", 0, 0, 0, b""),)},
        {"view": ((b"bind", b"/a", 0),)},
        {"foreign": ((b"net", b"1"),)},
        {"uid": b"0"},
        {"uid": -1},
        {"gid": -1},
        {"unprivileged_uid": 0},
    ],
)
def test_nonsense_is_not_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        encode(orders(**fields))


def test_damaged_orders_are_refused() -> None:
    whole = encode(orders())
    for broken in (b"", MAGIC, whole[:-1], whole + b"x", b"x" + whole, whole.replace(b"bind", b"bond")):
        with pytest.raises(Malformed):
            decode(broken)


@pytest.mark.parametrize(
    ("text", "most", "bounded"),
    [
        (b"67108864\n", 64 << 20, True),
        (b"67104768\n", (64 << 20) - 1, True),
        (b"67108865\n", 64 << 20, False),
        (b"max\n", 64 << 20, False),
        (b"", 1, False),
        (b"50000 100000\n", 500, True),
        (b"50001 100000\n", 500, False),
        (b"max 100000\n", 500, False),
    ],
)
def test_a_limit_counts_only_when_the_control_group_says_so(text: bytes, most: int, bounded: bool) -> None:
    assert _is_bounded(text, most) is bounded


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (226, b"", "226/NAMESPACE"),
        (
            1,
            b"Failed to connect to bus: No medium found\n",
            "systemd-run: Failed to connect to bus: No medium",
        ),
        (1, b"Unknown assignment: PrivateIPC=yes\n", "Unknown assignment: PrivateIPC=yes"),
        (0, b"", "printed no reason"),
    ],
)
def test_what_systemd_says_about_a_unit_that_did_not_start(code: int, said: bytes, words: str) -> None:
    client = _Client.__new__(_Client)
    client._output = said
    assert words in client._why_not(code)
