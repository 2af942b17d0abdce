"""`staddle jail` from an issue to a pushed branch: tasks, conversations, a configuration file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.git_plants import World
from tests.support.staddle_command import environment, staddle
from tests.support.waiting import next_line, until

#: Tasks, files and options. What a jail is for which user: test_jail.py, and tests/kernel/test_jail.py.
pytestmark = pytest.mark.same_for_everyone

#: Stands in for claude: says its arguments, and leaves a file.
AGENT = '#!/bin/sh\nprintf "<%s>" "$@"\necho\necho x >> left\n'


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    programs = tmp_path / "home/.local/bin"
    programs.mkdir(parents=True)
    for name in ("claude", "gemini"):
        (programs / name).write_text(AGENT)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


def jail(*words: str, status: int = 0, **kwargs: object) -> subprocess.CompletedProcess[str]:
    done = staddle("jail", *words, **kwargs)
    assert done.returncode == status, done.stderr
    return done


def create(*words: str) -> str:
    return jail("create", "repository", *words).stdout.strip()


def facts(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(jail("status", name, "--json").stdout)
    return found


@pytest.mark.slow
def test_a_task_is_kept_run_resumed_and_told(world: World) -> None:
    (world.top / "prompt").write_text("Fix it.\nTest it.")
    said = ("--reference", "o/r#7", "--for", "o/r", "--title", "A bug", "--session", "s-7")
    name = create(*said, "--prompt-file", "prompt")
    assert facts("o/r#7")["task"] == {
        "repository": "o/r",
        "reference": "o/r#7",
        "title": "A bug",
        "session": "s-7",
        "prompt": "Fix it.\nTest it.",
    }
    assert "o/r#7" in jail("create", "repository", *said, status=125).stderr
    first = jail("run", "o/r#7", "--agent", "claude", "--model", "m-1").stdout
    assert "<--model><m-1><--session-id><s-7><--><Fix it.\nTest it.>" in first
    again = jail("run", name, "--agent", "claude", "--prompt", "More", "--resume", "last").stdout
    assert "<--resume><s-7><--><More>" in again
    other = jail("run", name, "--agent", "claude", "--prompt", "Anew").stdout
    assert "<--session-id>" in other
    assert "s-7" not in other
    assert facts(name)["task"]["prompt"] == "Anew"  # type: ignore[index]
    session = facts(name)["task"]["session"]  # type: ignore[index]
    attached = jail("attach", name, input="").stdout
    assert attached == f"<--permission-mode><bypassPermissions><--resume><{session}>\n"
    assert "<--resume><latest>" in jail("run", name, "--agent", "gemini", "--resume", "last").stdout
    assert "<--resume><latest>" in jail("attach", name, input="").stdout
    told = jail("status", name).stdout
    for part in ("o/r#7", "A bug", "o/r"):
        assert part in told


@pytest.mark.slow
def test_there_is_nothing_to_attach_to_before_a_run(world: World) -> None:
    name = create()
    assert f"no agent was run in {name}" in jail("attach", name, status=125).stderr
    assert f"claude was not run in {name}" in jail("attach", name, "--agent", "claude", status=125).stderr
    wrong = jail("run", create(), "--model", "m", "--", "true", status=125).stderr
    assert "--model needs --agent" in wrong


@pytest.mark.slow
def test_what_is_left_is_told_and_committed_by_choice(world: World) -> None:
    name = create()
    told = jail("run", name, "--", "sh", "-c", "echo 1 > one; echo 2 > two").stderr
    assert "2 files are not committed: one, two" in told
    assert facts(name)["uncommitted"] == ["one", "two"]
    who = "Ann <ann@example.invalid>"
    inside = "echo 3 > three; git add three; git commit -qm inside; echo 4 > four"
    done = jail("run", name, "--author", who, "--commit", "The rest", "--", "sh", "-c", inside)
    assert "committed what was left" in done.stderr
    log = world.git("log", "-2", "--format=%s %an <%ae>", f"staddle/{name}", where=world.repository)
    assert log.decode() == f"The rest {who}\ninside {who}\n"
    assert facts(name)["uncommitted"] == []
    late = ("sh", "-c", "echo 5 > five; sleep 60")
    jail("run", name, "--commit", "no", "--timeout", "1", "--", *late, status=124)
    assert facts(name)["uncommitted"] == ["five"]  # it did not end by itself
    jail("commit", name, "-m", "By hand", "--author", "Bob <b@x>")
    assert world.git("log", "-1", "--format=%an", f"staddle/{name}", where=world.repository) == b"Bob\n"


@pytest.mark.slow
def test_what_cannot_be_committed_is_told_and_the_status_stays(world: World) -> None:
    script = "git checkout -q --detach; touch a; exit 3"
    done = jail("run", create(), "--commit", "x", "--", "sh", "-c", script, status=3)
    assert "not committed" in done.stderr


def test_path_and_cd_lead_into_the_tree(world: World) -> None:
    name = create()
    tree = str(world.top / "data" / name / "tree")
    assert jail("path", name).stdout == f"{tree}\n"
    line = jail("cd", name).stdout
    assert subprocess.check_output(["sh", "-c", f"{line}pwd"], text=True) == f"{tree}\n"


@pytest.mark.slow
def test_publish_pushes_only_where_it_is_told_to(world: World) -> None:
    world.git("init", "-q", "--bare", "origin.git")
    world.git("remote", "add", "origin", str(world.top / "origin.git"), where=world.repository)
    name = create()
    jail("run", name, "--commit", "work", "--", "touch", "new")
    assert "no remote 'upstream'" in jail("publish", name, "--remote", "upstream", status=125).stderr
    jail("publish", name, "--remote", "origin")
    assert world.git("branch", "--list", where=world.top / "origin.git").decode().strip() == f"staddle/{name}"


@pytest.mark.slow
def test_verbose_tells_what_is_run_without_values(world: World) -> None:
    done = jail("run", create(), "-v", "--env", "TOKEN=hush-hush", "--", "true")
    for part in ("backend: ", "network: deny", "command: ['true']", "TOKEN"):
        assert part in done.stderr
    assert "hush-hush" not in done.stderr


@pytest.mark.slow
def test_a_file_holds_options_and_the_command_line_wins(world: World) -> None:
    place = world.top / "home/.config/staddle"
    place.mkdir(parents=True)
    file = place / "jail.toml"
    file.write_text(
        'agent = "claude"\nmodel = "m-1"\nauthor = "Ann <a@x>"\n'
        'env = ["NOTE=1"]\nverbose = true\nopen-files = 500\n'
    )
    name = create("--prompt", "Do it")
    assert "<--model><m-1>" in jail("run", name).stdout
    assert "<--model><m-2>" in jail("run", name, "--model", "m-2").stdout
    plain = jail("run", name, "--", "sh", "-c", "echo $NOTE $GIT_AUTHOR_NAME; ulimit -n")
    assert plain.stdout == "1 Ann\n500\n"
    assert "agent: none" in plain.stderr  # a command of yours is no agent
    jail("commit", name, "-m", "x")
    assert world.git("log", "-1", "--format=%an", f"staddle/{name}", where=world.repository) == b"Ann\n"


def test_a_file_says_how_long_workspaces_are_kept(world: World) -> None:
    (world.top / "jail.toml").write_text('author = "Ann <a@x>"\n[reap]\nprepared = 0.001\nfailed = "never"\n')
    env = {**environment(), "STADDLE_JAIL_CONFIG": str(world.top / "jail.toml")}
    name = create()
    assert jail("reap", "--dry-run").stdout == ""
    assert name in jail("reap", "--dry-run", env=env).stdout
    assert jail("reap", "--dry-run", "--prepared", "never", env=env).stdout == ""
    jail("run", name, "--", "true", env=env)  # the table belongs to `reap` only


def test_a_commit_is_refused_as_that_of_a_kept_sandbox(world: World) -> None:
    name = create()
    script = "echo evil > .envrc; echo x > tool; chmod +x tool"
    left = jail("run", name, "--commit", "all", "--", "sh", "-c", script)
    assert "not committed" in left.stderr
    refused = jail("commit", name, "-m", "all", status=125).stderr
    assert "  .envrc: .envrc is a protected name\n  tool: it is a new executable\n" in refused
    assert "2 paths would have to be reviewed first" in refused
    assert f"see `staddle jail diff {name}`; --allow NAME takes one over, --allow-protected all" in refused
    assert ".envrc" in jail("commit", name, "-m", "all", "--allow", "tool", status=125).stderr
    assert len(jail("commit", name, "-m", "all", "--allow", "tool", "--allow-protected").stdout.strip()) == 40


def test_git_inside_has_the_author(world: World) -> None:
    asked = ("sh", "-c", "git config user.name; git config user.email")
    name = create()
    assert jail("run", name, "--author", "Ann <ann@x>", "--", *asked).stdout == "Ann\nann@x\n"
    assert jail("run", name, "--", *asked).stdout == "staddle agent\nagent@staddle.invalid\n"


def test_a_run_that_was_killed_has_an_end_in_the_journal(world: World) -> None:
    name = create()
    argv = [sys.executable, "-m", "staddle", "jail", "run", name, "--", "sh", "-c", "echo up; sleep 1000"]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment())
    assert next_line(running) == b"up\n"
    assert [entry["what"] for entry in _journal(name)] == ["created", "began"]
    running.kill()
    running.wait()
    running.stdout.close()
    assert until(lambda: [entry["what"] for entry in _journal(name)] == ["created", "began", "ended"])
    assert _journal(name)[-1]["reason"] == "killed"


def _journal(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(jail("status", name, "--json").stdout)["journal"]
    return found


@pytest.mark.parametrize(
    "text",
    [
        'remote = "origin"',
        'prompt = "x"',
        "colour = true",
        "verbose = 1",
        "[run]",
        "= 1",
        "reap = 1",
        "[reap]\nrunning = 1",
    ],
)
def test_a_file_that_says_what_it_cannot_is_an_error(world: World, text: str) -> None:
    name = create()
    (world.top / "jail.toml").write_text(text)
    env = {**environment(), "STADDLE_JAIL_CONFIG": str(world.top / "jail.toml")}
    assert "jail.toml" in jail("run", name, "--", "true", env=env, status=125).stderr


@pytest.mark.slow
def test_a_file_that_is_named_must_be_there(world: World) -> None:
    name = create()
    missing = jail(
        "run", name, "--", "true", env={**environment(), "STADDLE_JAIL_CONFIG": "/no/such"}, status=125
    )
    assert "/no/such" in missing.stderr
    jail("run", name, "--", "true", env={**environment(), "STADDLE_JAIL_CONFIG": ""})
