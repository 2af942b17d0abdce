"""Which processes belong to a run, out of a table."""

from __future__ import annotations

import itertools
from typing import Any

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


OF_A_RUN: dict[str, tuple[dict[int, tuple[int, int]], dict[str, Any], set[int]]] = {
    "what began since, with all below it": (
        {200: (SHELL, 5100), 201: (200, 5101), 300: (1, 5100)},
        {},
        {200, 201},
    ),
    "not what began before": ({150: (SHELL, 4000), 200: (SHELL, 5100)}, {}, {200}),
    "not what an older job starts meanwhile": ({150: (SHELL, 4000), 210: (150, 5200)}, {}, set()),
    "at the same moment, what is no older than the newest job": (
        {150: (SHELL, 5000), 151: (SHELL, 5000)},
        {"newest_job": 150},
        {151},
    ),
    "before anything else, what has its pipes": (
        {150: (SHELL, 4999), 151: (SHELL, 5300), 152: (SHELL, 4000)},
        {"present": {150}, "former": {151, 152}},
        {150},
    ),
    "not an orphan with the pipes of an older job": ({210: (SHELL, 5200)}, {"former": {210}}, set()),
}


@pytest.mark.parametrize(("table", "known", "run"), OF_A_RUN.values(), ids=OF_A_RUN)
def test_of_a_run_is(table: dict[int, tuple[int, int]], known: dict[str, Any], run: set[int]) -> None:
    assert chosen(table, **known) == run


def test_the_dead_are_not_listed_but_their_children_are() -> None:
    processes = {
        SHELL: ProcessEntry(1, 1),
        200: ProcessEntry(SHELL, 5100, b"Z"),
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
    monkeypatch.setattr(
        process_tree, "table", lambda: {9: ProcessEntry(5, 1, b"T" if now[0] >= takes else b"S")}
    )
    assert process_tree.Pause(5).begin() == (7 if is_stopped else -1, 0)
    assert now[0] < 10


@pytest.mark.parametrize(
    ("state", "flags", "threads", "runs"),
    [("R", 0, 1, True), ("R", 4, 1, False), ("R", 4, 2, True), ("Z", 4, 1, False), ("Z", 4, 2, False)],
)
def test_a_process_whose_last_thread_ends_runs_no_more(
    monkeypatch: pytest.MonkeyPatch, state: str, flags: int, threads: int, runs: bool
) -> None:
    """A zombie with two threads has none here that could be looked at: it is gone by then."""
    fields = f"{state} 1 7 7 0 -1 {flags} 0 0 0 0 0 0 0 0 0 20 {threads} 0 100".encode().split()
    monkeypatch.setattr(process_tree, "stat_fields", lambda pid: fields)
    found = process_tree._entry(1 << 22)
    assert found is not None
    assert (found.runs, found.dead) == (runs, state == "Z")
