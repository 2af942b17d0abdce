"""`staddle jail`: from a repository to a reviewed branch, on the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.cli import jail as command
from staddle.cli.jail import _parsed
from staddle.cli.jail_run import RUN_OPTIONS, SHELL_OPTIONS, _opts
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World
from tests.support.staddle_command import COMMAND, environment, gone, staddle, start
from tests.support.waiting import until

TYPIST = Path(__file__).parents[1] / "support/typing_at_a_terminal.py"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "home/.local/bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    yield World(tmp_path)
    assert sorted(os.listdir(tmp_path / "home")) == [".local"]  # nothing else of ours in it


@pytest.fixture
def name(world: World) -> str:
    return jail("create", "repository").stdout.strip()


def jail(*words: str, status: int = 0, **kwargs: object) -> subprocess.CompletedProcess[str]:
    done = staddle("jail", *words, **kwargs)
    assert done.returncode == status, done.stderr
    return done


def typed(lines: list[str], *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """What came of a command at a terminal, where somebody types these lines."""
    argv = [sys.executable, str(TYPIST), json.dumps(lines), *words]
    return subprocess.run(argv, env={**environment(), **env}, capture_output=True, timeout=60, check=False)


def state(name: str) -> str:
    return str(json.loads(jail("status", name, "--json").stdout)["state"])


@pytest.mark.slow
def test_from_a_repository_to_a_reviewed_branch(world: World) -> None:
    name = jail("create", "repository", "--branch", "agent/one", "--base", "main~1").stdout.strip()
    script = "echo two > two; git add two; git commit -qm 'Add two'; echo three > three"
    jail("run", name, "--", "bash", "-c", script)
    listed = jail("ls").stdout
    assert name in listed
    assert "stopped" in listed
    told = jail("status", "agent/one").stdout
    for part in ("Add two", "three", "ended status=0", "agent/one"):
        assert part in told
    changes = jail("diff", name[:6]).stdout
    assert "+two" in changes
    assert "+three" in changes
    assert "+three" not in jail("diff", name, "--committed").stdout
    assert "2 files changed" in jail("diff", name, "--stat").stdout
    assert "uncommitted" in jail("publish", name, status=125).stderr
    assert "uncommitted" in jail("rm", name, status=125).stderr
    commit = jail("commit", name, "-m", "The rest").stdout.strip()
    assert jail("commit", name, "-m", "again").stdout == "nothing to commit\n"
    assert jail("publish", name).stdout == f"agent/one at {commit}\n"
    jail("rm", name)
    log = world.git("log", "--format=%s", "main~1..agent/one", where=world.repository)
    assert log == b"The rest\nAdd two\n"
    assert world.git("fsck", "--strict", where=world.repository) == b""
    assert json.loads(jail("ls", "--json").stdout) == []


def tree_of(name: str) -> Path:
    return Path(jail("path", name).stdout.strip())


def committed(world: World, name: str, path: str) -> str:
    branch = json.loads(jail("status", name, "--json").stdout)["branch"]
    return world.git("show", f"{branch}:{path}", where=world.repository).decode()


def at_the_question(name: str, answer: str, meanwhile: str) -> tuple[int, str]:
    """The end of `jail commit` on a terminal, and its output; `meanwhile` is run while it asks."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = ("jail", "commit", name, "-m", "as shown")
        os.execve(COMMAND[0], [*COMMAND, *words], {**environment(), "TERM": "dumb"})  # noqa: S606
    said = b""
    while b"[y/N]" not in said:
        said += os.read(terminal, 65536)
    subprocess.run(["sh", "-c", meanwhile], cwd=tree_of(name), check=True)
    os.write(terminal, answer.encode() + b"\r")
    with contextlib.suppress(OSError):  # EIO: it has ended
        while data := os.read(terminal, 65536):
            said += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()


