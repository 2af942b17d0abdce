"""A watched run is recorded as it is, changes nothing on the host, and its policy lets it run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Network, Policy, Sandbox, errors
from staddle.learn.proposal import Learned
from tests.support.sandboxes import descriptors
from tests.support.waiting import until

pytestmark = pytest.mark.both_users


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that no sandbox sees by default, with some files."""
    place = Path(os.path.realpath(tmp_path)) / "data"
    (place / "deep").mkdir(parents=True)
    for name in ("one", "two", "deep/three"):
        (place / name).write_text(f"{name}\n")
    return place


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, a configuration and a start file, in which no other test makes temporary files."""
    place = Path(os.path.realpath(tmp_path)) / "home"
    (place / ".ssh").mkdir(parents=True)
    (place / ".ssh/id_rsa").write_text("KEY\n")
    (place / ".gitconfig").write_text("[user]\nname = Ada\n")
    (place / ".bashrc").write_text("true\n")
    monkeypatch.setenv("HOME", str(place))
    return place


def used(learned: Learned, under: Path) -> set[tuple[str, str]]:
    """What was used below a directory: its use and its path."""
    return {
        (fact.use, os.path.relpath(fact.path, under))
        for fact in learned.facts
        if fact.path.startswith(str(under))
    }


def learn(command: str, readable: Path | None = None, **options: object) -> Learned:
    policy = Policy.agent() if readable is None else Policy.agent().with_read(readable)
    with Sandbox(learn=True, policy=policy, **options) as sb:  # type: ignore[arg-type]
        sb.run(command)
        return sb.learned()


RUNS = {
    "a file": ("cat {0}/one", {("read", "one")}),
    "a directory": ("ls {0}/deep", {("list", "deep")}),
    "relative to the directory": (
        "cd {0}/deep && cat three ../two",
        {("read", "deep/three"), ("read", "two")},
    ),
    "a builtin of the shell": ("read line < {0}/one", {("read", "one")}),
    "a link to it": ("ln -s {0}/one here; cat here", {("read", "one")}),
    "a process that changed its directory": ("(cd {0}; exec cat one)", {("read", "one")}),
    "a file that does not exist": ("cat {0}/none", set()),
    "a new file": ("echo x > {0}/new", {("write", "new")}),
    "renamed": ("mv {0}/one {0}/other", {("write", "one"), ("write", "other")}),
    "removed": ("rm -f {0}/one", {("write", "one")}),
    "a directory's descriptor": (
        "python3 -c \"import os; os.open('three', 0, dir_fd=os.open('{0}/deep', os.O_RDONLY))\"",
        {("list", "deep"), ("read", "deep/three")},
    ),
    "a thread": (
        "python3 -c \"import threading as t; t.Thread(target=open, args=('{0}/two',)).start()\"",
        {("read", "two")},
    ),
    "a child of vfork": (
        "python3 -c \"import subprocess; subprocess.run(['/bin/cat', '{0}/two'])\"",
        {("read", "two")},
    ),
    "a script and its interpreter": ("cp /bin/sh sh; sh -c '. {0}/two'", {("read", "two")}),
}


@pytest.mark.parametrize("name", RUNS)
def test_each_way_to_use_a_file_is_recorded(name: str, data: Path, tmp_path: Path) -> None:
    command, wanted = RUNS[name]
    (tmp_path / "ws").mkdir()
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    learned = learn(command.format(data), data, workspace=tmp_path / "ws")
    # The workspace's own process may look at the directory around it.
    assert {each for each in used(learned, data) if each[1] != "."} == wanted
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert list((tmp_path / "ws").iterdir()) == []


def test_a_program_a_static_one_and_their_loaders_are_recorded(data: Path, tmp_path: Path) -> None:
    (data / "hello.c").write_text("int main() { return 0; }\n")
    for name, flag in (("moving", "-fPIE"), ("still", "-static")):
        subprocess.run(["gcc", flag, data / "hello.c", "-o", data / name], check=True)
    (data / "script").write_text(f"#!{data}/still\n")
    (data / "script").chmod(0o755)
    learned = learn(f"{data}/moving; {data}/still; {data}/script", data)
    assert used(learned, data) == {("run", "moving"), ("run", "still"), ("run", "script")}
    assert any(fact.use == "run" and "ld-linux" in fact.path for fact in learned.facts)


def test_the_policy_lets_the_run_through_and_nothing_else(home: Path) -> None:
    (home / "set").mkdir()
    for number in range(5):
        (home / f"set/{number}").write_text("x")
    (home / "unused").write_text("x")
    command = f"cat {home}/.gitconfig {home}/set/*"
    with Sandbox(learn=True) as sb:
        sb.run(command, check=True)
        learned = sb.learned()
    assert learned.policy.read == (f"{home}/.gitconfig", f"{home}/set")
    assert "read by cat" in learned.text()
    assert not learned.policy.write
    assert learned.policy.network == Network.deny()
    with Sandbox(policy=learned.policy) as sb:
        sb.run(command, check=True)
        assert sb.run(f"cat {home}/unused").exit_code


def test_a_key_stays_unreadable_while_learning_and_the_policy_says_so(home: Path) -> None:
    with Sandbox(learn=True) as sb:
        result = sb.run(f"cat {home}/.ssh/id_rsa {home}/.gitconfig")
        learned = sb.learned()
    assert "KEY" not in result.stdout
    assert "Ada" in result.stdout
    assert len(learned.warnings) == 1
    assert "NOT GRANTED" in learned.warnings[0]
    assert ".ssh/id_rsa" in learned.warnings[0]
    assert learned.policy.read == (f"{home}/.gitconfig",)
    assert all(not path.endswith("id_rsa") for path in learned.policy.read)


def test_a_start_file_of_the_home_is_not_made_writable(home: Path) -> None:
    learned = learn(f"echo evil >> {home}/.bashrc; false")
    assert learned.policy.write == ()
    assert any(".bashrc" in line for line in learned.warnings)
    assert (home / ".bashrc").read_text() == "true\n"


def test_a_file_of_etc_that_only_root_reads_is_not_shown() -> None:
    with Sandbox(learn=True) as sb:
        assert sb.run("cat /etc/shadow /etc/gshadow").stdout == ""
        assert not [path for path in sb.learned().policy.read if "shadow" in path]


def test_a_socket_that_leads_out_is_only_a_comment(tmp_path: Path) -> None:
    import socket

    places = {name: Path(os.path.realpath(tmp_path)) / name for name in ("docker.sock", "plain.sock")}
    servers = [socket.socket(socket.AF_UNIX) for _ in places]
    for server, place in zip(servers, places.values(), strict=True):
        server.bind(str(place))
        server.listen()
    connect = "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('{}')\""
    learned = learn("; ".join(connect.format(place) for place in places.values()))
    assert learned.policy.sockets == (str(places["plain.sock"]),)
    assert any("docker.sock" in line for line in learned.warnings)
    for server in servers:
        server.close()


def test_hosts_are_refused_and_said_or_let_through_and_proposed() -> None:
    connect = "python3 -c \"import socket; socket.create_connection(('10.255.1.2', 81), {})\""
    learned = learn(connect.format(60))
    assert learned.policy.network == Network.deny()
    assert "10.255.1.2:81" in "".join(learned.warnings)
    with Sandbox(learn=True, on_connect=lambda _: True) as sb:
        sb.run(connect.format(5))
        learned = sb.learned()
    assert learned.policy.network == Network.allow("10.255.1.2:81")
    assert "connected to in command 1" in learned.text()


def test_a_command_that_does_not_wait_for_its_connections_is_learned_from() -> None:
    """They are answered after its end."""

    def answer(_: object) -> bool:
        time.sleep(0.02)
        return False

    leave = """
