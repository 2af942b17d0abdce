"""`staddle run --mode overlay`: a throw-away layer, whose changes are told, shown or committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staddle import backends
from tests.support.staddle_command import environment, staddle


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    tmp_path.chmod(0o755)
    (project / "a").write_text("one\n")
    monkeypatch.chdir(project)
    return project


def names(place: Path) -> list[str]:
    return sorted(item.name for item in place.iterdir())


SCRIPT = "echo x > f && cat f; echo two >> a"


@pytest.mark.slow
def test_everything_may_be_changed_and_is_thrown_away_and_told(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "-c", f"{SCRIPT}; exit 3")
    assert (done.returncode, done.stdout) == (3, "x\n")
    assert "M /workspace/a\nA /workspace/f\n" in done.stderr
    assert "2 changes thrown away" in done.stderr
    assert "+two" not in done.stderr
    assert names(place) == ["a"]
    assert (place / "a").read_text() == "one\n"


@pytest.mark.parametrize("backend", [name for name in backends.candidates() if name != "systemd"])
def test_on_every_backend(place: Path, backend: str) -> None:
    done = staddle("run", "--backend", backend, "--mode", "overlay", "-c", SCRIPT)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    assert "2 changes thrown away" in done.stderr
    assert names(place) == ["a"]


@pytest.mark.same_for_everyone
def test_a_command_that_changes_nothing_is_told_nothing(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "--", "cat", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n", "")


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_changes_are_shown_and_committed_by_choice(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "--diff", "-c", SCRIPT)
    assert "+two" in done.stderr
    assert names(place) == ["a"]
    done = staddle("run", "--mode", "overlay", "--commit", "-c", SCRIPT)
    assert (done.returncode, done.stdout) == (0, "x\n")
    assert f"2 changes written to {place}" in done.stderr
    assert (place / "a").read_text() == "one\ntwo\n"
    assert (place / "f").read_text() == "x\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_command_that_failed_commits_nothing(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "--commit", "-c", f"{SCRIPT}; exit 4")
    assert done.returncode == 4
    assert "nothing is committed" in done.stderr
    assert names(place) == ["a"]


@pytest.mark.same_for_everyone
def test_a_commit_that_needs_a_second_look_is_refused_with_a_list(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "--commit", "-c", "echo evil > .envrc; echo fine > g")
    assert done.returncode == 125
    assert ".envrc" in done.stderr
    assert "nothing was written" in done.stderr
    assert names(place) == ["a"]


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_as_json(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "--json", "--commit", "-c", SCRIPT)
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"], told["stdout"], told["committed"]) == (0, 0, "x\n", True)
    assert [change["path"] for change in told["changes"]] == ["/workspace/a", "/workspace/f"]
    assert (place / "f").exists()
    refused = staddle("run", "--mode", "overlay", "--json", "--commit", "-c", "echo evil > .envrc")
    assert refused.returncode == 125
    assert json.loads(refused.stdout)["committed"] is False


@pytest.mark.slow
def test_a_script_of_the_workspace_and_one_from_elsewhere_are_run(place: Path) -> None:
    (place / "inside.sh").write_text("echo in >> a; cat a\n")
    (place.parent / "outside.sh").write_text("echo out >> a; cat a\n")
    assert staddle("run", "--mode", "overlay", "inside.sh").stdout == "one\nin\n"
    assert staddle("run", "--mode", "overlay", "../outside.sh").stdout == "one\nout\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_time_is_up_and_nothing_is_kept(place: Path) -> None:
    done = staddle("run", "--mode", "overlay", "--commit", "--timeout", "1", "-c", "echo x > f; sleep 60")
    assert done.returncode == 124
    assert names(place) == ["a"]


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("words", [(), ("--mode", "bind"), ("--keep", "x")])
@pytest.mark.parametrize("option", ["--diff", "--commit"])
def test_without_such_a_layer_there_is_nothing_to_show_or_commit(option: str, words: tuple[str, ...]) -> None:
    done = staddle("run", option, *words, "--", "true", env=environment())
    assert done.returncode == 125
    assert "needs --mode overlay" in done.stderr
