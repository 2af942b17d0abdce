"""Kept sandboxes on the command line: run, look, take over, drop, go back, remove."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.staddle_command import COMMAND, environment, staddle

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory that also somebody who is not root can pass through."""
    made = Path(tempfile.mkdtemp(prefix="staddle-kept-", dir="/var/tmp"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "a project, with: odd\nname"
    (directory / "src").mkdir(parents=True)
    (directory / "README").write_text("one\nteh end\n")
    (directory / "src" / "code").write_text("code\n")
    (directory / "gone").write_text("soon\n")
    return directory


@pytest.fixture
def command(state: Path, project: Path) -> Run:
    """`staddle ...` in the project, with that state directory."""

    def run(*words: str, status: int = 0, **more: object) -> subprocess.CompletedProcess[str]:
        env = {**environment(), "XDG_STATE_HOME": str(state)}
        done = staddle(*words, **{"cwd": project, "env": env, **more})
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    return run


def names(command: Run, *more: str) -> list[str]:
    return command("diff", "fix", "--names", *more).stdout.splitlines()


# ---------------------------------------------------------------- run and shell


def test_what_one_run_changed_the_next_one_finds_and_the_host_does_not_have(
    command: Run, project: Path
) -> None:
    command("run", "--keep", "fix", "-c", "echo new > file; rm gone; pwd >&2")
    assert sorted(os.listdir(project)) == ["README", "gone", "src"]
    assert command("run", "--keep", "fix", "-c", "cat file; ls").stdout == "new\nREADME\nfile\nsrc\n"


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


def test_a_script_of_the_workspace_is_run_as_it_is_inside(command: Run, project: Path) -> None:
    (project / "script").write_text("echo from the host\n")
    assert command("run", "--keep", "fix", "script").stdout == "from the host\n"
    command("run", "--keep", "fix", "-c", "echo 'echo from inside $1' > script")
    assert command("run", "--keep", "fix", "script", "x").stdout == "from inside x\n"


def test_a_shell_goes_on_where_a_run_left(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > file")
    command("shell", "--keep", "fix", status=4, input="echo 2 >> file; exit 4\n")
    assert command("run", "--keep", "fix", "--", "cat", "file").stdout == "1\n2\n"


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
    assert "?" in command("sessions").stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep", "../x", "--", "true"], "no name"),
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


def test_a_session_that_is_in_use_is_not_used_twice(command: Run, state: Path, project: Path) -> None:
    env = {**environment(), "XDG_STATE_HOME": str(state)}
    words = [*COMMAND, "run", "--keep", "fix", "-c", "echo 1 > file; echo ready; read -r _"]
    first = subprocess.Popen(
        words, cwd=project, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "ready\n"
        for words in (["run", "--keep", "fix", "--", "true"], ["discard", "fix"], ["sessions", "rm", "fix"]):
            assert f"process {first.pid}" in command(*words, status=125).stderr
        assert names(command) == ["A /workspace/file"]  # looking is allowed
        assert "now" in command("sessions").stdout
        first.stdin.close()
        assert first.wait(20) == 0
    finally:
        first.kill()
        first.wait()
    command("run", "--keep", "fix", "--", "true")


def test_a_kill_loses_nothing_and_leaves_a_session_that_can_be_used(
    command: Run, state: Path, project: Path
) -> None:
    env = {**environment(), "XDG_STATE_HOME": str(state)}
    words = [*COMMAND, "run", "--keep", "fix", "-c", "echo 1 > file; echo ready; sleep 1251.5"]
    first = subprocess.Popen(words, cwd=project, env=env, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert command("run", "--keep", "fix", "-c", "cat file; echo 2 > other").stdout == "1\n"
    assert names(command) == ["A /workspace/file", "A /workspace/other"]


# ---------------------------------------------------------------- diff


def test_the_diff_is_text_without_colours_in_a_pipe(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "sed -i s/teh/the/ README; rm gone; chmod 600 src/code")
    text = command("diff", "fix").stdout
    assert "-teh end\n+the end\n" in text
    assert "D /workspace/gone" in text
    assert "new mode 0600" in text
    assert "\x1b" not in text
    assert names(command, "src", "/workspace/gone") == ["D /workspace/gone", "m /workspace/src/code"]
    assert command("diff").stdout == text  # the one of this directory
    assert "not in the workspace" in command("diff", "fix", "/etc", status=125).stderr


def test_how_much_was_changed(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "seq 100 > many; printf 'a\\0b' > binary; sed -i s/teh/the/ README")
    text = command("diff", "fix", "--stat").stdout
    assert re.search(r"^M /workspace/README +\| 2 \+-$", text, re.MULTILINE)
    assert re.search(r"^A /workspace/binary +\| 0 -> 3 bytes$", text, re.MULTILINE)
    assert "3 changes (2 added, 1 modified), 101 lines added, 1 line deleted" in text


def test_the_diff_as_data_has_names_as_they_are(command: Run) -> None:
    command("run", "--keep", "fix", "-c", r"touch $'odd\nname\033[31m\xff'")
    (change,) = json.loads(command("diff", "fix", "--json").stdout)
    assert (change["kind"], change["path"]) == ("added", "/workspace/odd\nname\x1b[31m\udcff")


def test_names_and_text_from_inside_are_shown_harmless(command: Run) -> None:
    script = r"""printf 'evil\033]0;title\a\r\n+++ b/forged\n' > $'x\n+++ b\033[2J'; ln -s $'a\nb' link"""
    command("run", "--keep", "fix", "-c", script)
    for words in (["diff", "fix"], ["diff", "fix", "--stat"], ["diff", "fix", "--names"]):
        text = command(*words).stdout
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
        assert "\n+++ b\\x1b" not in text
    assert "\n++++ b/forged" in command("diff", "fix").stdout


def test_on_a_terminal_it_is_coloured_and_paged(command: Run, state: Path, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "seq 200 > many")
    pager = "sh -c 'echo PAGED; cat'"
    seen, status = at_a_terminal(state, project, ["diff", "fix"], PAGER=pager)
    assert status == 0
    assert "PAGED" in seen
    assert "\x1b[32m+200\x1b[0m" in seen
    seen, _ = at_a_terminal(state, project, ["diff", "fix", "--stat"], PAGER=pager)
    assert "PAGED" not in seen  # it is short
    seen, _ = at_a_terminal(state, project, ["diff", "fix"], PAGER="cat", NO_COLOR="1")
    assert "+200" in seen
    assert "\x1b" not in seen


# ---------------------------------------------------------------- commit


def test_a_commit_takes_everything_over_and_begins_anew(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "sed -i s/teh/the/ README; rm gone; mkdir -p a/b; echo n > a/b/c")
    assert "4 changes" not in command("diff", "fix").stdout
    assert "taken over" in command("commit", "fix", "--yes").stdout
    assert (project / "README").read_text() == "one\nthe end\n"
    assert not (project / "gone").exists()
    assert (project / "a/b/c").read_text() == "n\n"
    assert os.stat(project / "a/b/c").st_uid == os.geteuid()
    assert command("diff", "fix").stdout == ""
    (project / "README").write_text("of the host\n")
    assert command("diff", "fix").stdout == ""
    assert command("run", "--keep", "fix", "--", "cat", "README").stdout == "of the host\n"
    assert command("commit", "fix", "--yes").stdout == "nothing to commit\n"


def test_only_some_paths_can_be_committed(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; echo 2 > src/two; echo 3 > three")
    report = json.loads(command("commit", "fix", "--yes", "--json", "one", "/workspace/src").stdout)
    assert {change["path"] for change in report["changes"]} == {"one", "src/two"}
    assert sorted(os.listdir(project)) == ["README", "gone", "one", "src"]
    assert names(command) == ["A /workspace/three"]
    assert "no change" in command("commit", "fix", "--yes", "nowhere", status=125).stderr


def test_without_a_terminal_nobody_is_asked_and_nothing_is_done(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one")
    assert "--yes" in command("commit", "fix", status=125).stderr
    assert not (project / "one").exists()


def test_on_a_terminal_it_lists_and_asks(command: Run, state: Path, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; rm gone")
    seen, status = at_a_terminal(state, project, ["commit", "fix"], answer=b"n\n")
    assert status == 1
    assert "A /workspace/one" in seen
    assert "D /workspace/gone" in seen
    assert "these 2 changes" in seen
    assert not (project / "one").exists()
    seen, status = at_a_terminal(state, project, ["commit", "fix"], answer=b"y\n")
    assert status == 0
    assert (project / "one").exists()


def test_what_changed_on_both_sides_is_listed_and_refused(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo inside > README; echo fine > other")
    time.sleep(0.05)
    (project / "README").write_text("outside\n")
    refused = command("commit", "fix", "--yes", status=125)
    assert "README: it was changed on the host meanwhile" in refused.stderr
    assert "--on-conflict overwrite" in refused.stderr
    assert not (project / "other").exists()
    command("run", "--keep", "fix", "--", "true")  # another start does not make it forget
    command("commit", "fix", "--yes", status=125)
    command("commit", "fix", "--yes", "--on-conflict", "overwrite")
    assert (project / "README").read_text() == "inside\n"
    command("commit", "fix", "--on-conflict", "ask", status=125)


def test_what_the_host_changed_before_the_sandbox_did_is_no_conflict(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one")
    time.sleep(0.05)
    (project / "README").write_text("newer\n")
    time.sleep(0.05)
    command("run", "--keep", "fix", "-c", "echo more >> README")
    command("commit", "fix", "--yes")
    assert (project / "README").read_text() == "newer\nmore\n"


def test_a_deleted_directory_that_the_host_goes_on_with_is_a_conflict(command: Run, project: Path) -> None:
    command("run", "--keep", "fix", "-c", "rm -r src")
    time.sleep(0.05)
    (project / "src" / "code").write_text("more code\n")
    command("run", "--keep", "fix", "--", "true")
    assert "src/code" in command("commit", "fix", "--yes", status=125).stderr
    assert (project / "src" / "code").read_text() == "more code\n"


def test_protected_names_and_new_programs_need_a_second_look(command: Run, project: Path) -> None:
    script = "git init -q .; echo x > .git/hooks/pre-commit; echo x > tool; chmod +x tool; echo fine > file"
    command("run", "--keep", "fix", "-c", script)
    refused = command("commit", "fix", "--yes", status=125)
    assert "tool: it is a new executable" in refused.stderr
    assert ".git/hooks/pre-commit: .git/hooks is a protected name" in refused.stderr
    assert not (project / "file").exists()
    command("commit", "fix", "--yes", "file")
    assert (project / "file").exists()
    command("commit", "fix", "--yes", "--allow-protected")
    assert os.access(project / "tool", os.X_OK)


# ---------------------------------------------------------------- discard, snapshot, restore


def test_changes_are_dropped(command: Run) -> None:
    command("run", "--keep", "fix", "-c", "echo 1 > one; echo 2 > src/two; rm gone")
    assert command("discard", "fix", "src", "/workspace/gone").stdout == "2 changes dropped\n"
    assert command("run", "--keep", "fix", "--", "ls").stdout == "README\ngone\none\nsrc\n"
    command("discard", "fix")
    assert names(command) == []
    assert command("run", "--keep", "fix", "--", "ls").stdout == "README\ngone\nsrc\n"


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


def test_layers_that_nobody_needs_are_deleted(command: Run, state: Path) -> None:
    for number in range(3):
        command("run", "--keep", "fix", "-c", f"echo {number} > file")
        command("snapshot", "fix", str(number))
    for number in range(3):
        command("snapshot", "fix", "--delete", str(number))
    command("discard", "fix")
    directory = state / "staddle/sessions/fix"
    assert sum(name.isdigit() for name in os.listdir(directory / "layers")) == 1
    assert not (directory / "gone").exists()


# ---------------------------------------------------------------- sessions


def test_sessions_are_listed_and_removed_without_a_trace(command: Run, state: Path, project: Path) -> None:
    command("run", "--keep", "fix", "--env", "TOKEN=secret", "-c", "echo 1 > file; mkdir -m 0 closed")
    command("run", "--keep", "other", "--", "true")
    table = command("sessions").stdout
    assert re.search(r"^fix +2 ", table, re.MULTILINE)
    assert re.search(r"^other +0 ", table, re.MULTILINE)
    text = command("sessions", "--json").stdout
    facts = {item["name"]: item for item in json.loads(text)}
    assert facts["fix"]["workspace"] == str(project)
    assert facts["fix"]["changes"] == 2
    assert facts["fix"]["policy"]["env"] == ["TOKEN"]
    assert "secret" not in text
    command("sessions", "rm", "fix", "other")
    assert "no session is kept" in command("sessions").stdout
    assert os.listdir(state) == []
    assert "no session 'fix'" in command("sessions", "rm", "fix", status=125).stderr


def test_a_damaged_session_is_told_and_can_be_removed(command: Run, state: Path) -> None:
    command("run", "--keep", "fix", "--", "true")
    record = state / "staddle/sessions/fix/session"
    facts = json.loads(record.read_text())
    for wrong in ({"layers": ["../../x"]}, {"layers": []}, {"workspace": "relative"}, {"format": 2}):
        record.write_text(json.dumps({**facts, **wrong}))
        assert "cannot be read" in command("diff", "fix", status=125).stderr
        assert "cannot be read" in command("run", "--keep", "fix", "--", "true", status=125).stderr
        assert "cannot be read" in command("sessions").stderr
    command("sessions", "rm", "fix")
    assert os.listdir(state) == []


def test_every_command_teaches(command: Run) -> None:
    for name in ("diff", "commit", "discard", "snapshot", "restore", "sessions"):
        text = command(name, "--help").stdout
        assert f"usage: staddle {name}" in text
        assert name in command("--help").stdout
        assert "no option" in command(name, "--nonsense", status=125).stderr
    assert "no session" in command("diff", status=125).stderr


# ---------------------------------------------------------------- a person


def at_a_terminal(
    state: Path, place: Path, words: list[str], answer: bytes = b"", **env: str
) -> tuple[str, int]:
    """What somebody at a terminal sees of `staddle WORDS`, and its exit status."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=place,
        env={**environment(), "XDG_STATE_HOME": str(state), "TERM": "xterm", "PAGER": "cat", **env},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    seen, until = b"", time.monotonic() + 20
    try:
        while time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    data = os.read(master, 65536)
                except OSError:
                    break  # nobody has the other end any more
                seen += data
                if answer and b"[y/N] " in seen:
                    os.write(master, answer)
                    answer = b""
        return seen.decode().replace("\r\n", "\n"), process.wait(10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
