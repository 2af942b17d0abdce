"""`staddle log`, `show`, `undo`, `bisect` and `blame` after the commands have ended."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.staddle_command import environment, is_one_error, staddle

pytestmark = pytest.mark.both_users


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "list").write_text("one\ntwo\n")
    with tempfile.TemporaryDirectory(prefix="kept-", dir="/var/tmp") as state:
        os.chmod(state, 0o755)
        monkeypatch.setenv("XDG_STATE_HOME", state)
        monkeypatch.chdir(tmp_path)
        for line in ("echo three >> list", "echo four >> list; echo x > bad; exit 3", "sed -i 1d list"):
            staddle("run", "--keep", "fix", "-c", line, env=environment())
        yield tmp_path


def said(*words: str) -> str:
    done = staddle(*words, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_are_listed_and_shown(project: Path) -> None:
    newest, bad, oldest, start = said("log", "fix").splitlines()
    assert newest.startswith("*   3")
    assert "sed -i 1d list  (1 change)" in newest
    assert "(2 changes, exit code 3)" in bad
    assert "echo three" in oldest
    assert "(start)" in start
    shown = said("show", "fix", "2")
    assert "+four" in shown
    assert "A /workspace/bad" in shown
    changes = json.loads(said("show", "2", "--json"))["changes"]
    assert [each["kind"] for each in changes] == ["added", "modified"]
    facts = json.loads(said("log", "--json"))
    assert [each["number"] for each in facts] == [0, 1, 2, 3]
    assert facts[3]["present"]
    said("run", "--keep", "fix", "--", "ls")  # changes nothing
    assert len(json.loads(said("log", "--json"))) == 4


def test_commands_are_taken_back_and_done_again(project: Path) -> None:
    assert "2 points taken back; the present is point 1" in said("undo", "fix", "-n", "2")
    assert said("run", "--keep", "fix", "--", "cat", "list") == "one\ntwo\nthree\n"
    assert said("log", "fix").splitlines()[2].startswith("*   1")
    assert "1 point done again" in said("undo", "--redo")
    assert said("run", "--keep", "fix", "--", "cat", "list") == "one\ntwo\nthree\nfour\n"
    assert (project / "list").read_text() == "one\ntwo\n"


def test_the_command_after_which_a_test_fails_is_found(project: Path) -> None:
    found = said("bisect", "fix", "--", "test", "!", "-e", "bad")
    assert "   2 " in found
    assert "A /workspace/bad" in found
    for without_name in (["--", "test", "!", "-e", "bad"], ["-c", "test ! -e bad"]):
        assert "A /workspace/bad" in said("bisect", *without_name)
    facts = json.loads(said("bisect", "fix", "-c", "grep -c one list", "--good", "1", "--json"))
    assert facts["point"]["number"] == 3
    assert facts["result"]["stdout"] == "0\n"
    assert len(json.loads(said("log", "--json"))) == 4


def test_each_line_has_its_command(project: Path) -> None:
    lines = said("blame", "fix", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert json.loads(said("blame", "list", "--json"))[2] == {"line": 3, "text": "four", "point": 2}


MISTAKES: list[tuple[str, ...]] = [
    ("log", "nothing"),
    ("log", "fix", "more"),
    ("show", "fix"),
    ("show", "fix", "77"),
    ("show", "fix", "x"),
    ("undo", "fix", "-n", "9"),
    ("undo", "fix", "--redo"),
    ("undo", "nothing"),
    ("bisect", "fix"),
    ("bisect",),
    ("bisect", "fix", "--", "true"),
    ("bisect", "fix", "-c", "true", "--", "true"),
    ("blame", "fix", "nothing"),
    ("blame", "fix"),
]


def test_a_mistake_is_one_error(project: Path) -> None:
    for words in MISTAKES:
        done = staddle(*words, env=environment())
        assert done.returncode == 125, (words, done.stderr)
        assert is_one_error(done.stderr), (words, done.stderr)


def test_what_a_model_did_over_mcp_can_be_undone_when_the_server_has_ended(project: Path) -> None:
    from mcp import Client

    from staddle.mcp.sandboxes import ServerSettings
    from staddle.mcp.server import make_server

    async def task() -> None:
        async with Client(make_server(ServerSettings(str(project), keep="model"))) as client:
            for line in ("echo 1 > made", "rm list"):
                done = await client.call_tool("bash", {"command": line})
                assert not done.is_error, done.content

    asyncio.run(task())
    assert "rm list  (1 change)" in said("log", "model")
    assert "1 point taken back" in said("undo", "model")
    assert [row["path"] for row in json.loads(said("diff", "model", "--json"))] == ["/workspace/made"]
