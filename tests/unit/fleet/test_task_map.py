"""The tasks of a map: each ends once, in order if that was asked for, and no more are out than the window."""

from __future__ import annotations

import itertools

import pytest

from staddle.errors import InvalidCall, SandboxLost
from staddle.fleet.task_map import TaskBoard
from tests.support.fleet_simulation import simulate

pytestmark = pytest.mark.same_for_everyone


def test_outcomes_come_in_order() -> None:
    board = TaskBoard("abc", ordered=True, retries=0, window=10)
    first, second, third = (board.take(1)[0] for _ in range(3))
    board.done(third, 3, None, "n")
    assert board.reported() is None
    board.done(first, 1, None, "n")
    board.done(second, 2, None, "n")
    assert [board.reported().value for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]
    assert board.take() == []
    assert board.over


def test_as_completed_they_come_as_they_are_done() -> None:
    board = TaskBoard("ab", ordered=False, retries=0, window=10)
    first, second = board.take(1)[0], board.take(1)[0]
    board.done(second, 2, None, "n")
    board.done(first, 1, None, "n")
    assert [board.reported().value for _ in range(2)] == [2, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("ordered", [True, False])
def test_endless_items_are_taken_as_they_are_needed(ordered: bool) -> None:
    board = TaskBoard(itertools.count(), ordered=ordered, retries=0, window=5)
    out = list(itertools.takewhile(bool, iter(lambda: board.take(1), None)))
    assert board.given == 5
    board.done(out[0][0], None, None, "n")
    assert board.take(1) == []  # done, and not reported
    assert board.reported() is not None
    assert board.take(1) != []


def test_a_lost_task_is_not_run_again_unasked() -> None:
    board = TaskBoard("a", ordered=True, retries=0, window=5)
    assert board.lost(board.take(), "its node ended", "n") == 0
    outcome = board.reported()
    assert outcome is not None
    with pytest.raises(SandboxLost, match="may have run in part"):
        outcome.get()
    assert board.take() == []
    assert board.over


def test_retries_are_for_lost_nodes_and_are_counted() -> None:
    board = TaskBoard("a", ordered=True, retries=2, window=5)
    for attempt in (1, 2):
        assert board.lost(board.take(), "its node ended", "n") == 1
        assert board.retried == attempt
    task = board.take()[0]
    board.done(task, None, ValueError("the task's own"), "n")
    outcome = board.reported()
    assert outcome is not None
    assert (outcome.attempts, type(outcome.error)) == (3, ValueError)


def test_short_tasks_travel_together() -> None:
    board = TaskBoard(range(100), ordered=True, retries=0, window=100)
    assert len(board.take()) == 1  # nothing is known yet
    board.took(0.005)
    assert 20 < len(board.take()) <= 64
    board.took(3.0)
    board.took(3.0)
    assert len(board.take()) == 1


def test_what_was_not_given_out_is_next_again() -> None:
    board = TaskBoard("ab", ordered=True, retries=0, window=5)
    task = board.take(1)
    board.put_back(task)
    assert board.take(1)[0].index == 0
    assert task[0].attempts == 1


def test_a_wrong_number_of_retries_is_refused() -> None:
    with pytest.raises(InvalidCall):
        TaskBoard("a", ordered=True, retries=-1, window=5)


# A simulation with nodes that die: `make test-fleet` runs it at full size.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("retries", [0, 3])
def test_every_task_has_one_outcome_and_no_more_starts_than_allowed(seed: int, retries: int) -> None:
    found = simulate(
        nodes=40, per_node=4, tasks=4000, retries=retries, deaths=30, seed=seed, ordered=bool(seed % 2)
    )
    assert found.problems == []
    assert found.finished == 4000
    assert found.deaths > 10
    assert found.most_starts == 1 if retries == 0 else found.most_starts <= retries + 1
    assert found.lost > 0 if retries == 0 else found.retried > 0


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (simulate(nodes=10, per_node=2, tasks=500, retries=1, deaths=5, seed=7) for _ in range(2))
    assert (first.lost, first.retried, first.deaths) == (second.lost, second.retried, second.deaths)
