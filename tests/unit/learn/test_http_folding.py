"""Requests are folded to few rules, and no wider than needed."""

from __future__ import annotations

import pytest

from staddle.learn.http_folding import fold
from staddle.policy.http_rules import HttpRule


def folded(*requests: str) -> list[str]:
    pairs = [(method, path) for method, _, path in (request.partition(" ") for request in requests)]
    found = fold(pairs)
    assert sorted(path for paths in found.values() for path in paths) == sorted(
        path.partition("?")[0] for _, path in pairs
    )
    for method, path in found:
        HttpRule(method, path, "h.example")
    return [f"{method} {path}" for method, path in found]


@pytest.mark.parametrize(
    ("requests", "rules"),
    [
        (["GET /"], ["GET /"]),
        (["GET /a/b?x=1", "GET /a/b?x=2", "HEAD /a/b"], ["GET /a/b"]),
        (["GET /a", "POST /a"], ["GET /a", "POST /a"]),
        ([f"GET /a/{n}" for n in range(3)], ["GET /a/0", "GET /a/1", "GET /a/2"]),
        ([f"GET /a/{n}" for n in range(9)], ["GET /a/*"]),
        ([f"GET /a/{n}/info" for n in range(9)], ["GET /a/*/info"]),
        ([f"GET /simple/p{n}/" for n in range(9)], ["GET /simple/*/"]),
        ([f"GET /a/{'/'.join('x' * n)}" for n in range(1, 4)], ["GET /a/x", "GET /a/x/x", "GET /a/x/x/x"]),
        ([f"GET /f/{n}{'/y' * (n % 3)}" for n in range(9)], ["GET /f/**"]),
        ([f"GET /{n}/{m}/z" for n in range(9) for m in range(9)], ["GET /*/*/z"]),
        (
            [f"GET /a{n % 3}/b{m % 3}/c{k}" for n in range(3) for m in range(3) for k in range(3)],
            ["GET /*/*/*"],
        ),
        (["GET /a b", "GET /**/x", "GET /\u00e9"], ["GET /*", "GET /*/x"]),
    ],
)
def test_rules(requests: list[str], rules: list[str]) -> None:
    assert folded(*requests) == rules


def test_a_request_without_a_path_and_a_long_one() -> None:
    assert fold([("OPTIONS", "*")]) == {}
    ((_, path),) = fold([("GET", "/" + "x" * 5000)])
    assert len(path) < 1100
