"""What a text may do to its shell."""

from __future__ import annotations

import pytest

from staddle.shell import hazards
from staddle.shell.idle import EACH, room


@pytest.mark.parametrize(
    "text", [b"exit 1", b"exec ls", b"kill $$", b"set -e", b"ulimit -n 3", b". lib", b"exec 3>&-"]
)
def test_these_may_end_the_shell(text: bytes) -> None:
    assert hazards.may_end(text)


@pytest.mark.parametrize("text", [b"true", b"echo hi", b"ls -l | wc", b"cd /tmp && make", b"x=1"])
def test_these_do_not(text: bytes) -> None:
    assert not hazards.may_end(text)
    assert not hazards.may_shadow_builtins(text)
    assert not hazards.may_break_later(text)


def test_a_function_that_exits_is_dangerous_later() -> None:
    assert hazards.may_break_later(b"die() { exit 1; }")
    assert not hazards.may_break_later(b"exit 1")


@pytest.mark.parametrize(
    "text", [b".() { :; }", b"enable -n .", b"source lib", b"function return { :; }", b"eval x"]
)
def test_these_may_shadow_a_builtin(text: bytes) -> None:
    assert hazards.may_shadow_builtins(text)


@pytest.mark.parametrize(
    "text", [b"true", b"exit", b"f() { :; }", b"shopt -s extdebug", b"eval x", b"trap", b"set -e", b"x=1"]
)
def test_one_judgement_says_both(text: bytes) -> None:
    assert hazards.judge(text) == (hazards.may_end(text), hazards.may_shadow_builtins(text))


def test_tracing_is_seen_in_all_spellings() -> None:
    for text in (b"set -x", b"set -eux", b"set -o xtrace", b"a; set -e; set -v"):
        assert hazards.traces(text), text
    assert not hazards.traces(b"set -e; set -")


def test_listing_traps_is_told_from_setting_them() -> None:
    for text in (
        b"trap",
        b"trap -p",
        b"x=$(trap)",
        b"trap | cat",
        b"a; trap; b",
        b"trap >f",
        b"trap  -p INT",
    ):
        assert hazards.lists_traps(text), text
    for text in (b"trap 'x' INT", b"trap - EXIT", b"(trap '' INT)", b"echo a"):
        assert not hazards.lists_traps(text), text


def test_there_is_room_for_two_hundred_sandboxes_under_the_usual_limit() -> None:
    assert 200 * 3 + room(1024) * EACH < 1024 - 32
    assert room(1024) >= 40
    assert room(64) >= 2


@pytest.mark.parametrize(
    "text",
    [
        "ls",
        "/bin/true",
        "ls -la /tmp",
        "pytest -q tests/test_a.py::test_b -k 'a or b'",
        'git commit -m "a message"',
        "cat a.txt | grep -c x",
        "make CC=gcc all && ./run.sh; echo done",
        "python3 x.py\nls\n",
        "  ls  ",
        "",
        "g++ -O2 a.cc",
        "ls > file",
        "ls>file",
        "ls >> 'a file' 2>&1 | sort <other 2>/dev/null",
        "make all &> log; echo done >&2",
        "echo a1>b1>c1",
    ],
)
def test_programs_change_no_variable(text: str) -> None:
    assert hazards.only_runs_programs(text.encode(), {b"other"})


@pytest.mark.parametrize(
    "text",
    [
        "A=1",
        "A=1 ls",
        "export A=1",
        "ls; export A=1",
        "ls && cd /tmp",
        "ls | read x",
        "ls\nunset A",
        "printf -v A 1",
        "mine",
        "ls; mine",
        "echo $(ls)",
        "echo ${A:=1}",
        "echo $((A=1))",
        "echo `ls`",
        'echo "${A:=1}"',
        "ls <<x",
        "ls > $A",
        "ls {A}>file",
        "ls > >(cat)",
        "ls 2>&$A",
        "ls >&-",
        "ls &",
        "ls & cd /",
        "test -v 'a[A=5]'",
        "{ export A=1; }",
        "for A in 1; do ls; done",
        "if true; then A=1; fi",
        ". ./file",
        "source file",
        "eval A=1",
        "(( A=1 ))",
        "[[ a =~ (a) ]]",
        "ls 'a",
        "~/x",
        "command export A=1",
        "builtin cd /",
        "x" * 5000,
        "!ls",
        "time export A=1",
        "ls #; export A=1\nexport A=2",
        "let A=1",
        "f() { :; }",
    ],
)
def test_anything_else_may_change_variables(text: str) -> None:
    assert not hazards.only_runs_programs(text.encode(), {b"mine"})


@pytest.mark.parametrize("piece", ["a1>", " 1>b", "'a'>", 'a"b"1>', " >", " >&1", "a\t", "a1>b1;", "a|"])
def test_no_text_is_tried_in_every_way(piece: str) -> None:
    text = "ls " + piece * (4000 // len(piece)) + "$("
    assert not hazards.only_runs_programs(text.encode(), set())


def test_a_builtin_can_be_loaded() -> None:
    assert hazards.may_load_builtins(b"enable -f ./asort asort")
    assert not hazards.may_load_builtins(b"asort a")
