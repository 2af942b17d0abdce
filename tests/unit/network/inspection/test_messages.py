"""Messages are decoded strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from staddle.ipc.wire import Malformed
from staddle.network.inspection.messages import decode, settings

SECRET = {
    "name": "n", "placeholder": "placeholder", "value": "the-value", "hosts": ["a.example"],
    "header": "Authorization: Bearer {}", "query": "", "basic": "", "in_body": False,
}  # fmt: skip
GOOD: dict[str, Any] = {
    "rules": ["GET a.example/**"], "secrets": [SECRET], "roots": "", "asks": 0,
    "limits": [{"host": "a.example", "requests": 1, "bytes": 2, "rate": 3}],
}  # fmt: skip


def test_good_settings() -> None:
    found = settings(decode(json.dumps({"kind": "settings", **GOOD}).encode())[1])
    assert str(found.rules[0]) == "GET a.example/**"
    assert (found.secrets[0].header, found.limits[0].rate) == ("Authorization", 3)
    assert [str(host) for host in found.hosts()] == ["a.example:80,443", "a.example"]


@pytest.mark.parametrize(
    "change",
    [
        {"rules": ["nonsense"]},
        {"rules": "GET a.example/**"},
        {"asks": -1},
        {"asks": True},
        {"more": 1},
        {"secrets": [SECRET, SECRET]},
        {"secrets": [{**SECRET, "value": "short"}]},
        {"secrets": [{**SECRET, "value": "with a\nline"}]},
        {"secrets": [{**SECRET, "value": "placeholder-and-more"}]},
        {"secrets": [{**SECRET, "hosts": []}]},
        {"secrets": [{**SECRET, "hosts": ["10.0.0.0/8"]}]},
        {"secrets": [{**SECRET, "header": ""}]},
        {"secrets": [{**SECRET, "header": "A b: {}"}]},
        {"limits": [{"host": "a.example", "requests": -1, "bytes": 0, "rate": 0}]},
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        settings({**GOOD, **change})


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"kind":1}', b'{"kind":"a","kind":"b"}', b"\xff", b"[" * 9999]
)
def test_bad_messages_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)
