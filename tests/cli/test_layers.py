"""Kept sandboxes on the command line: used by one command after the other, listed, gone back to, removed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.kept_sandboxes import Run, at_a_terminal, names
from tests.support.staddle_command import COMMAND, environment
from tests.support.waiting import next_line

# ---------------------------------------------------------------- run and shell


@pytest.mark.slow
def test_what_one_run_changed_the_next_one_finds_and_the_host_does_not_have(
    command: Run, project: Path
) -> None:
    command("run", "--keep", "fix", "-c", "echo new > file; rm gone; pwd >&2")
    assert sorted(os.listdir(project)) == ["README", "gone", "src"]
    assert command("run", "--keep", "fix", "-c", "cat file; ls").stdout == "new\nREADME\nfile\nsrc\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_command_has_its_streams_and_its_status(command: Run) -> None:
    done = command("run", "--keep", "fix", "--", "sh", "-c", "tr a-z A-Z; exit 7", status=7, input="hello")
    assert done.stdout == "HELLO"
    assert "no-such" in command("run", "--keep", "fix", "--", "no-such", status=127).stderr
    assert command("run", "--keep", "fix", "--", "./README", status=126)
    assert (
        "--timeout"
        in command("run", "--keep", "fix", "--timeout", "0.3", "--", "sleep", "20", status=124).stderr
    )
    report = json.loads(command("run", "--keep", "fix", "--json", "-c", "echo out; exit 3", status=3).stdout)
    assert (report["stdout"], report["exit_code"], report["backend"]) == ("out\n", 3, "namespaces")


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_script_of_the_workspace_is_run_as_it_is_inside(command: Run, project: Path) -> None:
    (project / "script").write_text("echo from the host\n")
    assert command("run", "--keep", "fix", "script").stdout == "from the host\n"
    command("run", "--keep", "fix", "-c", "echo 'echo from inside $1' > script")
    assert command("run", "--keep", "fix", "script", "x").stdout == "from inside x\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_shell_goes_on_where_a_run_left(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > file")
    command("shell", "--keep", "fix", status=4, input="echo 2 >> file; exit 4\n")
    assert command("run", "--keep", "fix", "--", "cat", "file").stdout == "1\n2\n"


@pytest.mark.slow
def test_on_a_terminal_it_has_a_terminal(state: Path, project: Path) -> None:
    script = "tty; stty -a | head -1; test -t 0 && test -t 2 && echo yes; exit 5"
    seen, status = at_a_terminal(state, project, ["run", "--keep", "fix", "-c", script])
    assert status == 5
    assert "/dev/pts/0\n" in seen
    assert "yes\n" in seen
    seen, status = at_a_terminal(state, project, ["run", "--keep", "fix", "--", "no-such"])
    assert status == 127
    assert "'no-such' cannot be run" in seen


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_the_network_refused_is_told(command: Run) -> None:
    done = command(
        "run", "--keep", "fix", "--allow", "example.com", "-c", "getent hosts not.example.org; true"
    )
    assert "not.example.org was refused" in done.stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_session_is_of_one_workspace(command: Run, tmp_path: Path, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > file")
    assert command("run", "--keep", "fix", "--", "cat", "file", cwd=project / "src").stdout == "1\n"
    refused = command("run", "--keep", "fix", "--", "true", cwd=tmp_path, status=125)
    assert "not in there" in refused.stderr
    other = tmp_path / "other"
    other.mkdir()
    refused = command("run", "--keep", "fix", "--workspace", str(other), "--", "true", status=125)
    assert "another workspace" in refused.stderr
    project.rename(tmp_path / "moved")
    project.mkdir()
    assert "lost its workspace" in command("diff", "fix", status=125).stderr
    assert "?" in command("ls").stdout


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep", "../x", "--", "true"], "not a valid name"),
        (["--keep", "x" * 65, "--", "true"], "too long"),
        (["--keep", "x", "--mode", "bind", "--", "true"], "contradict"),
        (["--keep", "x", "--backend", "bwrap", "--", "true"], "copy-on-write"),
        (["--keep", "x", "--output-cap", "1M", "--", "true"], "--json"),
    ],
)
def test_what_cannot_be_kept_is_said_and_leaves_nothing(
    command: Run, state: Path, words: list[str], sentence: str
) -> None:
    assert sentence in command("run", *words, status=125).stderr
    assert not list(state.glob("staddle/sessions/*"))


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_session_that_is_in_use_is_not_used_twice(command: Run, state: Path, project: Path) -> None:
    env = {**environment(), "XDG_STATE_HOME": str(state)}
    words = [*COMMAND, "run", "--keep", "fix", "-c", "echo 1 > file; echo ready; read -r _ || true"]
    first = subprocess.Popen(
        words, cwd=project, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdin is not None
        assert next_line(first) == "ready\n"
        for words in (["run", "--keep", "fix", "--", "true"], ["discard", "fix"], ["rm", "--force", "fix"]):
            assert f"process {first.pid}" in command(*words, status=125).stderr
        assert names(command) == ["A /workspace/file"]  # looking is allowed
        assert "now" in command("ls").stdout
        first.stdin.close()
        assert first.wait(60) == 0
    finally:
        first.kill()
        first.wait()
    command("run", "--keep", "fix", "--", "true")


@pytest.mark.slow
def test_a_kill_loses_nothing_and_leaves_a_session_that_can_be_used(
    command: Run, state: Path, project: Path
) -> None:
    env = {**environment(), "XDG_STATE_HOME": str(state)}
    words = [*COMMAND, "run", "--keep", "fix", "-c", "echo 1 > file; echo ready; sleep 1251.5"]
    first = subprocess.Popen(words, cwd=project, env=env, stdout=subprocess.PIPE, text=True)
    assert next_line(first) == "ready\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert command("run", "--keep", "fix", "-c", "cat file; echo 2 > other").stdout == "1\n"
    assert names(command) == ["A /workspace/file", "A /workspace/other"]


# ---------------------------------------------------------------- discard, snapshot, restore


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_changes_are_dropped(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; echo 2 > src/two; rm gone")
    assert command("discard", "fix", "src").stdout == "1 change dropped\n"
    assert command("diff", "--names", "--", "gone").stdout == "D /workspace/gone\n"
    assert command("discard", "--", "/workspace/gone").stdout == "1 change dropped\n"
    assert command("run", "--keep", "fix", "--", "ls").stdout == "README\ngone\none\nsrc\n"
    command("discard", "fix")
    assert names(command) == []
    assert command("run", "--keep", "fix", "--", "ls").stdout == "README\ngone\nsrc\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_snapshot_can_be_gone_back_to(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > file; rm gone")
    command("snapshot", "fix", "first one")
    command("run", "--keep", "fix", "-c", "echo 2 > file; echo 3 > more")
    command("snapshot", "fix", "second")
    command("discard", "fix")
    command("restore", "fix", "first one")
    assert command("run", "--keep", "fix", "-c", "cat file; ls").stdout == "1\nREADME\nfile\nsrc\n"
    command("restore", "fix", "second")
    assert command("run", "--keep", "fix", "-c", "cat file more").stdout == "2\n3\n"
    assert "first one" in command("snapshot", "fix").stdout
    command("snapshot", "fix", "--delete", "first one")
    labels = [point["label"] for point in json.loads(command("snapshot", "fix", "--json").stdout)]
    assert labels == ["second"]
    assert "'second'" in command("restore", "fix", "first one", status=125).stderr
    assert "already" in command("snapshot", "fix", "second", status=125).stderr
    assert command("run", "--keep", "fix", "-c", "cat file").stdout == "2\n"


@pytest.mark.slow
def test_a_snapshot_goes_to_a_file_and_another_session_becomes_it(command: Run, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    command("run", "--keep", "fix", "-c", "echo 1 > file; echo home > ~/mine; rm gone")
    command("snapshot", "fix", "start")
    command("run", "--keep", "fix", "-c", "echo 2 > file")
    command("snapshot", "fix", "--save", f"{saved}.start", "start")
    command("snapshot", "fix", "--save", saved)
    command("run", "--keep", "other", "-c", "echo unwanted > x")
    command("restore", "other", "--load", saved)
    assert command("run", "--keep", "other", "-c", "cat file ~/mine; ls").stdout == (
        "2\nhome\nREADME\nfile\nsrc\n"
    )
    command("restore", "fix", "--load", f"{saved}.start")
    assert command("run", "--keep", "fix", "-c", "cat file").stdout == "1\n"
    Path(saved).write_bytes(Path(saved).read_bytes()[:-9])
    assert "refused" in command("restore", "other", "--load", saved, status=125).stderr
    assert "nowhere" in command("restore", "other", "--load", "nowhere", status=125).stderr
    assert "not" in command("snapshot", "fix", "--save", "no/such/place", status=125).stderr
    assert "--save" in command("snapshot", "fix", "--save", saved, "--json", status=125).stderr
    assert command("run", "--keep", "other", "-c", "cat file").stdout == "2\n"


@pytest.mark.slow
def test_layers_that_nobody_needs_are_deleted(command: Run, state: Path) -> None:
    for number in range(3):
        command("run", "--keep", "fix", "-c", f"echo {number} > file")
        command("snapshot", "fix", str(number))
    for number in range(3):
        command("snapshot", "fix", "--delete", str(number))
    command("discard", "fix")
    command("log", "fix", "--clear")
    directory = state / "staddle/sessions/fix"
    # One of the workspace, and one of the home and the like.
    assert sum(name.isdigit() for name in os.listdir(directory / "layers")) == 2
    assert not (directory / "gone").exists()


# ---------------------------------------------------------------- ls and rm


@pytest.mark.slow
def test_sessions_are_listed_and_removed_without_a_trace(command: Run, state: Path, project: Path) -> None:
    command("run", "--keep", "fix", "--env", "TOKEN=secret", "-c", "echo 1 > file; mkdir -m 0 closed")
    command("run", "--keep", "other", "--", "true")
    table = command("ls").stdout
    assert re.search(r"^fix +2 ", table, re.MULTILINE)
    assert re.search(r"^other +0 ", table, re.MULTILINE)
    text = command("ls", "--json").stdout
    facts = {item["name"]: item for item in json.loads(text)}
    assert facts["fix"]["workspace"] == str(project)
    assert facts["fix"]["changes"] == 2
    assert facts["fix"]["policy"]["env"] == ["TOKEN"]
    assert "secret" not in text
    refused = command("rm", "other", "fix", status=125).stderr
    assert "has 2 changes that were not committed" in refused
    assert "staddle rm --force fix" in refused
    assert [item["name"] for item in json.loads(command("ls", "--json").stdout)] == ["fix", "other"]
    command("rm", "--force", "fix", "other")
    assert "no sandbox is kept" in command("ls").stdout
    assert os.listdir(state) == []
    assert "no kept sandbox 'fix'" in command("rm", "fix", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_damaged_session_is_told_and_can_be_removed(command: Run, state: Path) -> None:
    command("run", "--keep", "fix", "--", "true")
    record = state / "staddle/sessions/fix/session"
    facts = json.loads(record.read_text())
    for wrong in ({"layers": ["../../x"]}, {"layers": []}, {"workspace": "relative"}, {"format": 2}):
        record.write_text(json.dumps({**facts, **wrong}))
        assert "cannot be read" in command("diff", "fix", status=125).stderr
        assert "cannot be read" in command("run", "--keep", "fix", "--", "true", status=125).stderr
        assert "cannot be read" in command("ls").stderr
    assert "staddle rm --force fix" in command("rm", "fix", status=125).stderr
    command("rm", "--force", "fix")
    assert os.listdir(state) == []


@pytest.mark.same_for_everyone
def test_every_command_teaches(command: Run) -> None:
    for name in ("diff", "commit", "discard", "snapshot", "restore", "ls", "rm"):
        text = command(name, "--help").stdout
        assert f"usage: staddle {name}" in text
        assert name in command("--help").stdout
        assert "no option" in command(name, "--nonsense", status=125).stderr
    assert "no kept sandbox" in command("diff", status=125).stderr


@pytest.mark.same_for_everyone
def test_the_old_name_of_ls_leads_to_the_new_one(command: Run) -> None:
    for words in (["sessions"], ["sessions", "rm", "fix"]):
        said = command(*words, status=125).stderr
        assert "`staddle ls` lists kept sandboxes" in said
        assert "`staddle rm NAME` removes one" in said
    assert "staddle rm NAME" in command("ls", "rm", "fix", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_mistyped_path_is_an_error(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo new > file")
    for name in ("diff", "discard"):
        assert "nothing was changed at 'fil'" in command(name, "fix", "fil", status=125).stderr
    assert command("diff", "fix", "README").stdout == ""  # it is there, and unchanged
    assert command("discard", "fix", "file").stdout == "1 change dropped\n"


def test_ls_counts_files_and_names_a_changed_repository(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "git init -q; echo 1 > made")
    row = command("ls").stdout.splitlines()[1].split("  ")
    assert [word.strip() for word in row if word][:2] == ["fix", "1 + .git"]
    (facts,) = json.loads(command("ls", "--json").stdout)
    assert facts["changes"] - facts["changes_in_git"] == 1
