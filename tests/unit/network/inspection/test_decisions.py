"""The decision about a request, in every reading that a server may give its path."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staddle.network.inspection.decisions import (
    AmbiguousRequest,
    RequestVerdict,
    compile_rules,
    decide,
    path_readings,
)
from staddle.policy.http_rules import HttpRule

HOST = "h.example"


def asked(rules: str, method: str, target: str, host: str = HOST, port: int = 443) -> RequestVerdict:
    """Decide by rules that are separated by `|`."""
    return decide(
        compile_rules(HttpRule.parse(each.strip()) for each in rules.split("|")), method, host, port, target
    )


@pytest.mark.parametrize(
    ("rules", "method", "target"),
    [
        ("GET h.example/**", "GET", "/"),
        ("GET h.example/**", "HEAD", "/a/b?c=d"),
        ("GET h.example/**", "GET", "/@types%2fnode"),  # npm
        ("GET h.example/v1/*", "GET", "/v1/x"),
        ("GET,POST h.example/v1/*", "POST", "/v1/a;b=c"),
        ("GET h.example/**/c", "GET", "/c"),
        ("GET h.example/**/c", "GET", "/a/b/c"),
        ("GET h.example/a%20b", "GET", "/a%20b"),
        ("GET h.example/%C3%A4", "GET", "/%c3%a4"),
        (
            "GET h.example/*/*.git/info/refs?service=git-upload-pack",
            "GET",
            "/a/b.git/info/refs?service=git-upload-pack",
        ),
        ("* h.example/**", "PROPFIND", "/x"),
        ("GET h.example/**|!* h.example/secret", "GET", "/public"),
        ("GET h.example/~user/*", "GET", "/%7Euser/x"),
        ("GET h.example/**", "GET", "/a?x=../.."),
        ("GET h.example/**", "GET", "/a/.../b..c"),
    ],
)
def test_allowed(rules: str, method: str, target: str) -> None:
    assert asked(rules, method, target).allowed


@pytest.mark.parametrize(
    ("rules", "method", "target"),
    [
        ("GET h.example/**", "POST", "/"),
        ("GET h.example/**", "get", "/"),
        ("* h.example/**", "CONNECT", "/"),
        ("* h.example/**", "TRACE", "/"),
        ("GET h.example/v1/*", "GET", "/v1/"),
        ("GET h.example/v1/*", "GET", "/v1/a/b"),
        ("GET h.example/v1/*", "GET", "/v1/a%2fb"),
        ("GET h.example/v1/*", "GET", "/V1/a"),
        ("GET h.example/v1/*", "GET", "/v1/x%3F/../a"),
        ("GET h.example/a?k=v", "GET", "/a"),
        ("GET h.example/a?k=v", "GET", "/a?k=w"),
        ("GET h.example/a?k=v", "GET", "/a?k=v&k=w"),
        ("GET h.example/a?k=v", "GET", "/a?k=v;k=w"),
        ("GET h.example/a?k=v", "GET", "/a?x=1;k=v"),  # some servers see one parameter here
        ("GET h.example/**|!* h.example/secret", "GET", "/secret"),
        ("GET h.example/**|!* h.example/secret", "GET", "/SECRET"),
        ("GET h.example/**|!* h.example/secret", "GET", "/secret/"),
        ("GET h.example/**|!* h.example/secret", "GET", "//secret"),
        ("GET h.example/**|!* h.example/secret", "GET", "/secret;x=y"),
        ("GET h.example/**|!* h.example/secret", "GET", "/%73ecret"),
        ("GET h.example/**|!* h.example/secret", "GET", "/secret%3Fx"),
        ("GET h.example/**|!* h.example/secret", "GET", "/%EF%BD%93ecret"),  # a wide s
        ("GET h.example/**|!* h.example/secret", "GET", "/%C5%BFecret"),  # a long s
        ("GET h.example/**|!* h.example/a/secret", "GET", "/a%2Fsecret"),
        ("GET h.example/**|!* h.example/a/secret", "GET", "/a%EF%BC%8Fsecret"),  # a wide slash
        ("GET h.example/**|!* h.example/**/git-receive-pack", "GET", "/a/b.git/git-receive-pack"),
        ("GET h.example/**|!* h.example/admin/**", "GET", "/admin"),
        (
            "GET h.example/**|!* h.example/x?service=git-receive-pack",
            "GET",
            "/x?a=b&SERVICE=git%2dreceive-pack",
        ),
        ("GET h.example/**|!GET h.example/x", "HEAD", "/x"),
        *(("* h.example/**", "GET", path) for path in ("/a/../b", "/a/.", "/..", "/a/%2e%2e/b", "/a/..;x/b")),
        *(
            ("* h.example/**", "GET", path)
            for path in ("/a%5c..%5cb", "/a\\b", "/a%00", "/%0d%0aHost:x", "/a%7f")
        ),
        *(
            ("* h.example/**", "GET", path)
            for path in ("/%252e%252e/a", "/%c0%ae%c0%ae/a", "/%", "/%4", "/%zz")
        ),
        *(
            ("* h.example/**", "GET", path)
            for path in ("/a..%2f..%2fb", "/a%2f..%2fb", "/%EF%BC%8E%EF%BC%8E/a")
        ),
        *(
            ("* h.example/**", "GET", path)
            for path in ("*", "http://h.example/", "", "a", "/a b", "/a#b", "/\xe4")
        ),
        ("* h.example/**", "GET", "/" + "a" * 9000),
        ("* h.example/**", "GET", "/?" + "&" * 300),
    ],
)
def test_refused(rules: str, method: str, target: str) -> None:
    assert not asked(rules, method, target).allowed


def test_hosts_and_ports() -> None:
    assert asked("GET *.example/**", "GET", "/", "a.example").allowed
    assert not asked("GET *.example/**", "GET", "/", "example").allowed
    assert not asked("GET h.example/**", "GET", "/", port=8443).allowed
    assert asked("GET h.example:8443/**", "GET", "/", port=8443).allowed
    assert not decide((), "GET", HOST, 443, "/").allowed
    assert decide((), "GET", HOST, 443, "/", otherwise=True).allowed
    rules = compile_rules([HttpRule.parse("!* h.example/a")])
    assert not decide(rules, "GET", HOST, 443, "/b", otherwise=True).allowed  # only a host without any rule


def test_a_verdict_names_its_rule_and_whether_to_ask() -> None:
    assert asked("GET h.example/a", "GET", "/b").undecided
    assert not asked("GET h.example/a", "GET", "/a/../b").undecided
    refused = asked("GET h.example/**|!* h.example/a", "GET", "/a")
    assert (refused.rule, refused.undecided) == ("!* h.example/a", False)
    assert asked("GET h.example/a", "GET", "/a").rule == "GET h.example/a"


#: What servers do with a path before they look for a file.
SERVERS = (
    lambda path: posixpath.normpath(unquote(path)),
    lambda path: unquote(posixpath.normpath(path)),
    lambda path: posixpath.normpath(re.sub(r";[^/]*", "", unquote(path))),
    lambda path: posixpath.normpath(unquote(unquote(path))),
    lambda path: posixpath.normpath(unquote(path).replace("\\", "/")),
    lambda path: posixpath.normpath(unquote(path).split("?")[0]),
)
PIECES = [
    "a",
    "admin",
    "ADMIN",
    "/",
    "//",
    ".",
    "..",
    "%2e",
    "%2F",
    "%5c",
    "\\",
    ";",
    ";x",
    "%3F",
    "%25",
    "%252f",
    "%61",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(lambda parts: "/" + "".join(parts)))
def test_no_server_reads_a_refused_path_from_an_allowed_request(path: str) -> None:
    if not asked("GET h.example/**|!* h.example/admin/**", "GET", path).allowed:
        return
    for server in SERVERS:
        seen = re.sub("/+", "/", server(path)).lower()
        assert seen != "/admin"
        assert not seen.startswith("/admin/"), (path, seen)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(lambda parts: "/pub/" + "".join(parts)))
def test_no_server_leaves_the_allowed_directory(path: str) -> None:
    if asked("GET h.example/pub/**", "GET", path).allowed:
        assert all(re.sub("/+", "/", server(path)).startswith("/pub") for server in SERVERS)


@given(st.text(alphabet="a/%2fF5cC.;x?é", max_size=40))
def test_the_plain_reading_is_among_the_readings(path: str) -> None:
    try:
        readings = path_readings("/" + path)
    except (AmbiguousRequest, UnicodeEncodeError):
        return
    assert unquote("/" + path) in readings


@given(st.text(alphabet="a/._-~", max_size=12))
def test_a_plain_path_is_read_as_if_it_had_an_escape(path: str) -> None:
    """The path without escapes is read on a shorter way."""
    found = []
    for each in ("/a" + path, "/%61" + path):
        try:
            found.append(path_readings(each))
        except AmbiguousRequest as error:
            found.append(frozenset((str(error),)))
    assert found[0] == found[1]


@given(
    st.lists(st.sampled_from(["a", "b", "/", "*", "**", "/**/"]), max_size=7),
    st.text(alphabet="ab/", max_size=12),
)
def test_a_pattern_matches_as_its_plain_translation(pattern: list[str], path: str) -> None:
    """The pattern for `**` never looks back. The plain one does, and is slow for long paths."""
    text = "/" + "".join(pattern)
    rule = compile_rules([HttpRule("GET", text, HOST)])[0]
    pieces = re.findall(r"/\*\*/|\*\*|\*|.", text)
    plain = ""
    for at, piece in enumerate(pieces):
        alone = (
            at and pieces[at - 1].endswith("/") and (at + 1 == len(pieces) or pieces[at + 1].startswith("/"))
        )
        plain += {"/**/": "/(?:.*/)?", "**": ".*", "*": "[^/]+" if alone else "[^/]*"}.get(piece, piece)
    assert bool(rule.path.fullmatch("/" + path)) == bool(re.fullmatch(plain, "/" + path)), (text, path)


def test_a_long_path_is_decided_quickly() -> None:
    import time

    began = time.perf_counter()
    asked("GET h.example/**/a/**/b/**/c/**/d", "GET", "/" + "a/b/c/" * 1300)
    assert time.perf_counter() - began < 2
