"""What bash prints about its state is read as bash means it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staddle.shell.hazards import LONGEST_PLAIN
from staddle.shell.quoting import Unreadable, WordReader, quoted, statements
from staddle.shell.shell_state import KnownState, may_print
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


@pytest.mark.parametrize("together", [False, True])
def test_a_shell_tells_the_same_by_one_redirection_or_many(together: bool) -> None:
    said = b"x=1; f() { :; }; set -- a b\n" + question(
        b"N1", b"/dev/stdout", b"\\builtin ", together=together
    )
    done = subprocess.run(["bash", "--norc"], input=said, capture_output=True, check=True)
    found = Dump.find(b"N1", done.stdout)
    assert found is not None
    assert (found.state().variables["x"], found.functions()) == ("1", {b"f"})
    assert found.state().positional == ("a", "b")


def test_whether_a_shell_may_print_something_while_it_is_asked() -> None:
    quiet = Dump(dict.fromkeys(SECTIONS, b""))
    assert not may_print(quiet, b"hiBs", tainted=False)
    assert may_print(None, b"hiBs", tainted=False), "it is not known"
    assert may_print(quiet, b"hiBs", tainted=True)
    for flags in (b"hixBs", b"hivBs", b"hiBsT", b"hiEBs"):
        assert may_print(quiet, flags, tainted=False)
    for name, said in (("traps", b"trap -- 'echo x' SIGCHLD"), ("aliases", b"alias {='echo x'")):
        assert may_print(Dump({**dict.fromkeys(SECTIONS, b""), name: said}), b"hiBs", tainted=False)
    assert may_print(Dump(dict.fromkeys(SECTIONS, b""), b"trap -- 'echo x' DEBUG"), b"hiBs", tainted=False)


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


PLAIN = {**SECTIONS, "traps": b"", "aliases": b""}


@pytest.mark.parametrize(
    ("variable", "is_kept"),
    [
        (b'declare -- PS1=""', True),
        (b'declare -- PS1="(venv) "', True),
        (b'declare -- PS1="\\$((x=2))"', False),
        (b'declare -- PS0="\\${x:=2}"', False),
        (b"declare -- PS4=$'`a`'", False),
        (b'declare -- PROMPT_COMMAND=""', True),
        (b"declare -a PROMPT_COMMAND=()", True),
        (b'declare -- PROMPT_COMMAND="x=2"', False),
        (b'declare -a PROMPT_COMMAND=([0]="" [1]="x=2")', False),
    ],
)
def test_what_comes_with_a_prompt_may_change_the_state(variable: bytes, is_kept: bool) -> None:
    dump = Dump({**PLAIN, "variables": PLAIN["variables"] + b"\n" + variable})
    assert dump.is_kept_by(b"ls -l") == is_kept
    assert not dump.is_kept_by(b"x=1")


def test_a_trap_of_ours_does_not_count() -> None:
    dump = Dump({**PLAIN, "traps": b"trap -- 'ours' SIGRTMAX\ntrap -- 'theirs' SIGINT"})
    assert not dump.is_kept_by(b"ls")
    dump.without_trap(b"SIGRTMAX")
    assert (dump.trap(b"SIGRTMAX"), dump.trap(b"SIGINT")) == (None, b"theirs")
    assert not dump.is_kept_by(b"ls")
    dump.without_trap(b"SIGINT")
    assert dump.is_kept_by(b"ls")
    assert dump.pieces()["traps"] == b""


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        (b'declare -- a="1"\ndeclare -i SECONDS="1"', b'declare -- a="1"\ndeclare -i SECONDS="2"', True),
        (b'declare -- a="1"\ndeclare -i SECONDS="1"', b'declare -- a="2"\ndeclare -i SECONDS="1"', False),
        (b'declare -- a="1"\ndeclare -- _="x"', b'declare -- a="1"', True),
        (b'declare -- a="1"\ndeclare -- _="x"', b'declare -- _="y"\ndeclare -- a="1"', True),
        (b'declare -- a="1"\ndeclare -- _="x"', b'declare -- a="1"\ndeclare -- b="x"', False),
        (b'declare -- a="1\ndeclare -- _=x"', b'declare -- a="1\ndeclare -- _=y"', False),
        (b'declare -- OLDPWD="/a"', b'declare -- OLDPWD="/b"', False),
        (b'declare -- PWD="/a"', b'declare -- PWD="/b"', True),
    ],
)
def test_two_states_are_equal_but_for_what_varies_by_itself(
    one: bytes, other: bytes, are_equal: bool
) -> None:
    first, second = Dump({**PLAIN, "variables": one}), Dump({**PLAIN, "variables": other})
    assert first.equals(second) == second.equals(first) == are_equal
    assert first.equals(first)
    assert not first.equals(Dump({**PLAIN, "variables": one, "umask": b"umask 0077"}))


@given(st.lists(st.sampled_from([b"a=b", b" ", b'"', b"'", b"\\", b"\n", b"$'"]), max_size=12).map(b"".join))
def test_statements_end_where_words_do(data: bytes) -> None:
    def words(data: bytes) -> list[bytes] | None:
        reader, found = WordReader(data), []
        while reader.at < len(data):
            start = reader.at
            reader.word(b"\n")
            found.append(data[start : reader.at])
            reader.at += 1
        return found

    try:
        expected = words(data)
    except Unreadable:
        with pytest.raises(Unreadable):
            list(statements(data))
    else:
        assert list(statements(data)) == expected


# What is known of the state of a shell, by the texts that it has run.


@pytest.fixture
def known() -> KnownState:
    made = KnownState()
    made.told(Dump(dict(PLAIN)))
    return made


def run(known: KnownState, *texts: str, as_it_is: bool = True, may_load: bool = False) -> bool:
    """Run these, and tell whether the shell has to be asked then."""
    for text in texts:
        known.runs(text.encode(), as_it_is=as_it_is, may_load=may_load)
    return known.is_dirty


def test_it_is_to_be_asked_at_first_and_after_any_text_that_may_change_it(known: KnownState) -> None:
    assert KnownState().is_dirty
    assert (known.is_dirty, known.is_settled) == (False, True)
    assert not run(known, "ls", "make > log 2>&1")
    assert known.is_settled
    assert run(known, "ls", "x=1", "ls")
    assert not known.is_settled
    assert run(known, "ls")


def test_texts_are_judged_when_that_is_asked_for(known: KnownState) -> None:
    known.runs(b"ls", as_it_is=True, may_load=False)
    assert not known.is_settled, "it is not known yet"
    assert not known.is_dirty
    assert known.is_settled


@pytest.mark.parametrize("options", [{"as_it_is": False}, {"may_load": True}], ids=["elsewhere", "loads"])
def test_what_is_run_otherwise_may_change_it(known: KnownState, options: dict[str, bool]) -> None:
    assert run(known, "ls", **options)


def test_a_shell_that_does_not_tell_is_asked_again_after_the_next_text(known: KnownState) -> None:
    assert run(known, "x=1")
    known.give_up()
    assert not known.is_dirty
    assert run(known, "ls")


def test_what_was_assumed_is_asked_for(known: KnownState) -> None:
    known.assume(Dump(dict(PLAIN)))
    assert known.is_dirty
    assert known.is_settled


def test_there_is_a_bound_for_what_is_judged(known: KnownState) -> None:
    assert not run(known, *["ls"] * 256)
    assert run(known, *["ls"] * 257)
    known.told(Dump(dict(PLAIN)))
    assert not run(known, "ls " + "x" * (LONGEST_PLAIN - 3))
    assert run(known, "ls " + "x" * (LONGEST_PLAIN - 2))


def test_a_state_that_cannot_be_read_is_none() -> None:
    known = KnownState()
    assert known.state() is None
    known.told(Dump({**PLAIN, "umask": b"nonsense"}))
    assert known.state() is None
    known.precompute_key()