import socket
for n in range(20):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex((f"10.255.1.{n}", 81))
    one.detach()
"""
    with Sandbox(learn=True, on_connect=answer) as sb:
        sb.exec(["python3", "-c", leave])
        hosts = {fact.host for fact in sb.learned().recording.hosts}
    assert hosts == {f"10.255.1.{n}:81" for n in range(20)}


def test_a_run_under_its_policy_says_what_was_refused(data: Path) -> None:
    with Sandbox(learn="refuse", policy=Policy.agent().with_read(data / "one")) as sb:
        assert sb.run(f"cat {data}/one {data}/two").exit_code == 1
        learned = sb.learned()
    assert learned.policy.read == (str(data / "one"), str(data / "two"))


def test_forks_and_sessions_are_watched_too(data: Path) -> None:
    with Sandbox(learn=True, policy=Policy.agent().with_read(data)) as sb:
        sb.session("other").run(f"cat {data}/one")
        sb.exec(["true"])
        sb.exec(["cat", f"{data}/deep/three"])
        (fork,) = sb.fork()
        with fork:
            fork.run(f"cat {data}/two")
            assert {path for _, path in used(fork.learned(), data)} == {"one", "two", "deep/three"}


def test_a_hostile_name_is_harmless_in_the_policy(home: Path) -> None:
    (home / 'a\n"x",\x1b[2J').write_text("x")
    learned = learn(
        f"cat {home}/a*; printf '#!/bin/cat\\n' > p; cp /bin/cat $'cat\\n[env]'; ./cat* {home}/.gitconfig"
    )
    assert "\x1b" not in learned.text()
    assert learned.policy.read == (f"{home}/.gitconfig",)
    assert learned.policy.env == {}


def test_learning_leaves_nothing_open(data: Path) -> None:
    learn("true")
    before = descriptors()
    for _ in range(3):
        learn(f"cat {data}/one")
    assert until(lambda: descriptors() <= before)  # a thread may close the last ones


def test_another_backend_refuses_with_a_sentence() -> None:
    with pytest.raises(errors.BackendUnavailable, match="cannot be learned"):
        Sandbox(learn=True, backend="landlock")
    with Sandbox() as sb, pytest.raises(errors.InvalidCall, match="does not learn"):
        sb.learned()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "project"
    place.mkdir()
    return place


def staddle(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "staddle", "learn", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_writes_checks_updates_and_compares(project: Path, home: Path) -> None:
    file = home / "learned.toml"
    first = staddle("-o", str(file), "--check", "--", "cat", f"{home}/.gitconfig", cwd=project)
    assert first.returncode == 0, first.stderr
    assert "passes" in first.stderr
    assert "Ada" in first.stdout
    text = file.read_text()
    assert "${HOME}/.gitconfig" in text
    (home / "more").write_text("x")
    second = staddle("--update", str(file), "--", "cat", f"{home}/more", cwd=project)
    assert second.returncode == 0, second.stderr
    policy = Policy.from_file(file)
    assert policy.read == (f"{home}/.gitconfig", f"{home}/more")
    assert file.read_text().count("read by cat") == 2
    old = home / "old.toml"
    old.write_text(text)
    assert staddle("--diff", str(old), str(file), cwd=project).stdout.startswith('+ read "')
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("toolchain_first", [True, False])
def test_an_update_keeps_and_finds_the_toolchain_of_either_command(
    project: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolchain_first: bool
) -> None:
    tool = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tool], check=True)
    (next(tool.glob("lib/*/site-packages")) / "only_there.py").write_text("")
    monkeypatch.setenv("PATH", f"{tool}/bin:{os.environ['PATH']}")
    commands = [("python", "-c", "import only_there"), ("true",)]
    file = home / "learned.toml"
    first, second = commands if toolchain_first else commands[::-1]
    for option, command in (("-o", first), ("--update", second)):
        done = staddle(option, str(file), "--check", "--", *command, cwd=project)
        assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert text.count("# Learned by staddle from: ") == 2
    assert "  # took " in text
    for command in commands:
        with Sandbox(project, policy=Policy.from_file(file)) as sb:
            assert sb.exec(command).ok, text


def test_the_command_prints_the_policy_alone_and_passes_the_status_on(project: Path) -> None:
    done = staddle("-c", "echo hello; exit 7", cwd=project)
    assert done.returncode == 7
    assert "hello" in done.stderr
    assert "hello" not in done.stdout.partition("preset")[2]
    assert "the run failed" in done.stdout


@pytest.mark.parametrize(
    "words", [("-o", "here.toml", "--", "true"), ("--update", "none", "--", "true"), ("--diff", "a")]
)
def test_wrong_uses_are_refused_before_anything_runs(words: tuple[str, ...], project: Path) -> None:
    done = staddle(*words, cwd=project)
    assert done.returncode == 125
    assert done.stderr.startswith("staddle: ")
    assert list(project.iterdir()) == []
