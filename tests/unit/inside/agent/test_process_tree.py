"""Which processes belong to a run, out of a table."""

from __future__ import annotations

import itertools

import pytest

from staddle.inside.agent import process_tree
from staddle.inside.agent.process_tree import ProcessEntry, below, of_run

SHELL, SINCE = 100, 5000


def chosen(table: dict[int, tuple[int, int]], newest_job: int = 0, **pipes: set[int]) -> set[int]:
    processes = {pid: ProcessEntry(parent, started) for pid, (parent, started) in table.items()}
    processes[SHELL] = ProcessEntry(1, 100)
    present, former = pipes.get("present", set()), pipes.get("former", set())
    return of_run(
        SHELL, SINCE, newest_job, processes, lambda pid: 1 if pid in present else -1 if pid in former else 0
    )


def test_what_began_since_is_of_the_run_with_all_below_it() -> None:
    assert chosen({200: (SHELL, 5100), 201: (200, 5101), 300: (1, 5100)}) == {200, 201}


def test_what_began_before_is_not() -> None:
    assert chosen({150: (SHELL, 4000), 200: (SHELL, 5100)}) == {200}


def test_what_an_older_job_starts_meanwhile_is_the_older_jobs() -> None:
    assert chosen({150: (SHELL, 4000), 210: (150, 5200)}) == set()


def test_at_the_same_moment_the_number_of_the_newest_job_decides() -> None:
    assert chosen({150: (SHELL, 5000), 151: (SHELL, 5000)}, newest_job=150) == {151}


def test_the_pipes_that_it_holds_decide_before_anything_else() -> None:
    table = {150: (SHELL, 4999), 151: (SHELL, 5300), 152: (SHELL, 4000)}
    assert chosen(table, present={150}, former={151, 152}) == {150}


def test_an_orphan_of_an_older_job_is_known_by_its_pipes() -> None:
    assert chosen({210: (SHELL, 5200)}, former={210}) == set()


def test_the_dead_are_not_listed_but_their_children_are() -> None:
    processes = {
        SHELL: ProcessEntry(1, 1),
        200: ProcessEntry(SHELL, 5100, dead=True),
        201: ProcessEntry(200, 5101),
    }
    assert of_run(SHELL, SINCE, 0, processes, lambda _: 0) == {201}


def test_a_table_that_goes_in_circles_ends() -> None:
    processes = {SHELL: ProcessEntry(201, 1), 200: ProcessEntry(SHELL, 5100), 201: ProcessEntry(200, 5101)}
    assert of_run(SHELL, SINCE, 0, processes, lambda _: 0) >= {200, 201}
    assert below(SHELL, processes) >= {200, 201}


def test_what_is_started_while_a_run_is_ended_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[set[int]] = []
    monkeypatch.setattr(process_tree, "signal", lambda pids, _: signalled.append(set(pids)))
    there = iter([[5, 6], [5, 6, 7], [7], [7], []])
    process_tree.kill_all(lambda: next(there))
    assert signalled == [{5, 6}, {7}]
    assert next(there, None) is None, "it has not waited until they were dead"


def test_nobody_is_chased_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "signal", lambda *_: None)
    number = itertools.count(5)
    process_tree.kill_all(lambda: [next(number)])
    assert next(number) < 100


@pytest.mark.parametrize(("takes", "is_stopped"), [(1.2, True), (60.0, False)])
def test_a_busy_machine_has_time_to_stop_a_process(
    monkeypatch: pytest.MonkeyPatch, takes: float, is_stopped: bool
) -> None:
    """It stops when it is its turn, which may be after many looks; but it is not waited for without end."""
    now = [0.0]
    monkeypatch.setattr(process_tree.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(process_tree, "_pause", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(process_tree, "signal", lambda *_: None)
    monkeypatch.setattr(process_tree, "_continues", lambda _: False)
    monkeypatch.setattr(process_tree, "_mark", lambda _: 7)
    monkeypatch.setattr(process_tree, "table", lambda: {9: ProcessEntry(5, 1, stopped=now[0] >= takes)})
    assert process_tree.Pause(5).begin() == (7 if is_stopped else -1, 0)
    assert now[0] < 10
