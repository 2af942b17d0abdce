"""NamespaceSpec are understood exactly, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from staddle.ipc.namespace_spec import MAGIC, NamespaceSpec, decode, encode
from staddle.ipc.wire import Malformed
from staddle.mounts.operations import BIND


def orders(**fields: Any) -> NamespaceSpec:
    defaults = {
        "unit": b"staddle-x.scope",
        "starter": (b"/usr/bin/busctl", b"--user"),
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
    return NamespaceSpec(**{**defaults, **fields})


def test_what_was_said_is_what_is_heard() -> None:
    assert decode(encode(orders())) == orders()


@pytest.mark.parametrize(
    "fields",
    [
        {"starter": ()},
        {"starter": (b"busctl",)},
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
