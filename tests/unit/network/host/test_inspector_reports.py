"""Reports of the HTTP inspector are checked and bounded, because they are untrusted. Sources of secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from staddle import EgressRequest, EgressSecret
from staddle.errors import PolicyError
from staddle.network.host import inspector_process
from staddle.network.host.inspector_process import rule_for, secret_value

REPORT = {"method": "GET", "host": "a.example", "port": 443, "path": "/x?key=1", "outcome": "refused"}


def test_a_report_is_bounded_text() -> None:
    long = {"method": "G" * 999, "host": "a" * 9999, "path": "/" * 99999, "why": "w" * 99999, "rule": 7}
    more = {"secrets": ["TOKEN", "OTHER", "TOKEN", []], "began": float("nan"), "seconds": "1", "status": None}
    found = inspector_process._request({**REPORT, **long, **more}, {"TOKEN": None})
    assert (len(found.method), len(found.host), len(found.path), len(found.why)) == (32, 260, 8192, 8192)
    assert (found.secrets, found.rule, found.began, found.seconds, found.status) == (("TOKEN",), "7", 0, 0, 0)


@pytest.mark.parametrize(
    "change",
    [{"outcome": "fine"}, {"outcome": []}, {"port": "443"}, {"port": -1}, {"port": True}, {"sent": 1 << 60}],
)
def test_a_malformed_report_is_skipped(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        inspector_process._request({**REPORT, **change}, {})


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"[" * 100_000, b'{"kind": 1' + b"1" * 5000 + b"}"])
def test_what_is_no_message_is_an_empty_one(data: bytes) -> None:
    assert inspector_process._message(data) == {}


def test_the_rule_that_would_allow_a_request_has_no_parameters() -> None:
    assert rule_for(EgressRequest("GET", "a.example", 443, "/x?key=1", "refused")) == "GET a.example/x"
    assert rule_for(EgressRequest("PUT", "a.example", 8443, "/", "refused")) == "PUT a.example:8443/"


def test_an_archive_has_each_request() -> None:
    requests = [EgressRequest("GET", "a.example", port, "/x", "allowed", 200) for port in (80, 443, 8443)]
    entries = EgressRequest.har(requests)["log"]["entries"]
    urls = [entry["request"]["url"] for entry in entries]
    assert urls == ["http://a.example/x", "https://a.example/x", "https://a.example:8443/x"]


def secret(source: Any) -> EgressSecret:
    return EgressSecret("TOKEN", source, ("a.example",))


def test_values_come_from_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789\n")
    monkeypatch.setenv("KEY", "0123456789")
    sources = "env:KEY", f"file:{file}", f"command:cat '{file}'", lambda: "0123456789"
    assert {secret_value(secret(source)) for source in sources} == {"0123456789"}


@pytest.mark.parametrize(
    "source",
    [
        *(
            "env:NOT_SET_AT_ALL",
            "file:/does/not/exist",
            "command:false",
            "command:/does/not/exist",
            "command:'",
        ),
        *(lambda: "short", lambda: "two\nlines-of-it", lambda: "x" * 99999, lambda: "ümlaut-in-a-key"),
        lambda: 1 / 0,
    ],
)
def test_no_value_is_an_error_that_does_not_show_it(source: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        secret_value(secret(source))
    for value in ("two", "xxxx", "mlaut", "short"):
        assert value not in str(caught.value)
