"""A workspace has one state and one holder, and its record is whole or not there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from staddle.errors import WorkspaceBusy, WorkspaceError
from staddle.jail import record as records

RECORD = records.WorkspaceRecord("abc", "/r", "/r/.git", "staddle/abc", "0" * 40, "prepared", 1.0, 1.0)
ALLOWED = {(here, there) for here, ways in records.TRANSITIONS.items() for there in ways}


@pytest.mark.parametrize("here", records.TRANSITIONS)
@pytest.mark.parametrize("there", records.TRANSITIONS)
def test_only_the_ways_that_exist_are_gone(here: str, there: str) -> None:
    record = RECORD.replace(state=here)
    if (here, there) in ALLOWED:
        assert record.moved_to(there).state == there
        assert record.moved_to(there).changed > record.changed
    else:
        with pytest.raises(WorkspaceError, match="cannot become"):
            record.moved_to(there)


def test_the_whole_way() -> None:
    record = RECORD
    for state in ("running", "stopped", "running", "failed", "running", "stopped", "published"):
        record = record.moved_to(state)
    with pytest.raises(WorkspaceError, match="nothing else"):
        record.moved_to("running")


def test_an_unknown_state_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(WorkspaceError, match="prepared, running, stopped, failed, published"):
        RECORD.moved_to("done")


def test_it_comes_back_as_it_was_written_whatever_bytes_are_in_a_path(tmp_path: Path) -> None:
    odd = RECORD.replace(repository=os.fsdecode(b'/r\xff\n"\\'))
    records.write(str(tmp_path), odd)
    assert records.read(str(tmp_path)) == odd
    assert os.listdir(tmp_path) == ["workspace.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "name": "x"}', "null", "\xff"]
)
def test_what_cannot_be_read_is_an_error_with_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "workspace.json").write_text(text, encoding="latin-1")
    with pytest.raises(WorkspaceError):
        records.read(str(tmp_path))


def test_a_record_with_an_unknown_state_is_refused(tmp_path: Path) -> None:
    records.write(str(tmp_path), RECORD.replace(state="done"))
    with pytest.raises(WorkspaceError, match="done"):
        records.read(str(tmp_path))


def test_a_second_claim_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    assert not records.is_claimed(str(tmp_path))
    with records.Claim(str(tmp_path)) as claim:
        assert records.is_claimed(str(tmp_path))
        with pytest.raises(WorkspaceBusy):
            records.Claim(str(tmp_path))
        claim.release()
        claim.release()
    assert not records.is_claimed(str(tmp_path))
    records.Claim(str(tmp_path)).release()


def _try(directory: str, start: object, answers: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    try:
        claim = records.Claim(directory)
    except WorkspaceBusy:
        answers.put(False)  # type: ignore[attr-defined]
    else:
        answers.put(True)  # type: ignore[attr-defined]
        start.wait()  # type: ignore[attr-defined]
        claim.release()


def test_of_many_processes_exactly_one_wins(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    start, answers = spawn.Barrier(6), spawn.Queue()
    processes = [spawn.Process(target=_try, args=(str(tmp_path), start, answers)) for _ in range(6)]
    for process in processes:
        process.start()
    try:
        assert sorted(answers.get(timeout=30) for _ in processes) == [False] * 5 + [True]
    finally:
        start.abort()
        for process in processes:
            process.join(60)


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from staddle.jail.record import Claim;"
        "claim = Claim(sys.argv[1]); print(flush=True); time.sleep(60)"
    )
    source = str(Path(records.__file__).parents[2])
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env={"PYTHONPATH": source}
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert records.is_claimed(str(tmp_path))
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
        records.Claim(str(tmp_path)).release()
    finally:
        holder.kill()
        holder.communicate()
