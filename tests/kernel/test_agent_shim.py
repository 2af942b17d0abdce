"""The shim that stands for an agent's bash: the command runs in the sandbox, or not at all."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from staddle import Policy, Sandbox
from staddle.agents import relay
from staddle.agents.broker import ShellBroker
from staddle.agents.install import brokers_of, home_of, install, plan, remove
from staddle.agents.relay import RelayedCommand
from staddle.agents.table import CODING_AGENTS
from tests.support.pty_screen import PtyScreen
from tests.support.waiting import PATIENCE, unique_seconds, until, with_argument

CLAUDE = CODING_AGENTS["claude"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def broker(workspace: Path) -> Iterator[ShellBroker]:
    with ShellBroker(Sandbox(None, Policy.agent().with_write(workspace))) as made:
        yield made
    assert not os.path.exists(made.home)


def bash(broker: ShellBroker, *words: str, name: str = "bash", **given: object) -> tuple[int, str, str]:
    """(status, output, errors) of the shim with these arguments."""
    done = subprocess.run(
        [f"{broker.home}/{name}", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **{k: v for k, v in {"stdin": subprocess.DEVNULL, **given}.items() if v is not None},  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout, done.stderr


def test_it_is_bash_with_its_arguments_streams_and_status(broker: ShellBroker, workspace: Path) -> None:
    for _ in range(3):  # without a spare, and with one
        ran = bash(broker, "-c", 'echo "$0|$1|$PWD"; echo e >&2; exit 3', "a b", "c\nd", cwd=workspace)
        assert ran == (3, f"a b|c\nd|{workspace}\n", "e\n")
    given: dict[str, object] = {"cwd": workspace, "stdin": None, "input": "echo from $(cat)\nstdin\n"}
    assert bash(broker, **given)[1] == "from stdin\n"
    assert bash(broker, "-c", "cat; kill -9 $$", cwd=workspace, stdin=None, input="x" * 200_000)[::2] == (
        137,
        "",
    )
    assert bash(broker, "-c", "head -c 3000000 /dev/zero | tr '\\0' x", cwd=workspace)[1] == "x" * 3_000_000
    assert bash(broker, "echo prefix; (exit 4)", name="prefix", cwd=workspace) == (4, "prefix\n", "")
    long = "x" * 100_000
    assert bash(broker, "-c", f"echo {long}", cwd=workspace)[1] == f"{long}\n"


#: Arguments, and the standard input: what bash does with them, the shim does.
LIKE_BASH: list[tuple[list[str], str]] = [
    (["-c", 'echo "$0|$#|$*"', "name", "", "a  b", "*"], ""),
    (["-c", "exit 300"], ""),
    (["-lc", "shopt -q login_shell && echo login; echo $0"], ""),
    (["-l", "-c", "echo $-"], ""),
    (["-ec", "false; echo not here"], ""),
    (["-o", "pipefail", "-c", "false | true"], ""),
    (["+o", "posix", "-euo", "pipefail", "-c", "echo $nope"], ""),
    (["-O", "extglob", "-c", "echo @(x|y); [[ xy == @(x|xy) ]]"], ""),
    (["--norc", "--noprofile", "-c", "echo plain"], ""),
    (["--posix", "-c", "echo $SHELLOPTS"], ""),
    (["--version"], ""),
    (["-s", "one", "two words"], 'echo "$# $2"; exit 7\n'),
    (["-s"], "cat <<end\nin $((6 * 7))\nend\nread -r a\nthe next line\necho got $a\n"),
    (["-"], "echo from standard input"),
    (["script", "a", "b c"], "its input"),
    (["./script"], ""),
    (["-x", "script"], ""),
    (["-n", "script"], ""),
    (["no-such-script"], ""),
    (["-c", "no-such-program"], ""),
    (["-c", "./not-executable"], ""),
    (["-c"], ""),
    (["--no-such-option"], ""),
    (["-c", "kill -TERM $$"], ""),
    (["-c", "kill -INT $$; echo after"], ""),
    (["-c", "trap 'echo end' EXIT; (exit 9)"], ""),
    (["-c", "echo é; printf 'a\\0b\\xff'; cat"], "\0\1\n"),
    (["-ic", "echo $-"], ""),
]


@pytest.mark.same_for_everyone
@pytest.mark.parametrize(("words", "given"), LIKE_BASH, ids=lambda value: " ".join(value)[:40])
def test_it_does_what_bash_does(words: list[str], given: str, broker: ShellBroker, workspace: Path) -> None:
    script = workspace / "script"
    script.write_text('echo "script $0 $# $2"; cat; exit 5\n')
    (workspace / "not-executable").write_text("")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "TERM": "dumb"}

    def run(program: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            [program, *words],
            executable=program,
            input=given.encode(),
            capture_output=True,
            cwd=workspace,
            env=environment,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    status, *said = run(f"{broker.home}/bash")
    plain, *expected = run("/bin/bash")
    # The shim exits as a shell says that its child was killed; and bash calls itself by its name.
    assert status == (128 - plain if plain < 0 else plain), said
    named = re.compile(rb"(/usr)?/bin/bash")
    assert named.sub(b"bash", said[0]) == named.sub(b"bash", expected[0])
    if "-ic" not in words:  # an interactive one complains about the terminal that it has not
        assert named.sub(b"bash", said[1]) == named.sub(b"bash", expected[1])


def test_it_runs_in_the_sandbox(broker: ShellBroker, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    text = f"cat {tmp_path}/secret; ls {broker.home}; echo $SECRET-$STADDLE_SANDBOX; touch made"
    status, out, err = bash(broker, "-c", text, cwd=workspace, env={**os.environ, "SECRET": "1"})
    assert (status, out) == (0, "-1\n")
    assert err.count("No such file or directory") == 2
    assert (workspace / "made").exists()
    assert bash(broker, "-c", "touch no", cwd=tmp_path)[0] != 0  # a directory that is not seen inside
    directory = os.open(broker.home, os.O_RDONLY)
    try:
        refused = bash(broker, "-c", "touch no", cwd=workspace, stdin=directory)
    finally:
        os.close(directory)
    assert refused[0] == 125
    assert "a standard stream is a directory" in refused[2]
    assert not (workspace / "no").exists()
    assert not (tmp_path / "no").exists()


def test_the_callers_variables_run_nothing_outside(broker: ShellBroker, workspace: Path) -> None:
    (workspace / "evil").write_text("echo ran > /proc/self/cwd/owned-by-$USER; echo $PPID > owned\n")
    evil = {"BASH_ENV": "evil", "ENV": "evil", "SHELLOPTS": "xtrace", "BASH_FUNC_echo%%": "() { . evil; }"}
    assert bash(broker, "-c", "echo fine", cwd=workspace, env={**os.environ, **evil}) == (0, "fine\n", "")
    assert not (workspace / "owned").exists()


def test_sockets_and_one_stream_for_both(broker: ShellBroker, workspace: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shim = subprocess.Popen(
            [f"{broker.home}/bash", "-c", "read a; echo $a; echo b >&2; echo c"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=workspace,
        )
        theirs.close()
        ours.sendall(b"in\n")
        assert shim.wait(PATIENCE) == 0
        ours.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: ours.recv(100), b"")) == b"in\nb\nc\n"


def test_background_children_do_not_keep_the_shim(broker: ShellBroker, workspace: Path) -> None:
    seconds = unique_seconds()
    with open(workspace / "log", "wb") as log:
        words = [f"{broker.home}/bash", "-c", f"sleep {seconds} & echo started"]
        assert subprocess.run(words, cwd=workspace, stdout=log, timeout=PATIENCE, check=False).returncode == 0
    assert (workspace / "log").read_text() == "started\n"
    assert until(lambda: with_argument(seconds))
    broker.sandbox.run("pkill sleep")
    with open(workspace / "log", "wb") as log:
        words = [f"{broker.home}/bash", "-c", "mkfifo wait; (read a < wait; echo late) &"]
        assert subprocess.run(words, cwd=workspace, stdout=log, timeout=PATIENCE, check=False).returncode == 0
    bash(broker, "-c", "echo > wait", cwd=workspace)
    assert until(lambda: (workspace / "log").read_text() == "late\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_shim_that_is_killed_takes_its_command_with_it(
    number: int, broker: ShellBroker, workspace: Path
) -> None:
    seconds = unique_seconds()
    shim = subprocess.Popen([f"{broker.home}/bash", "-c", f"sleep {seconds}; true"], cwd=workspace)
    assert until(lambda: any(pid != shim.pid for pid in with_argument(seconds)))
    shim.send_signal(number)
    assert shim.wait(PATIENCE) == -number
    assert until(lambda: not with_argument(seconds))


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_terminal_is_passed_on_with_its_size_and_its_keys(
    broker: ShellBroker, workspace: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """The size is there when the command starts, however late we are to compare it."""
    if is_slow:
        monkeypatch.setattr(RelayedCommand, "_resize", lambda _: None)
    text = "test -t 0 && stty size; read -r a; echo got $a; sleep 1000"
    shim = PtyScreen([f"{broker.home}/bash", "-c", text], os.environ, str(workspace), rows=33, cols=111)
    try:
        shim.until("33 111")
        shim.type("keys\r")
        shim.until("got keys")
        shim.type("\x03")
        assert shim.ended() == 130
    finally:
        shim.close()


def test_a_terminal_as_an_editor_opens_it(broker: ShellBroker, workspace: Path) -> None:
    """An interactive shell with a start file that is not seen inside; what is typed early is not lost."""
    master, slave = pty.openpty()
    words = [f"{broker.home}/bash", "--init-file", "/opt/editor/shellIntegration-bash.sh"]
    os.write(master, b"echo confined=$STADDLE_SANDBOX; exit 6\r")
    shim = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, cwd=workspace)
    os.close(slave)
    said = b""
    try:
        while piece := os.read(master, 1000):
            said += piece
    except OSError:
        pass  # the terminal is nobody's any more
    os.close(master)
    assert shim.wait(PATIENCE) == 6, said
    assert b"confined=1" in said


def test_the_file_of_claudes_directory_comes_out_and_no_other(broker: ShellBroker, workspace: Path) -> None:
    name = f"/tmp/claude-{os.urandom(4).hex()}-cwd"
    other = workspace / "link"
    os.symlink(other, other.with_name("target"))
    try:
        command = f"mkdir -p sub && cd sub && eval 'echo hi' < /dev/null && pwd -P >| {name}"
        assert bash(broker, command, name="prefix", cwd=workspace) == (0, "hi\n", "")
        assert Path(name).read_text() == f"{workspace}/sub\n"
        Path(name).unlink()
        os.symlink(other, name)  # what is there already is never followed
        assert bash(broker, command, name="prefix", cwd=workspace)[0] == 0
        assert not other.exists()
    finally:
        Path(name).unlink(missing_ok=True)


def test_a_workspace_in_a_layer_is_at_its_own_path(workspace: Path) -> None:
    with ShellBroker(Sandbox(workspace, Policy.agent(), workspace_at=str(workspace))) as made:
        assert (
            bash(made, "-c", "pwd; echo x > in-layer; cat in-layer", cwd=workspace)[1] == f"{workspace}\nx\n"
        )
        assert [change.kind for change in made.sandbox.diff()] == ["added"]
    assert not (workspace / "in-layer").exists()


def test_a_shim_without_its_broker_runs_nothing(workspace: Path) -> None:
    with ShellBroker(Sandbox(None, Policy.agent().with_write(workspace))) as made:
        text = Path(made.home, "bash").read_text()
    (workspace / "bash").write_text(text)
    (workspace / "bash").chmod(0o755)
    words = [str(workspace / "bash"), "-c", "touch ran"]
    done = subprocess.run(words, cwd=workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "the command was not run" in done.stderr
    assert not (workspace / "ran").exists()


@pytest.mark.slow
def test_an_installed_shim_opens_its_sandbox_and_the_broker_ends_with_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name, place in (("HOME", "home"), ("XDG_RUNTIME_DIR", "run")):
        (tmp_path / place).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / place))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    install(plan(CLAUDE, "shell"))
    # The agent: it runs two commands, and stays until its input ends.
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys\nfor _ in range(2):\n  subprocess.run([sys.argv[1], sys.argv[2]])\n"
            "print(flush=True)\nsys.stdin.read()",
            f"{home_of('claude')}/prefix",
            "echo $STADDLE_SANDBOX $PWD; touch made",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=project,
    )
    assert agent.stdout is not None
    assert agent.stdin is not None
    with agent:
        assert [agent.stdout.readline() for _ in range(3)] == [f"1 {project}\n"] * 2 + ["\n"]
        [home] = [path for path in Path(brokers_of("claude")).iterdir() if path.is_dir()]
        pid = int((home / "broker").read_text().split()[0])
        assert Path(f"/proc/{pid}").exists()
        agent.stdin.close()
    assert until(lambda: not home.exists())
    assert until(lambda: not Path(f"/proc/{pid}").exists())
    assert (project / "made").exists()
    assert remove(CLAUDE) == [f"{tmp_path}/home/.claude/settings.json is as it was"]
    assert not (tmp_path / "home/.claude/settings.json").exists()


def test_an_output_file_keeps_what_is_written_before_and_after(
    broker: ShellBroker, workspace: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    script = f"echo before; {broker.home}/bash -c 'echo inside; echo error >&2'; echo after"
    with log.open("wb") as file:  # not opened for appending, as `agent > log` does it
        subprocess.run(["sh", "-c", script], stdout=file, stderr=file, cwd=workspace, check=True)
    assert log.read_text().splitlines() == ["before", "inside", "error", "after"]


def test_pipes_of_another_user_are_used(
    broker: ShellBroker, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in `sudo -u agent … | tee log`: whoever did not make a pipe cannot open it anew.
    def refused(path: str, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(relay, "os", SimpleNamespace(**{**vars(os), "open": refused}))
    command = "cat; head -c 300000 /dev/zero | tr '\\0' x; echo error >&2; exit 6"
    given = {"stdin": None, "input": "in"}
    status, output, errors = bash(broker, "-c", command, cwd=workspace, **given)
    assert (status, output, errors) == (6, "in" + "x" * 300_000, "error\n")
