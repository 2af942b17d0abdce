"""A tree that is frozen again and again stays shallow, and each step costs as much as the first."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.background import do_later
from staddle.layers import squash, store, trash
from staddle.layers.baseline import Marks
from staddle.layers.changes import diff
from staddle.layers.squash import DEEP, DEEPEST, Squash
from staddle.layers.stack import Stack
from staddle.layers.store import Store, home_for
from tests.unit.layers.layer import whiteout


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that nobody else uses."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setenv(store.VARIABLE, str(place))
    with Store(home_for()) as found:
        yield found
        trash.wait()
        assert os.listdir(found.path) == ["lock"], "something was left"
    trash.wait()


def test_a_low_limit_on_open_files_leaves_layers_to_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squash.open_files, "original_limit", lambda: 0)
    assert squash.deepest() > squash.deep() > 1


@pytest.fixture
def host(tmp_path: Path) -> str:
    (tmp_path / "host").mkdir()
    (tmp_path / "host/of-the-host").write_text("h")
    return str(tmp_path / "host")


def followed(stack: Stack, made: Squash | None = None) -> Stack:
    """The stack after one more freeze, shortened as far as `made` is done."""
    point = stack.freeze() if made is None else made.shorten_now(stack.freeze())
    following = point.stack()
    stack.close()
    point.close()
    return following


def deep(made: Store, host: str, count: int) -> Stack:
    stack = Stack.new(made, [host])
    for number in range(count):
        Path(stack.top.upper, str(number)).write_text(str(number))
        stack = followed(stack)
    return stack


def test_the_result_stands_for_its_layers_in_stacks_that_were_made_meanwhile(made: Store, host: str) -> None:
    stack = deep(made, host, DEEP)
    squashed = Squash()
    squashed.begin(stack.below())
    for number in range(5):  # while it may still be under way
        Path(stack.top.upper, f"later-{number}").write_text("")
        stack = followed(stack)
    assert len(stack.frozen) == DEEP + 5
    trash.wait()
    point = squashed.shorten(stack.freeze())
    assert len(point.layers) == 1 + 5 + 1
    assert {change.path for change in diff(point.view())} == {
        *map(str, range(DEEP)),
        *(f"later-{number}" for number in range(5)),
    }
    for held in (point, stack, squashed):
        held.close()


def test_a_stack_that_comes_from_elsewhere_is_left_alone(made: Store, host: str) -> None:
    stack, other = deep(made, host, DEEP), deep(made, host, 3)
    squashed = Squash()
    squashed.begin(stack.below())
    trash.wait()
    point = other.freeze()
    assert squashed.shorten(point) is point
    for held in (point, stack, other, squashed):
        held.close()


def test_a_freeze_waits_when_there_are_too_many(made: Store, host: str) -> None:
    stack = deep(made, host, DEEPEST)
    squashed = Squash()
    point = squashed.shorten_now(stack.freeze())
    assert len(point.layers) < DEEPEST
    assert len(diff(point.view())) == DEEPEST
    for held in (point, stack, squashed):
        held.close()


def test_it_goes_on_where_nothing_can_be_merged(
    made: Store, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(squash, "merge", full)
    stack = deep(made, host, DEEPEST)
    squashed = Squash()
    squashed.begin(stack.below())
    point = squashed.shorten_now(stack.freeze())
    assert len(point.layers) == DEEPEST + 1
    for held in (point, stack, squashed):
        held.close()


@pytest.mark.same_for_everyone
def test_a_thousand_freezes_cost_each_as_much_as_the_first(
    made: Store, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in entries that were merged: about log2 of the freezes for each."""
    merged = 0
    real = squash.merge

    def counted(layers: list[str], *args: object, **options: object) -> None:
        nonlocal merged
        merged += sum(len(os.listdir(layer)) for layer in layers)
        real(layers, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(squash, "merge", counted)
    squashed = Squash()
    stack = Stack.new(made, [host])
    deepest, count = 0, 1024
    for number in range(count):
        Path(stack.top.upper, str(number)).write_text("")
        stack = followed(stack, squashed)
        deepest = max(deepest, len(stack.frozen))
    assert deepest <= DEEPEST
    assert merged <= count * 11, "who merges everything each time has sixteen"
    assert len(diff(stack.view())) == count
    stack.close()
    squashed.close()


def test_small_layers_leave_a_large_one_below_alone(made: Store, host: str) -> None:
    stack = Stack.new(made, [host])
    for number in range(200):
        Path(stack.top.upper, f"large-{number}").write_text("")
    stack = followed(stack)
    large = stack.frozen[0]
    for number in range(DEEP):
        Path(stack.top.upper, str(number)).write_text("")
        stack = followed(stack)
    run = squash.newest(stack.frozen)
    assert len(run) == DEEP
    assert large not in run
    stack.close()


def test_what_hides_a_file_further_down_stays_and_what_hides_nothing_goes(made: Store, host: str) -> None:
    stack = Stack.new(made, [host])
    for number in range(200):
        Path(stack.top.upper, f"large-{number}").write_text("")
    stack = followed(stack)
    for number in range(DEEP):
        Path(stack.top.upper, f"passing-{number}").write_text("")
        stack = followed(stack)
        whiteout(Path(stack.top.upper, f"passing-{number}"))
        if number < 3:
            whiteout(Path(stack.top.upper, ("of-the-host", "large-7", "large-8")[number]))
        stack = followed(stack)
    before = {(change.kind, change.path) for change in diff(stack.view())}
    squashed = Squash()
    squashed.begin(stack.below())
    trash.wait()
    point = squashed.shorten(stack.freeze())
    assert len(point.layers) == 3
    assert set(os.listdir(point.layers[1].upper)) == {"of-the-host", "large-7", "large-8"}
    assert {(change.kind, change.path) for change in diff(point.view())} == before
    for held in (point, stack, squashed):
        held.close()


def test_closing_gives_up_what_is_under_way(made: Store, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = deep(made, host, DEEP)
    squashed = Squash()
    at_work, go_on = threading.Event(), threading.Event()

    def rest() -> None:
        at_work.set()
        go_on.wait(60)
        real()

    real = squashed._rest
    monkeypatch.setattr(squashed, "_rest", rest)
    squashed.begin(stack.below())
    assert at_work.wait(60)
    closing = threading.Thread(target=squashed.close)
    closing.start()
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert squashed._merged is None
    stack.close()


def test_closing_before_it_has_begun_holds_nothing(made: Store, host: str) -> None:
    stack = deep(made, host, DEEP)
    go_on = threading.Event()
    do_later(lambda: go_on.wait(60))
    squashed = Squash()
    squashed.begin(stack.below())
    squashed.close()
    stack.close()
    go_on.set()


class TestMarks:
    def test_copies_are_apart(self) -> None:
        one = Marks({"a": (1,), "b": None})
        other = one.copy()
        one["a"], other["c"] = (2,), (3,)
        assert one.as_dict() == {"a": (2,), "b": None}
        assert other.as_dict() == {"a": (1,), "b": None, "c": (3,)}
        assert "b" in one
        assert one.get("b", (9,)) is None
        assert one.get("c", (9,)) == (9,)
        one.forget(["b", "unknown"])
        assert one.as_dict() == {"a": (2,)}
        assert other["b"] is None
        with pytest.raises(KeyError):
            one["b"]

    def test_thousands_of_copies_share_what_they_have(self) -> None:
        kept, marks = [], Marks()
        for number in range(4096):
            marks[str(number)] = (number,)
            kept.append(marks.copy())
        dictionaries = {id(one): len(one) for copy in kept for one in copy._shared}
        assert sum(dictionaries.values()) <= 4096 * 13
        assert max(len(copy._shared) for copy in kept) <= 13
        for number in (0, 77, 4095):
            assert sorted(map(int, kept[number])) == list(range(number + 1))
