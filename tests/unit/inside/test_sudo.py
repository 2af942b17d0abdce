"""What a line of sudo or su asks for, as people type it."""

from __future__ import annotations

import pytest

from staddle.inside.agent.sudo import NotUnderstood, parse_su, parse_sudo


def words(line: str) -> list[bytes]:
    return line.encode().split()


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("apt-get install -y x", "apt-get install -y x"),
        ("-E apt-get update", "apt-get update"),
        ("-n -H id", "id"),
        ("-nE id -u", "id -u"),
        ("-u root id", "id"),
        ("--user=root -- id -u root", "id -u root"),
        ("-p prompt id", "id"),
        ("--preserve-env=PATH,HOME id", "id"),
        ("DEBIAN_FRONTEND=noninteractive apt-get install x", "apt-get install x"),
        ("-i", "/bin/bash -l"),
        ("-s", "/bin/bash"),
    ],
)
def test_a_line_of_sudo(line: str, argv: str) -> None:
    assert parse_sudo(words(line)).argv == tuple(words(argv))


def test_variables_and_shells() -> None:
    command = parse_sudo(words("A=1 B_2=x=y env"))
    assert command.variables == {b"A": b"1", b"B_2": b"x=y"}
    assert parse_sudo(words("-i echo it's")).argv == (b"/bin/bash", b"-l", b"-c", b"'echo' 'it'\\''s'")
    assert parse_sudo(words("-v")).argv == ()


@pytest.mark.parametrize("line", ["", "-E", "-u bob id", "--user=bob id", "-Z id", "--what id"])
def test_what_is_not_understood_is_said(line: str) -> None:
    with pytest.raises(NotUnderstood, match="sudo: "):
        parse_sudo(words(line))


def test_a_line_of_su() -> None:
    assert parse_su([b"-c", b"id -u"]).argv == (b"/bin/bash", b"-c", b"id -u")
    assert parse_su([b"-", b"root", b"-c", b"id"]).argv == (b"/bin/bash", b"-l", b"-c", b"id")
    assert parse_su([]).argv == (b"/bin/bash",)
    with pytest.raises(NotUnderstood):
        parse_su([b"bob", b"-c", b"id"])