def test_what_the_question_showed_is_committed(world: World, name: str) -> None:
    tree = tree_of(name)
    (tree / "file.txt").write_text("shown\n")
    (tree / "new").touch()
    status, said = at_the_question(name, "n", "true")
    assert (status, "nothing was done" in said) == (1, True)
    status, said = at_the_question(name, "y", "echo evil! > file.txt; echo evil > .envrc")
    assert status == 0, said
    assert "Commit these 2 changes to staddle/" in said
    assert "M file.txt" in said
    assert "A new" in said
    assert "changed since it was shown, and not committed: .envrc, file.txt" in said
    assert committed(world, name, "file.txt") == "shown\n"


def test_what_the_diff_showed_is_committed_or_refused(world: World, name: str) -> None:
    tree = tree_of(name)
    (tree / "file.txt").write_text("shown\n")
    shown = jail("diff", name)
    assert "+shown" in shown.stdout
    digest = shown.stderr.partition("--review ")[2].split()[0]
    (tree / "file.txt").write_text("evil!\n")
    done = jail("commit", name, "--review", digest, "-m", "as shown")
    assert "changed since it was shown, and not committed: file.txt" in done.stderr
    assert committed(world, name, "file.txt") == "shown\n"
    refused = jail("commit", name, "--review", digest, "-m", "again", status=125).stderr
    assert "file.txt: it changed since the review" in refused
    assert "jail diff" in jail("commit", name, "--review", "x", "-m", "x", status=125).stderr


