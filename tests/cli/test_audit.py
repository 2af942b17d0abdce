"""`staddle audit` shows the lines that are asked for, and says what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from staddle.observe.audit import AuditLog
from tests.support.in_a_child import captured
from tests.support.waiting import next_line, until

pytestmark = pytest.mark.same_for_everyone


def audit(*words: str) -> subprocess.CompletedProcess[str]:
    return captured([sys.executable, "-m", "staddle", "audit", *words])


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "audit.jsonl"
    made = AuditLog.open(path)
    made.write("opened", backend="namespaces")
    made.write("command", command="make \x1b[31mall", id=1)
    made.write("result", id=1, ok=False, exit_code=2)
    made.write("command", command="true", id=2)
    made.write("result", id=2, ok=True, exit_code=0)
    made.write("refused", host="example.com:443")
    made.close()
    return str(path)


def test_all_lines_are_shown_and_harmless(log: str) -> None:
    done = audit(log)
    assert done.returncode == 0
    assert [line.split()[4] for line in done.stdout.splitlines()] == [
        "opened", "command", "result", "command", "result", "refused", "closed"
    ]  # fmt: skip
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_filters(log: str) -> None:
    assert [line.split()[3] for line in audit(log, "--failed").stdout.splitlines()] == ["3"]
    assert len(audit(log, "--what", "command", "--what", "refused").stdout.splitlines()) == 3
    assert len(audit(log, "--grep", "EXAMPLE").stdout.splitlines()) == 1
    assert len(audit(log, "--since", "1h30m").stdout.splitlines()) == 7
    assert audit(log, "--log", "x").stdout == ""
    found = json.loads(audit(log, "--json", "--what", "refused").stdout)
    assert found[0]["facts"] == {"host": "example.com:443"}
    assert audit(log, "--check").stdout == ""


def test_a_line_that_is_missing_shows(log: str) -> None:
    lines = Path(log).read_bytes().splitlines(keepends=True)
    Path(log).write_bytes(b"".join([*lines[:2], *lines[3:-1]]))
    done = audit(log, "--check")
    assert done.returncode == 1
    assert "missing before this line: 3" in done.stderr
    assert "no end after number 6" in done.stderr


def test_a_hash_that_was_kept_shows_a_log_that_was_written_anew(log: str, tmp_path: Path) -> None:
    done = audit(log, "--last")
    kept, name, number = done.stdout.split()
    assert (done.returncode, number, name in Path(log).read_text()) == (0, "7", True)
    assert audit(log, "--check", "--expect", kept).returncode == 0
    Path(log).unlink()
    made = AuditLog.open(log)
    made.close()
    assert audit(log, "--check").returncode == 0
    done = audit(log, "--check", "--expect", kept)
    assert done.returncode == 1
    assert done.stderr == f"staddle: {log}: no line has the hash {kept}\n"


@pytest.mark.slow
def test_what_it_cannot_do_is_said() -> None:
    assert "staddle audit FILE" in audit().stderr
    assert "cannot be read" in audit("/nowhere").stderr
    assert "is not a time" in audit("/nowhere", "--since", "soon").stderr
    assert audit("--help").returncode == 0


def test_a_log_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog.open(path)
    log.write("opened")
    words = [sys.executable, "-m", "staddle", "audit", str(path), "--follow"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as following:
        assert "opened" in next_line(following)
        log.write("command", command="later")
        assert "later" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert until(lambda: following.poll() is not None, 20)
    assert following.returncode == 130
    log.close()
    assert os.path.exists(path)


def test_a_kind_that_no_line_has_is_an_error(log: str) -> None:
    done = audit(log, "--what", "comand")
    assert done.returncode == 125
    assert "no line is of the kind 'comand'" in done.stderr
