"""Who the command is: what can be said about it, and what follows from that."""

from __future__ import annotations

from typing import Any

import pytest

from staddle import Identity, Policy
from staddle.errors import PolicyError


def test_everybody_is_the_same_user_on_the_same_host() -> None:
    who = Identity()
    assert (who.user, who.uid, who.gid, who.host, who.home) == ("user", 1000, 1000, "sandbox", "/home/user")
    assert who.is_usual
    assert Policy().identity == who


def test_the_home_follows_from_the_name_unless_it_is_given() -> None:
    assert Identity(user="ada").home == "/home/ada"
    assert Identity(user="ada", home="/srv/ada").home == "/srv/ada"
    assert not Identity(user="ada", home="/srv/ada").has_usual_home


def test_number_zero_is_root_by_name_and_at_home() -> None:
    who = Identity(uid=0)
    assert (who.user, who.gid, who.home) == ("root", 0, "/root")
    assert not who.is_usual


@pytest.mark.parametrize("user", ["a", "_x", "Ada.L-1_2", "a" * 32])
@pytest.mark.parametrize("host", ["a", "box-1", "build.example.org", "a" * 63, "1"])
def test_names_that_machines_have(user: str, host: str) -> None:
    assert Identity(user, 1, host).host == host


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"user": 7}, "not text"),
        ({"user": "1st"}, "starts with"),
        ({"user": "-x"}, "starts with"),
        ({"user": "a:b"}, "':' in it"),
        ({"user": "a\nroot"}, "in it"),
        ({"user": "ädä"}, "starts with"),
        ({"user": "aä"}, "'ä' in it"),
        ({"user": "a" * 33}, "longer than 32"),
        ({"user": "root"}, "root is 0"),
        ({"user": "nobody"}, "nobody is 65534"),
        ({"user": "ada", "uid": -1}, "from 0 to 65533"),
        ({"uid": 65534}, "from 0 to 65533"),
        ({"uid": True}, "whole number"),
        ({"uid": 1.5}, "whole number"),
        ({"uid": "1000"}, "whole number"),
        ({"host": ""}, "empty"),
        ({"host": 1}, "not text"),
        ({"host": "a b"}, "' ' in it"),
        ({"host": "-a"}, "begins or ends"),
        ({"host": "a-"}, "begins or ends"),
        ({"host": "a..b"}, "between dots"),
        ({"host": "a" * 64}, "between dots"),
        ({"host": "a." * 40}, "64 characters"),
        ({"host": "a\n127.0.0.1 x"}, "in it"),
        ({"home": 1}, "not text"),
        ({"home": "home"}, "absolute"),
        ({"home": "/"}, "not one user's"),
        ({"home": "/home"}, "not one user's"),
        ({"home": "/tmp"}, "not one user's"),
        ({"home": "/home/../etc"}, "'..'"),
        ({"home": "/home//x"}, "empty part"),
        ({"home": "/home/a:b"}, "':'"),
        ({"home": "/home/a\nb"}, "line end"),
        ({"home": "/workspace"}, "/workspace is taken"),
        ({"home": "/workspace/me"}, "/workspace is taken"),
        ({"home": "/usr/home"}, "/usr is taken"),
        ({"home": "/proc/self"}, "/proc is taken"),
        ({"home": "/dev/.staddle/x"}, "taken"),
        ({"home": "/" + "a/" * 3000 + "b"}, "too long"),
    ],
)
def test_what_no_identity_can_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(PolicyError, match=why) as error:
        Identity(**fields)
    assert error.value.fix


def test_a_policy_has_one_home_and_one_identity() -> None:
    with pytest.raises(PolicyError, match="one home"):
        Policy.coding_agent("/home/me").with_identity(Identity(home="/srv/x"))
    with pytest.raises(PolicyError, match="not an Identity"):
        Policy(identity="ada")  # type: ignore[arg-type]
    assert Policy().with_identity(Identity("ada")).identity.user == "ada"