def test_hosts_of_the_file_are_not_files_that_a_commit_allows(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.top / "jail.toml").write_text('network = "allow"\nallow = ["*"]\n')
    monkeypatch.setenv("STADDLE_JAIL_CONFIG", str(world.top / "jail.toml"))
    (tree_of(name) / ".envrc").touch()
    assert ".envrc is a protected name" in jail("commit", name, "-m", "x", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_exit_status_is_the_commands_and_the_state_is_told(name: str) -> None:
    assert jail("run", name, "--", "sh", "-c", "exit 7", status=7).stderr == ""
    assert state(name) == "stopped"
    late = jail("run", name, "--timeout", "1", "--", "sleep", "60", status=124)
    assert "ended after 1 s" in late.stderr
    assert state(name) == "failed"
    jail("run", name, "--", "sh", "-c", "kill -9 $$", status=137)


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_line_of_shell_is_run_with_bash(name: str) -> None:
    told = jail("run", name, "-c", "echo $0 $1 | tr a-z A-Z; exit 3", "--", "one", status=3)
    assert told.stdout == "BASH ONE\n"
    assert "--prompt needs" in jail("run", name, "-c", "true", "--prompt", "x", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_cannot_run_changes_nothing(name: str) -> None:
    missing = jail("run", name, "--", "no-such-program", status=127)
    assert "no program 'no-such-program'" in missing.stderr
    jail("run", name, "--backend", "no-such", "--", "true", status=125)
    jail("run", name, "--read", "missing", "--", "true", status=125)
    assert state(name) == "prepared"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_streams(name: str) -> None:
    done = jail("run", name, "--", "sh", "-c", "cat; echo out; echo err >&2", input="not for it\n")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    capped = jail("run", name, "--output-cap", "10", "--", "sh", "-c", "seq 100")
    assert capped.stdout == "1\n2\n3\n4\n5\n"
    assert "were dropped" in capped.stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def unread(*words: str) -> subprocess.Popen[bytes]:
    """A running `staddle jail`, whose output nobody reads."""
    env = {**environment(), "MY_KEY": "a-secret-of-the-tests"}
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        [*COMMAND, "jail", *words], env=env, stdin=nothing, stdout=nothing, stderr=nothing
    )


def test_a_run_is_watched_from_another_terminal(name: str) -> None:
    """`ls` shows the process and its last line, `watch` follows to the end. Control: not without --watch."""
    with pytest.raises(AssertionError, match="nothing runs in it"):
        jail("watch", name)
    script = "echo one; printf '\\033[2Jtwo\\n' >&2; read < ready; seq 2000000; echo last"
    os.mkfifo(ready := f"{Workspace.find(name).path}/ready")
    running = unread("run", name, "--watch", "-c", script)
    assert until(lambda: "two" in jail("ls").stdout)
    listed = jail("ls").stdout
    assert f"{name} is process {running.pid}" in listed
    assert "\033" not in listed
    found = json.loads(jail("status", name, "--json").stdout)
    assert (found["state"], found["pid"]) == ("running", running.pid)
    watching = start("jail", "watch", name)
    assert watching.stdout is not None
    assert "one\n" in [watching.stdout.readline() for _ in range(2)]
    Path(ready).write_text("go\n")
    assert watching.communicate(timeout=60)[0].endswith("\nlast\n")
    assert (running.wait(60), watching.returncode) == (0, 0)
    place = Workspace.find(name).directory
    assert [each for each in os.listdir(place) if each.startswith("output")] == ["output"]
    assert os.path.getsize(f"{place}/output") <= 4 << 20
    assert jail("watch", name).stdout.endswith("\nlast\n")
    silent = start("jail", "run", name, "--", "sleep", "20")
    assert until(lambda: state(name) == "running")
    with pytest.raises(AssertionError, match="without --watch"):
        jail("watch", name)
    silent.terminate()
    silent.wait(20)


def test_a_secret_is_not_in_the_output_to_watch(name: str) -> None:
    running = unread(
        "run", name, "--watch", "--key-env", "MY_KEY", "--agent", "claude", "-c", "env; sleep 20"
    )
    place = Path(Workspace.find(name).directory, "output")
    assert until(lambda: place.exists() and b"PWD=" in place.read_bytes())
    assert b"a-secret-of-the-tests" not in place.read_bytes()
    running.terminate()
    running.wait(20)


def test_as_json(name: str) -> None:
    done = jail("run", name, "--json", "--", "sh", "-c", "echo out; mkdir .vscode; exit 3", status=3)
    report = json.loads(done.stdout)
    assert (report["exit_code"], report["reason"], report["stdout"]) == (3, "exited", "out\n")
    assert report["workspace"] == name
    assert report["violations"][0]["what"].endswith("/.vscode")
    late = json.loads(jail("run", name, "--json", "--timeout", "1", "--", "sleep", "9", status=124).stdout)
    assert late["reason"] == "timeout"
    assert state(name) == "failed"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_protected_name_that_appears_is_told(name: str) -> None:
    assert ".vscode" in jail("run", name, "--", "mkdir", ".vscode").stderr
    told = json.loads(jail("status", name, "--json").stdout)
    assert told["planted"][0]["path"].endswith("/.vscode")
    assert "violations" in told["journal"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_when_it_is_ended_so_is_the_agent(name: str, how: signal.Signals, status: int) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    tree = Workspace.find(name).path
    script = f"(setsid sh -c 'sleep 600' {mark} &); touch ready; sleep 600"
    running = start("jail", "run", name, "--", "bash", "-c", script)
    try:
        assert until(lambda: os.path.exists(f"{tree}/ready"))
        assert state(name) == "running"
        assert "in use" in jail("run", name, "--", "true", status=125).stderr
        assert "in use" in jail("rm", name, "--force", status=125).stderr
        running.send_signal(how)
        assert running.wait(60) == status
    finally:
        running.kill()
        running.communicate()
    assert gone(mark)
    assert state(name) == "failed"
    jail("run", name, "--", "true")


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_key_comes_from_a_variable_or_a_file(name: str, world: World) -> None:
    key = "sk-0123456789"
    (world.top / "key").write_text(f"{key}\n")
    words = ["--", "sh", "-c", 'test "$GEMINI_API_KEY" = sk-0123456789; echo $?']
    env = {**environment(), "MY_KEY": key}
    for option, value in (("--key-file", "key"), ("--key-env", "MY_KEY")):
        done = jail("run", name, "--agent", "gemini", option, value, *words, env=env)
        assert done.stdout == "0\n"
    assert "not set" in jail("run", name, "--key-env", "NO_KEY", *words, status=125).stderr
    assert "both" in jail("run", name, "--key-env", "A", "--key-file", "b", *words, status=125).stderr
    (world.top / "empty").touch()
    assert "empty" in jail("run", name, "--key-file", "empty", *words, status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_an_agent_is_run_on_a_prompt(name: str, world: World) -> None:
    program = world.top / "home/.local/bin/codex"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    assert "nothing to run" in jail("run", name, "--agent", "codex", status=125).stderr
    done = jail("run", name, "--agent", "codex", "--prompt", "--fix 'it'\nall")
    assert done.stdout == "exec\n--dangerously-bypass-approvals-and-sandbox\n--\n--fix 'it'\nall\n"
    assert "claude, codex" in jail("run", name, "--agent", "hal", "--", "true", status=125).stderr
    assert "--agent" in jail("run", name, "--prompt", "x", status=125).stderr
    again = jail("run", name, "--agent", "codex").stdout
    assert again == done.stdout  # the prompt is kept


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_options_stand_on_both_sides_of_the_workspace_and_never_behind_the_dashes(name: str) -> None:
    done = jail("run", "--env", "A=1", name, "--env", "B=2", "--", "sh", "-c", "echo $A$B $0", "--env")
    assert done.stdout == "12 --env\n"
    assert "twice" in jail("run", "--timeout", "5", name, "--timeout", "5", "--", "true", status=125).stderr


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_paths_are_relative_to_where_the_user_stands(name: str, world: World) -> None:
    (world.top / "data.txt").write_text("read me\n")
    done = jail("run", name, "--read", "data.txt", "--", "cat", str(world.top / "data.txt"))
    assert done.stdout == "read me\n"


@pytest.mark.same_for_everyone
def test_an_agent_may_reach_its_own_hosts_where_only_some_are_allowed(name: str) -> None:
    workspace = Workspace.find(name)

    def network(*words: str) -> object:
        parsed = _parsed([name, *words], RUN_OPTIONS, "jail run")
        return _opts(workspace, ["x"], parsed, "x")[0].policy.network  # type: ignore[union-attr]

    assert "api.anthropic.com" in str(network("--agent", "claude", "--network", "allow"))
    both = str(network("--agent", "claude", "--allow", "pypi.org:443"))
    assert "api.anthropic.com" in both
    assert "pypi.org" in both
    assert str(network("--agent", "claude")) == "deny"
    assert str(network("--agent", "claude", "--network", "open")) == "open"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_a_policy_file_takes_the_place_of_the_preset(name: str, world: World) -> None:
    policy = world.top / "policy.toml"
    policy.write_text('preset = "agent"\n[limits]\ntimeout = 1\n')
    jail("run", name, "--policy", "policy.toml", "--", "sleep", "60", status=124)
    policy.write_text('preset = "agent"\n[limits]\ntimeout = 60\n')
    jail("run", name, "--policy", "policy.toml", "--", "sh", "-c", "echo x > file.txt")
    assert "file.txt" in jail("status", name).stdout


@pytest.mark.slow
def test_a_shell_reads_its_commands_from_a_pipe(name: str) -> None:
    done = jail("shell", name, input="echo $((40 + 2)); pwd\nexit 4\n", status=4)
    assert done.stdout == f"42\n{Workspace.find(name).path}\n"
    assert jail("shell", name, "--", "echo", "hello").stdout == "hello\n"


@pytest.mark.slow
def test_a_shell_on_a_terminal_has_job_control_and_the_windows_size(name: str) -> None:
    lines = ["stty size; echo $TERM", "sleep 300", "\x03", "echo $((40 + 2)) > answer", "jobs; exit 5"]
    words = [*COMMAND, "jail", "shell", name, "--", "bash", "--norc"]
    done = typed(lines, *words, TERM="vt100")
    assert done.returncode == 5, done.stdout
    assert b"31 99" in done.stdout
    assert b"vt100" in done.stdout
    assert b"no job control" not in done.stdout
    assert Path(Workspace.find(name).path, "answer").read_text() == "42\n"
    assert state(name) == "stopped"


def test_a_shell_on_a_terminal_has_a_name_for_it_and_no_other_run_has(name: str) -> None:
    look = "tty; echo to-it > $(tty)"
    done = typed([], *COMMAND, "jail", "shell", name, "--", "sh", "-c", look)
    assert b"/dev/console" in done.stdout, done
    assert b"to-it" in done.stdout
    # The user's own terminal is no file of a command that does not have it.
    looks = json.dumps([*COMMAND, "jail", "run", name, "--", "sh", "-c", "test -e /dev/console || echo none"])
    script = f"import subprocess; subprocess.run({looks})"
    done = typed([], sys.executable, "-c", script)
    assert b"none" in done.stdout, done


@pytest.mark.slow
def test_when_the_window_is_closed_everything_inside_ends(name: str) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    tree = Workspace.find(name).path
    script = f"trap '' HUP; (setsid sh -c 'sleep 600' {mark} &); touch ready; sleep 600"
    words = [*COMMAND, "jail", "shell", name, "--", "bash", "-c", script]
    argv = [sys.executable, str(TYPIST), "[]", *words]
    window = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL)
    assert until(lambda: os.path.exists(f"{tree}/ready"))
    window.kill()
    window.wait()
    assert gone(mark)
    until(lambda: state(name) != "running")
    assert state(name) in ("failed", "stopped")
    jail("run", name, "--", "true")


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_what_an_agent_wrote_does_not_move_the_cursor(name: str) -> None:
    script = r"printf 'a\033[2Jb\n' > odd; git add odd; git commit -qm 'x'$(printf '\033[1m')"
    jail("run", name, "--", "sh", "-c", script)
    assert "\x1b[2J" in jail("diff", name).stdout  # for another program: as it is
    leader, follower = os.openpty()
    diff = [*COMMAND, "jail", "diff", name]
    subprocess.run(diff, stdout=follower, env=environment(), check=True, timeout=60)
    os.close(follower)
    seen = os.read(leader, 65536)
    os.close(leader)
    assert b"\x1b" not in seen
    assert rb"a\x1b[2Jb" in seen
    assert "\x1b" not in jail("status", name).stdout


@pytest.mark.slow
def test_reaping(name: str) -> None:
    jail("run", name, "--timeout", "1", "--", "sleep", "60", status=124)
    assert jail("reap").stdout == ""
    assert name in jail("reap", "--failed", "0", "--dry-run").stdout
    assert jail("reap", "--failed", "never").stdout == ""
    assert state(name) == "failed"
    assert name in jail("reap", "--failed", "0").stdout
    assert name not in jail("ls").stdout
    assert "is not a time" in jail("reap", "--failed", "soon", status=125).stderr


@pytest.mark.same_for_everyone
def test_agents_are_listed() -> None:
    listed = jail("agents").stdout
    assert "CODEX_API_KEY" in listed
    assert {agent["name"] for agent in json.loads(jail("agents", "--json").stdout)} >= {
        "claude",
        "codex",
        "gemini",
    }


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_help() -> None:
    whole = jail("--help").stdout
    assert jail(status=125).stdout == whole
    for sub in ("run", "shell", *command._COMMANDS):
        assert f"\n  {sub} " in whole
        told = jail(sub, "--help").stdout
        assert f"usage: staddle jail {sub}" in told
        options = {"run": RUN_OPTIONS, "shell": SHELL_OPTIONS}.get(sub) or command._COMMANDS[sub][2]
        for option in options:
            assert f"--{option.name}" in told
    assert "staddle jail" in staddle("jail", "nothing").stderr


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(
    "words",
    [
        ("create",),
        ("create", "a", "b"),
        ("ls", "x"),
        ("status",),
        ("rm",),
        ("run",),
        ("commit", "x"),
        ("reap", "x"),
    ],
)
def test_what_is_not_understood_is_a_sentence(world: World, words: tuple[str, ...]) -> None:
    told = jail(*words, status=125).stderr
    assert told.startswith("staddle: ")
    assert "bug" not in told
