"""What is known of the state of a shell, by the texts that it has run."""

from __future__ import annotations

import pytest

from staddle.shell.hazards import LONGEST_PLAIN
from staddle.shell.shell_state import KnownState
from staddle.shell.state import Dump
from tests.unit.shell.test_state import PLAIN


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


def test_what_was_loaded_stays(known: KnownState) -> None:
    known.runs(b"enable -f file name", as_it_is=True, may_load=True)
    known.told(Dump(dict(PLAIN)))
    assert run(known, "name")


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
