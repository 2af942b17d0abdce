"""The audit log: every line has its number, and a line that is missing shows."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from staddle.errors import AuditFailed, InvalidCall
from staddle.observe.audit import MOST_ITEMS, MOST_LETTERS, AuditLine, AuditLog, AuditProblem, line_hash, read
from staddle.observe.redaction import Secrets
from tests.support.threads import at_once
from tests.support.waiting import until


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_numbered_and_the_last_one_is_the_end(tmp_path: Path) -> None:
    log = AuditLog.open(tmp_path / "audit.jsonl")
    log.write("opened", backend="namespaces")
    log.write("command", command="ls", nothing=None, many=("a", 1))
    log.close(reason="asked for")
    log.close()
    log.write("late")
    found = lines_of(tmp_path / "audit.jsonl")
    assert [(line["n"], line["what"]) for line in found] == [(1, "opened"), (2, "command"), (3, "closed")]
    assert found[1]["many"] == ["a", 1]
    assert {line["log"] for line in found} == {log.name}
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_every_kind_of_target_has_the_same_lines(tmp_path: Path) -> None:
    records: list[dict[str, object]] = []
    text, data = io.StringIO(), io.BytesIO()
    with (tmp_path / "opened").open("wb") as file:
        for target in (tmp_path / "named", str(tmp_path / "text"), text, data, file, records.append):
            log = AuditLog.open(target)  # type: ignore[arg-type]
            log.write("command", command="é \udcff")
            log.close()
    written = [
        (tmp_path / "named").read_text(),
        (tmp_path / "text").read_text(),
        text.getvalue(),
        data.getvalue().decode(),
        (tmp_path / "opened").read_text(),
        "\n".join(map(json.dumps, records)),
    ]
    for one in written:
        assert [json.loads(line)["what"] for line in one.splitlines()] == ["command", "closed"]
        assert json.loads(one.splitlines()[0])["command"] == "é \udcff"


def test_secrets_and_books_are_not_in_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AuditLog.open(path, Secrets(["hunter2-hunter2"]))
    log.write("command", command="x" * MOST_LETTERS + "hunter2-hunter2", env={"KEY": "hunter2-hunter2"})
    log.write("changes", paths=["p"] * (MOST_ITEMS + 5))
    log.close()
    assert "hunter2" not in path.read_text()
    first, second, _ = lines_of(path)
    assert len(str(first["command"])) == MOST_LETTERS + 1
    assert first["env"] == {"KEY": "(hidden)"}
    assert second["paths"] == ["p"] * MOST_ITEMS + [f"… {MOST_ITEMS + 5} in all"]


def test_a_line_that_cannot_be_written_is_told_and_leaves_a_gap(tmp_path: Path) -> None:
    log = AuditLog.open("/dev/full")
    with pytest.raises(AuditFailed, match="could not be written to '/dev/full'"):
        log.write("command")
    told: list[Any] = []

    def odd(record: dict[str, Any]) -> None:
        told.append(record["n"])
        if len(told) == 1:
            raise ValueError("mine")

    log = AuditLog.open(odd)
    with pytest.raises(ValueError, match="mine"):
        log.write("command")
    log.try_write("command")
    assert told == [1, 2], "no number comes twice"
    path = tmp_path / "small"
    log = AuditLog.open(path)
    log.write("opened")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
        for _ in range(2):
            with pytest.raises(AuditFailed):
                log.write("command", command="make")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    log.write("command", command="ls")
    log.write("command", command="id")
    log.close()
    with path.open("rb") as file:
        found = list(read(file))
    assert [line.facts["command"] for line in found if isinstance(line, AuditLine) and line.facts] == [
        "ls",
        "id",
    ]
    assert [problem.why for problem in found if isinstance(problem, AuditProblem)] == [
        "this is not a line of an audit log, or only a part of one",
        f"log {log.name}: missing before this line: 2 to 3",
    ]
    closed = io.StringIO()
    closed.close()
    with pytest.raises(AuditFailed):
        AuditLog.open(closed).write("command")

    def refuse(_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        AuditLog.open(refuse).write("command")


def test_targets_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="not a path, a stream or a function"):
        AuditLog.open(3)  # type: ignore[arg-type]
    with pytest.raises(AuditFailed, match="cannot be opened"):
        AuditLog.open(tmp_path / "none" / "log")
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(AuditFailed):
        AuditLog.open(tmp_path / "link")
    with pytest.raises(InvalidCall, match="in the workspace"):
        AuditLog.open(tmp_path / "log", outside=[str(tmp_path)])
    assert os.listdir(tmp_path) == ["link"]


def test_many_threads_write_whole_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AuditLog.open(path)
    at_once(*[lambda: [log.write("command", command="x" * 5000) for _ in range(100)]] * 8)
    log.close()
    with path.open("rb") as file:
        found = list(read(file))
    assert all(isinstance(line, AuditLine) for line in found)
    assert [line.number for line in found if isinstance(line, AuditLine)] == list(range(1, 802))


def problems(*raw: bytes) -> list[str]:
    return [found.why for found in read(raw) if isinstance(found, AuditProblem)]


def line(n: int, what: str = "command", log: str = "a") -> bytes:
    return json.dumps({"log": log, "n": n, "at": 1.0, "what": what}).encode() + b"\n"


@pytest.fixture
def chain(tmp_path: Path) -> list[bytes]:
    """The five lines of a log."""
    log = AuditLog.open(tmp_path / "chain")
    log.write("opened")
    for command in ("make", "ls", "id"):
        log.write("command", command=command)
    log.close()
    return (tmp_path / "chain").read_bytes().splitlines(keepends=True)


def test_a_line_that_was_changed_removed_inserted_or_moved_shows(chain: list[bytes]) -> None:
    name = json.loads(chain[0])["log"]
    assert problems(*chain) == []
    was_changed = f"log {name}: number {{}} was changed: the hash is another"
    one, two, three, four, five = chain
    assert problems(one, two.replace(b"make", b"true"), three, four, five) == [was_changed.format("2 or 3")]
    assert problems(one.replace(b"opened", b"failed"), *chain[1:]) == [was_changed.format("1 or 2")]
    assert problems(one, two, four, five) == [f"log {name}: missing before this line: 3"]
    for missing in range(1, 4):
        assert len(problems(*chain[:missing], *chain[missing + 1 :])) == 1
    assert problems(one, two, two, three, four, five) == [f"log {name}: number 2 comes after 2"]
    # A line in the place of another: nothing before or after it is changed.
    forged = two.replace(b'"n":2', b'"n":3')
    assert problems(one, two, forged, four, five) == [
        was_changed.format("2 or 3"),
        was_changed.format("3 or 4"),
    ]
    # A line between two: the numbers that follow must change, and with them the lines.
    moved = [line.replace(b'"n":%d' % n, b'"n":%d' % (n + 1)) for n, line in enumerate(chain, 1)]
    assert problems(one, two, forged, *moved[2:]) != []
    assert problems(one, three, two, four, five) == [
        f"log {name}: missing before this line: 2",
        f"log {name}: number 2 comes after 3",
    ]
    assert problems(*chain[:4]) == [f"log {name}: no end after number 4: it is still open, or was killed"]
    assert problems(*chain[:4], five[:20]) == [
        "this is not a line of an audit log, or only a part of one",
        f"log {name}: no end after number 4: it is still open, or was killed",
    ]
    without = [line.replace(json.loads(line)["after"].encode(), b"") for line in chain]
    assert problems(one, *without[1:])[0] == was_changed.format("1 or 2")
    assert problems(one, json.dumps(json.loads(two)).encode(), three, four, five) == [
        was_changed.format("2 or 3")
    ]


def test_the_hash_of_a_line_is_that_of_a_usual_program(chain: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "line").write_bytes(chain[1])
    printed = subprocess.run(
        ["b2sum", "-l", "256", tmp_path / "line"], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split()[0] == json.loads(chain[2])["after"]


def test_a_log_that_was_written_anew_from_some_line_on_has_another_last_hash(chain: list[bytes]) -> None:
    def hashes(lines: list[bytes]) -> list[str]:
        return [each.hash for each in read(lines) if isinstance(each, AuditLine)]

    forged = [chain[0], *chain[1:]]
    forged[1] = chain[1].replace(b"make", b"true")
    for at in range(2, 5):
        after = json.loads(forged[at])["after"].encode()
        forged[at] = forged[at].replace(after, line_hash(forged[at - 1]))
    assert problems(*forged) == [], "the chain alone cannot show it"
    assert hashes(forged)[0] == hashes(chain)[0]
    assert not set(hashes(forged)[1:]) & set(hashes(chain)), "a hash that was kept shows it"


def test_two_programs_that_append_have_a_chain_each(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = (
        "import sys; from staddle.observe.audit import AuditLog\n"
        "for _ in range(40):\n"
        "    log = AuditLog.open(sys.argv[1])\n"
        "    for n in range(9): log.write('command', command='x' * (n * 1200))\n"
        "    log.close()"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    raw = path.read_bytes().splitlines(keepends=True)
    assert len(raw) == 800
    assert problems(*raw) == []
    at = next(at for at in range(400, 800) if b'"command",' in raw[at])
    raw[at] = raw[at].replace(b'"command",', b'"failed",', 1)
    assert len(problems(*raw)) == 1


def test_a_kill_within_a_line_spoils_no_other_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    killed = AuditLog.open(path)
    killed.write("opened")
    killed.write("command", command="make")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])  # what a kill can leave of a long line
    after = AuditLog.open(path)
    after.write("opened")
    after.close()
    raw = path.read_bytes().splitlines(keepends=True)
    assert problems(*raw) == [
        "this is not a line of an audit log, or only a part of one",
        f"log {killed.name}: no end after number 1: it is still open, or was killed",
    ]
    assert [each.log for each in read(raw) if isinstance(each, AuditLine)] == [killed.name, *[after.name] * 2]


def test_a_killed_program_leaves_whole_lines_of_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = (
        "import sys; from staddle.observe.audit import AuditLog\n"
        "log = AuditLog.open(sys.argv[1])\n"
        "while True: log.write('command', command='x' * 9000)"
    )
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, path])
        size = path.stat().st_size if path.exists() else 0
        until(lambda size=size: path.exists() and path.stat().st_size > size + 50_000)
        child.kill()
        child.wait()
    told = problems(*path.read_bytes().splitlines(keepends=True))
    assert [why for why in told if "no end after" not in why and "only a part" not in why] == []
    assert len([why for why in told if "no end after" in why]) == 3


def test_a_log_of_an_older_version_has_numbers_only() -> None:
    assert problems(line(1), line(2), line(3, "closed")) == []


def test_what_is_missing_shows() -> None:
    assert problems(line(1), line(2, "closed")) == []
    assert problems(line(2), line(3, "closed")) == ["log a: missing before this line: 1"]
    assert problems(line(1), line(9), line(10, "closed")) == ["log a: missing before this line: 2 to 8"]
    assert problems(line(1), line(1), line(2, "closed")) == ["log a: number 1 comes after 1"]
    assert problems(line(1)) == ["log a: no end after number 1: it is still open, or was killed"]
    assert problems(line(1), b'{"log": "a", "n"\n', line(2, "closed")) == [
        "this is not a line of an audit log, or only a part of one"
    ]
    assert problems(line(1), line(1, log="b"), line(2, "closed", "b"), line(2, "closed")) == []
    for nonsense in (b"[]\n", b"3\n", b'{"n": {}}\n', b"[" * 100_000 + b"\n", b"\xff\xfe\n"):
        assert problems(nonsense) == ["this is not a line of an audit log, or only a part of one"]
