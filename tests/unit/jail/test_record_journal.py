"""The journal tells what happened, whole lines only, and no secret."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from staddle.jail import record
from staddle.observe.redaction import Secrets


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

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = record.read_journal(str(tmp_path))
    assert len(entries) == 160
    assert all(len(set(entry.facts["text"])) == 1 for entry in entries)


def test_any_byte_of_a_name_is_kept(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\n\x1b[2J")
    record.append_journal(str(tmp_path), "x", command=[odd])
    assert record.read_journal(str(tmp_path))[0].facts["command"] == [odd]
