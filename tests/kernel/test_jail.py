"""A scripted agent in a real jail: it works, it tries to leave something behind, it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from staddle.errors import CommandFailed, CommandTimedOut, WorkspaceBusy
from staddle.jail.jail import RunOpts, new_jail
from staddle.jail.workspace import Workspace
from tests.kernel.git_plants import World

BACKENDS = ("bwrap", "landlock")
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("private key\n")
    (home / ".claude").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    return World(tmp_path)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def agent(world: World, script: str, **options: object) -> RunOpts:
    workspace = Workspace.create(str(world.repository))
    return RunOpts(workspace, ["bash", "-c", script], **{"timeout": 60.0, **options})  # type: ignore[arg-type]


def healthy(world: World) -> bool:
    return world.git("fsck", "--full", "--strict", where=world.repository) == b""


def processes_with(mark: str) -> list[int]:
    """Those whose command line or environment holds `mark`, as far as we may look."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            for name in ("cmdline", "environ"):
                try:
                    if mark.encode() in Path(f"/proc/{entry}/{name}").read_bytes():
                        found.append(int(entry))
                except OSError:
                    continue
    return found


def gone(mark: str) -> bool:
    deadline = time.monotonic() + 10
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes_with(mark)


def test_an_agent_edits_and_commits(world: World, backend: str) -> None:
    opts = agent(
        world,
        "set -e; echo more >> file.txt; mkdir new; echo x > new/file; git add .; git commit -qm 'the work';"
        "git checkout -q -b side; git checkout -q -; echo left > left",
    )
    assert new_jail(backend).run(opts) == 0
    workspace = opts.workspace
    assert workspace.status == "stopped"
    assert workspace.changed_paths() == ("left",)
    assert not workspace.publishable()
    assert workspace.commit_all("what was left")
    assert workspace.publishable()
    assert workspace.inspect() == ()
    log = world.git("log", "--format=%an %s", f"main..{workspace.branch}", where=world.repository)
    assert log == b"staddle agent what was left\nstaddle agent the work\n"
    assert healthy(world)
    workspace.remove()
    assert os.listdir(world.top / "data") == []


def test_it_can_leave_nothing_in_the_repository_that_git_would_run(world: World, backend: str) -> None:
    script = f"""
        common=$(git rev-parse --git-common-dir)
        git config core.fsmonitor {world.script}
        git config --worktree core.fsmonitor {world.script}
        for name in config config.worktree commondir info/attributes hooks/pre-commit hooks/post-checkout; do
            mkdir -p "$common/$(dirname $name)"
            echo planted >> "$common/$name"
            mv "$common/$name" "$common/$name.old"
        done
        mv "$common/hooks" "$common/hooks.old"; rm -rf "$common/hooks"; ln -s /tmp "$common/hooks"
        echo done > done; git add done; git commit -qm done
    """
    opts = agent(world, script)
    before = {
        name: (world.common / name).exists() for name in ("config.worktree", "commondir", "info/attributes")
    }
    config = (world.common / "config").read_bytes()
    hooks = sorted(os.listdir(world.common / "hooks"))
    assert new_jail(backend).run(opts) == 0
    assert (world.common / "config").read_bytes() == config
    assert sorted(os.listdir(world.common / "hooks")) == hooks
    assert {name: (world.common / name).exists() for name in before} == before
    assert opts.workspace.inspect() == ()
    assert world.git("log", "-1", "--format=%s", opts.workspace.branch, where=world.repository) == b"done\n"
    world.fall_for_it("status", where=world.repository)
    assert not world.fired.exists()
    assert healthy(world)


def test_what_it_does_leave_is_reported_and_does_not_run(world: World, backend: str) -> None:
    script = f"""
        git init -q nested && git -C nested config core.fsmonitor {world.script}
        printf '*.txt filter=x\\n' > .gitattributes; mkdir .vscode; echo '{{}}' > .vscode/tasks.json
        rm -f .git; echo "gitdir: $PWD/nested/.git" > .git
    """
    opts = agent(world, script)
    new_jail(backend).run(opts)
    workspace = opts.workspace
    assert {".gitattributes", ".vscode/tasks.json"} <= set(workspace.changed_paths())
    workspace.commit_all("x")
    assert not world.fired.exists()
    found = {planted.path.removeprefix(f"{workspace.path}/") for planted in workspace.inspect()}
    assert ".vscode" in found
    assert "nested/.git/config" in found
    if ".git" in found:  # landlock cannot hold one file of a writable directory, and says so
        assert backend == "landlock"
        assert not workspace.publishable()


def test_the_home_other_workspaces_and_its_own_record_are_out_of_reach(world: World, backend: str) -> None:
    other = Workspace.create(str(world.repository))
    opts = agent(
        world,
        f"cat ~/.ssh/id; cat {other.path}/file.txt; cat ../workspace.json; ls ../git; touch ../planted;"
        "echo '{}' > ../workspace.json; test -w ~/.claude && echo config; true",
    )
    said = new_jail(backend).run_capture(opts)
    # Landlock makes no view: the home is a directory elsewhere, without the agent's configuration.
    assert said == (b"config\n" if backend == "bwrap" else b"")
    assert sorted(os.listdir(opts.workspace.directory)) == ["claim", "git", "tree", "workspace.json"]
    assert opts.workspace.status == "stopped"


