"""A workspace has one state and one holder, and its record is whole or not there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from staddle.errors import WorkspaceBusy, WorkspaceError
from staddle.jail import record
from staddle.jail import record as records
from staddle.observe.redaction import Secrets
from tests.support.threads import at_once

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


# The journal tells what happened, whole lines only, and no secret.


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record.append_journal(str(tmp_path), "created", branch="x")
    record.append_journal(str(tmp_path), "ended", status=3, reason="exited", violations=[])
    first, second = record.read_journal(str(tmp_path))
    assert (first.what, first.facts) == ("created", {"branch": "x"})
    assert second.facts == {"status": 3, "reason": "exited", "violations": []}
    assert first.at <= second.at


def test_the_end_of_a_killed_run_is_written_once(tmp_path: Path) -> None:
    for what in ("created", "began", "committed"):
        record.append_journal(str(tmp_path), what)
    record.end_journal(str(tmp_path))
    record.end_journal(str(tmp_path))
    entries = record.read_journal(str(tmp_path))
    assert [entry.what for entry in entries] == ["created", "began", "committed", "ended"]
    assert (entries[-1].facts["status"], entries[-1].facts["reason"]) == (None, "killed")


def test_a_secret_is_cut_out_wherever_it_stands(tmp_path: Path) -> None:
    secrets = Secrets(("sk-secret",))
    record.append_journal(
        str(tmp_path), "began", secrets, command=["x", "--key=sk-secret"], why="it said 'sk-secret'"
    )
    text = (tmp_path / record.JOURNAL).read_text()
    assert "sk-secret" not in text
    assert record.read_journal(str(tmp_path))[0].facts["command"] == ["x", "--key=(hidden)"]


def test_a_cut_does_not_leave_half_a_secret(tmp_path: Path) -> None:
    secret = "s" * 40
    record.append_journal(
        str(tmp_path), "x", Secrets((secret,)), why="-" * (record.MOST_LETTERS - 20) + secret
    )
    assert "sss" not in (tmp_path / record.JOURNAL).read_text()


def test_a_line_is_bounded(tmp_path: Path) -> None:
    record.append_journal(str(tmp_path), "began", command=["a" * 100_000] * 1000)
    assert (tmp_path / record.JOURNAL).stat().st_size < 200_000
    assert record.read_journal(str(tmp_path))[0].facts["command"][-1] == "…"


@pytest.mark.parametrize("line", [b"{", b"[]", b"null", b"{}", b'{"at": "x", "what": 1}', b"\xff\xfe"])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, line: bytes) -> None:
    (tmp_path / record.JOURNAL).write_bytes(line + b"\n")
    record.append_journal(str(tmp_path), "created")
    assert [entry.what for entry in record.read_journal(str(tmp_path))] == ["created"]


def test_of_a_long_one_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / record.JOURNAL).write_bytes(b'{"at": 1, "what": "old"}\n' * 100_000)
    record.append_journal(str(tmp_path), "new")
    entries = record.read_journal(str(tmp_path))
    assert entries[-1].what == "new"
    assert len(entries) < 50_000


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert record.read_journal(str(tmp_path)) == ()


def test_it_is_for_its_owner_only_and_follows_no_link(tmp_path: Path) -> None:
    record.append_journal(str(tmp_path), "created")
    assert (tmp_path / record.JOURNAL).stat().st_mode & 0o077 == 0
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / record.JOURNAL).unlink()
    (tmp_path / record.JOURNAL).symlink_to(victim)
    record.append_journal(str(tmp_path), "created")
    assert victim.read_text() == "mine\n"


def test_lines_of_many_do_not_mix(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(20):
            record.append_journal(str(tmp_path), "x", text=str(number) * 500)

    at_once(*(partial(write, number) for number in range(8)))
    entries = record.read_journal(str(tmp_path))
    assert len(entries) == 160
    assert all(len(set(entry.facts["text"])) == 1 for entry in entries)


def test_any_byte_of_a_name_is_kept(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\n\x1b[2J")
    record.append_journal(str(tmp_path), "x", command=[odd])
    assert record.read_journal(str(tmp_path))[0].facts["command"] == [odd]
