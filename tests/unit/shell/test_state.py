"""What bash prints about its state is read as bash means it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.shell.quoting import Unreadable, WordReader, quoted, statements
from staddle.shell.state import Dump, State, debug_question, question

SECTIONS = {
    "variables": (
        b'declare -- BASHOPTS="cmdhist:extglob"\ndeclare -x E="a\\"b\\$c"\n'
        b"declare -a a=([0]=\"1\" [7]=$'x\\ny')\n"
        b'declare -A h=(["k e"]="v" [b]="]" )\ndeclare -i n="3"\ndeclare -r r="4"\ndeclare -x only\n'
        b'declare -- OLDPWD="/old"\ndeclare -x PWD="/w/d"\ndeclare -r SHELLOPTS="braceexpand:noglob"\n'
        b'declare -ir UID="0"'
    ),
    "functions": b"f () \n{ \n    echo 'f ()'\n}\ng () \n{ \n    :\n}",
    "names": b"declare -f f\ndeclare -fx g",
    "traps": b"trap -- 'echo '\\''x'\\''' SIGINT\ntrap -- 'bye' EXIT",
    "aliases": b"alias l='ls\n-l'\nalias q='x=1'",
    "umask": b"umask 0027",
    "positional": b" 2 a\\ b ''",
    "directories": b" /w/d",
    "disabled": b"enable -n test",
}


@pytest.fixture
def state() -> State:
    return Dump(dict(SECTIONS)).state()


def test_variables_are_values(state: State) -> None:
    assert state.variables["E"] == 'a"b$c'
    assert state.variables["a"] == {0: "1", 7: "x\ny"}
    assert state.variables["h"] == {"k e": "v", "b": "]"}
    assert state.variables["n"] == "3"
    assert "UID" not in state.variables
    assert "only" not in state.variables


def test_the_environment_is_what_is_exported(state: State) -> None:
    assert state.env == {"E": 'a"b$c', "PWD": "/w/d"}


def test_everything_else_is_there(state: State) -> None:
    assert (state.cwd, state.oldpwd) == ("/w/d", "/old")
    assert state.functions == {"f": "f () \n{ \n    echo 'f ()'\n}", "g": "g () \n{ \n    :\n}"}
    assert state.aliases == {"l": "ls\n-l", "q": "x=1"}
    assert state.options == ("braceexpand", "noglob")
    assert state.shopts == ("cmdhist", "extglob")
    assert state.traps == {"SIGINT": "echo 'x'", "EXIT": "bye"}
    assert state.umask == 0o027
    assert state.positional == ("a b", "")
    assert state.readonly == ("r",)


def test_a_dump_is_found_between_noise() -> None:
    data = b"[1]+ Done\ntrap -- 'd' DEBUG\n\nN1,\nnoise " + b"".join(
        section + b"\nN1.\n" for section in SECTIONS.values()
    )
    found = Dump.find(b"N1", data + b"more noise")
    assert found is not None
    assert found.debug_trap == b"d"
    assert found.exit_trap == b"bye"
    assert found.functions() == {b"f", b"g"}
    assert found.disabled() == {b"test"}
    assert Dump.find(b"N1", data[:-2]) is None
    assert Dump.find(b"N2", data) is None


def test_our_own_trap_is_forgotten() -> None:
    dump = Dump(dict(SECTIONS))
    dump.without_trap(b"EXIT")
    assert dump.exit_trap is None
    assert dump.state().traps == {"SIGINT": "echo 'x'"}


def test_the_replay_leaves_out_what_is_every_shells_own() -> None:
    usual = Dump({**SECTIONS, "variables": b'declare -- GONE="1"\ndeclare -r SHELLOPTS="braceexpand"'})
    text = Dump(dict(SECTIONS)).replay(usual)
    assert b"UID" not in text
    assert b"\\unset GONE\n" in text
    assert b"-o noglob" in text
    assert b"set -- 'a b' ''\n" in text
    assert b"noglob" not in Dump(dict(SECTIONS)).replay(usual, careful=True)


def test_the_questions_name_builtins_in_the_way_that_works() -> None:
    assert b"\\command declare -p >/d" in question(b"N1", b"/d", b"\\command ")
    assert debug_question(b"N1", b"/d", b"\\builtin ").startswith(b"\\builtin trap -p DEBUG >/d")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary().map(lambda data: data.replace(b"\0", b"")))
def test_a_quoted_word_is_one_word_and_the_same(word: bytes) -> None:
    assert WordReader(quoted(word) + b" rest").word(b" ") == word
    assert list(statements(quoted(word) + b"\nnext")) == [quoted(word), b"next"]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary())
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    try:
        list(statements(data))
    except (Unreadable, ValueError, OverflowError):
        pass