def test_stdin_is_not_connected_stderr_passes_and_the_status_is_told(
    world: World, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    jail = new_jail(backend)
    opts = agent(world, "cat; echo out; echo err >&2; exit 7")
    assert jail.run(opts) == 7
    assert capfd.readouterr() == ("out\n", "err\n")
    with pytest.raises(CommandFailed) as failure:
        jail.run_capture(opts)
    assert (failure.value.status, failure.value.output) == (7, b"out\n")
    assert capfd.readouterr() == ("", "err\n")
    assert jail.run(opts.replace(command=("bash", "-c", "kill -9 $$"))) == 137


def test_any_byte_of_a_variable_arrives(world: World, backend: str) -> None:
    value = os.fsdecode(bytes(range(1, 256))) + "$HOME `id` $(id) \"'\\ %s"
    opts = agent(world, 'printf %s "$ODD"', env=[f"ODD={value}"])
    assert new_jail(backend).run_capture(opts) == os.fsencode(value)


def test_the_key_is_on_no_command_line_and_in_no_environment_but_the_commands(
    world: World, backend: str
) -> None:
    key = f"sk-{os.urandom(12).hex()}"
    opts = agent(
        world, 'printf %s "$ANTHROPIC_API_KEY" | sha256sum > key; touch ready; exec sleep 30', api_key=key
    )

    def run() -> None:
        with pytest.raises(CommandTimedOut):
            new_jail(backend).run(opts.replace(timeout=5.0))

    runner = threading.Thread(target=run)
    runner.start()
    try:
        ready = Path(opts.workspace.path, "ready")
        while not ready.exists() and runner.is_alive():
            time.sleep(0.02)
        assert ready.exists()
        holders, told = [], []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                if key.encode() in command:
                    told.append(command)
                if key.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    holders.append(command)
            except OSError:
                continue
        assert told == []
        # As root everything can be looked into; the command itself must be found, and only it.
        assert holders in ([b"sleep\x0030\0"], []) if os.geteuid() else holders == [b"sleep\x0030\0"]
    finally:
        runner.join(30)
    for place, _, names in os.walk(world.top):
        for name in names:
            if os.path.isfile(f"{place}/{name}"):
                assert key.encode() not in Path(place, name).read_bytes()


def test_a_timeout_ends_the_whole_tree(world: World, backend: str) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    endless = "trap '' TERM INT HUP; while :; do sleep 1; done"
    script = f'(setsid sh -c "{endless}" {mark} &); {endless}'
    opts = agent(world, script, timeout=1.5)
    start = time.monotonic()
    with pytest.raises(CommandTimedOut):
        new_jail(backend).run(opts)
    assert time.monotonic() - start < 15
    assert gone(mark)
    assert opts.workspace.status == "failed"
    assert new_jail(backend).run(opts.replace(command=("true",))) == 0
    assert opts.workspace.status == "stopped"
    assert healthy(world)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_when_the_caller_is_ended_so_is_the_agent(world: World, backend: str, how: signal.Signals) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    workspace = Workspace.create(str(world.repository))
    code = (
        "import sys; from staddle.jail.jail import *; from staddle.jail.workspace import Workspace;"
        "new_jail(sys.argv[1]).run(RunOpts(Workspace.load(sys.argv[2]),"
        "['sh', '-c', 'touch ready; while :; do sleep 1; done', sys.argv[3]]))"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", code, backend, workspace.path, mark],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while not Path(workspace.path, "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert workspace.status == "running"
        with pytest.raises(WorkspaceBusy):
            new_jail(backend).run(RunOpts(workspace, ["true"]))
        caller.send_signal(how)
        assert caller.wait(20) != 0
    finally:
        caller.kill()
        caller.wait()
    assert gone(mark)
    assert workspace.status == "failed"
    assert new_jail(backend).run(RunOpts(workspace, ["true"], timeout=30.0)) == 0


def test_twenty_workspaces_of_one_repository_at_once(world: World) -> None:
    answers: dict[int, object] = {}

    def work(number: int) -> None:
        try:
            opts = agent(
                world,
                f"set -e; for i in {number}-1 {number}-2 {number}-3; do"
                "    echo $i >> mine; git add mine; git commit -qm $i; done;"
                "git branch --show-current; echo rest > rest",
            )
            said = new_jail(BACKENDS[number % 2]).run_capture(opts).decode().strip()
            assert said == opts.workspace.branch
            assert opts.workspace.commit_all("rest")
            answers[number] = opts.workspace
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    for number in range(20):
        workspace = answers[number]
        assert isinstance(workspace, Workspace), workspace
        log = world.git("log", "--format=%s", f"main..{workspace.branch}", where=world.repository)
        assert log.decode().split() == ["rest", f"{number}-3", f"{number}-2", f"{number}-1"]
        assert workspace.publishable()
    assert healthy(world)
    for item in Workspace.list():
        item.remove()
    assert world.git("worktree", "list", where=world.repository).count(b"\n") == 1
