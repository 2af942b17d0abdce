"""Declared paths: one spelling each, and a sentence for those that mean nothing."""

from __future__ import annotations

import pathlib

import pytest

from staddle import Policy
from staddle.errors import PolicyError
from staddle.paths import Ancestry, absolute, covers, declared, upward


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("/a/b", "/a/b"),
        ("//a///b", "/a/b"),
        ("/a/./b/.", "/a/b"),
        ("/a/b/", "/a/b"),
        ("a//b/", "a/b"),
        ("./a", "a"),
        (".", "."),
        ("./", "."),
        ("~", "~"),
        ("~/", "~"),
        ("~/.ssh/", "~/.ssh"),
        ("./~a", "./~a"),
        ("a/~b", "a/~b"),
        ("/a/..b/...", "/a/..b/..."),
        (b"/a/b", "/a/b"),
        (b"/a/\xff", "/a/\udcff"),
        (pathlib.Path("/a/b"), "/a/b"),
        ("/tmp/x", "/tmp/x"),
        ("/run/x", "/run/x"),
        ("/a b\n'", "/a b\n'"),
        ("/" + "x" * 255, "/" + "x" * 255),
    ],
)
def test_every_path_has_one_spelling(written: object, kept: str) -> None:
    assert declared(written, "read") == kept
    assert declared(kept, "read") == kept


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "empty"),
        (b"", "empty"),
        ("/a\0b", "NUL"),
        ("..", "'..'"),
        ("/a/../b", "'..'"),
        ("a/..", "'..'"),
        ("~/../x", "'..'"),
        ("~root", "homes of other users"),
        ("~root/x", "homes of other users"),
        ("/" + "x" * 256, "longer than 255"),
        ("/" + "é" * 128, "longer than 255"),
        ("/x" * 2048, "longer than 4095"),
        ("/\ud800", "no file name can contain"),
        ("/", "whole machine"),
        ("//", "whole machine"),
        ("/.", "whole machine"),
        ("/proc", "its own /proc"),
        ("/proc/1", "its own /proc"),
        ("/sys/fs", "its own /sys"),
        ("/dev", "its own /dev"),
        ("/dev/shm", "its own /dev"),
        ("/dev/shm/x", "its own /dev"),
        ("/tmp", "private"),
        ("/tmp/", "private"),
        ("/run", "private"),
        (7, "not a path"),
        (None, "not a path"),
        (True, "not a path"),
    ],
)
@pytest.mark.parametrize("field", ["read", "write"])
def test_a_path_that_means_nothing_gets_a_sentence(field: str, written: object, why: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**{field: [written]})  # type: ignore[arg-type]
    assert field in caught.value.what
    assert why in caught.value.why
    assert "\n" not in str(caught.value)


def test_what_cannot_be_granted_may_still_be_denied_but_not_everything() -> None:
    assert Policy(deny=["/proc/x", "/tmp"]).deny == ("/proc/x", "/tmp")
    with pytest.raises(PolicyError, match="hide everything"):
        Policy(deny=["/"])


@pytest.mark.parametrize("one", ["/a", b"/a", pathlib.Path("/a"), 3, None, {"/a": 1}])
def test_a_field_takes_a_list_and_not_one_path(one: object) -> None:
    with pytest.raises(PolicyError, match="not a list"):
        Policy(read=one)  # type: ignore[arg-type]


def test_abstract_sockets_and_system_trees_are_not_sockets_to_grant() -> None:
    assert Policy(sockets=["/dev/log", "/run/x.sock"]).sockets == ("/dev/log", "/run/x.sock")
    for path in ("@abstract", "/proc/x", "/", "/run"):
        with pytest.raises(PolicyError):
            Policy(sockets=[path])


def test_relative_and_home_paths_become_absolute() -> None:
    assert absolute("/x", "/b", "/h") == "/x"
    assert absolute("x/y", "/b", "/h") == "/b/x/y"
    assert absolute("x", "/", "/h") == "/x"
    assert absolute(".", "/b", "/h") == "/b"
    assert absolute("~", "/b", "/h") == "/h"
    assert absolute("~/x", "/b", "/") == "/x"
    assert absolute("./~x", "/b", "/h") == "/b/~x"


def test_covering_goes_by_whole_names() -> None:
    assert covers("/a", "/a")
    assert covers("/a", "/a/b")
    assert covers("/", "/a")
    assert not covers("/a", "/ab")
    assert not covers("/a/b", "/a")
    assert list(upward("/a/b")) == ["/a/b", "/a", "/"]


def test_the_nearest_above_is_found_and_remembered() -> None:
    nearest = Ancestry({"/a", "/a/b/c"})
    for _ in range(2):
        assert nearest.above("/a/b/c/d") == "/a/b/c"
        assert nearest.above("/a/b/c") == "/a"
        assert nearest.at_or_above("/a/b/c") == "/a/b/c"
        assert nearest.above("/a") is None
        assert nearest.above("/x/y") is None
        assert nearest.above("/") is None
    assert Ancestry({"/"}).above("/a/b") == "/"
