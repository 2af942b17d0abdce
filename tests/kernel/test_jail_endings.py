"""How a jailed agent ends: by itself, too late, cancelled, with its caller. Nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from staddle.errors import CommandCancelled, CommandTimeout, WorkspaceBusy
from staddle.jail import record as records
from staddle.jail.jail import RunOpts, new_jail
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World
from tests.support.jail_runs import BACKENDS, SOURCE, agent, appears, gone, healthy, make_world
from tests.support.waiting import run_together, until

#: Hears nothing, and has a child in another session that hears nothing either.
ENDLESS = "trap '' TERM INT HUP; while :; do sleep 1; done"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(tmp_path, monkeypatch)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_timeout_ends_the_whole_tree(world: World, backend: str) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    opts = agent(world, f'(setsid sh -c "{ENDLESS}" {mark} &); {ENDLESS}', timeout=1.0)
    with pytest.raises(CommandTimeout) as late:
        new_jail(backend).run(opts)
    assert late.value.status == 124
    assert gone(mark)
    assert opts.workspace.status == "failed"
    assert opts.workspace.journal()[-1].facts["reason"] == "timeout"
    assert new_jail(backend).run(opts.replace(command=("true",), timeout=60.0)) == 0
    assert opts.workspace.status == "stopped"
    assert healthy(world)


@pytest.mark.same_for_everyone
def test_a_git_that_was_killed_locks_nobody_out(world: World, backend: str) -> None:
    script = """
        echo new > new
        touch "$(git rev-parse --git-path index.lock)" "$(git rev-parse --git-path HEAD.lock)"
        touch "$(git rev-parse --git-common-dir)/$(git symbolic-ref HEAD).lock"
        git add new && exit 9   # control: locked out
        exec sleep 600
    """
    opts = agent(world, script, timeout=1.0)
    with pytest.raises(CommandTimeout):
        new_jail(backend).run(opts)
    assert opts.workspace.commit_all("by the host")
    again = opts.replace(command=("bash", "-c", "echo x > x; git add x && git commit -qm x"), timeout=60.0)
    assert new_jail(backend).run(again) == 0
    assert [subject for _, subject in opts.workspace.log()] == ["x", "by the host"]
    assert healthy(world)


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_the_users_own_git_may_tidy_up_meanwhile(world: World, backend: str) -> None:
    opts = agent(world, "echo staged > staged; git add staged; git stash -q; git stash pop -q --index")
    assert new_jail(backend).run(opts) == 0
    world.git("gc", "-q", "--prune=now", where=world.repository)
    world.git("pack-refs", "--all", where=world.repository)
    world.git("worktree", "prune", where=world.repository)
    assert new_jail(backend).run(opts.replace(command=("git", "commit", "-qm", "what was staged"))) == 0
    assert b"+staged" in opts.workspace.diff()
    assert opts.workspace.publishable()
    assert healthy(world)


@pytest.mark.parametrize("captured", [False, True])
def test_a_cancelled_run_ends_the_whole_tree(world: World, backend: str, captured: bool) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    cancel = threading.Event()
    opts = agent(world, f'(setsid sh -c "sleep 600" {mark} &); touch ready; exec sleep 600', cancel=cancel)
    jail = new_jail(backend)
    endings: list[object] = []

    def run() -> None:
        try:
            endings.append(jail.run_capture(opts) if captured else jail.run(opts))
        except CommandCancelled as error:
            endings.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    assert appears(Path(opts.workspace.path, "ready"))
    assert opts.workspace.status == "running"
    cancel.set()
    runner.join(30)
    assert isinstance(endings[0], CommandCancelled)
    assert gone(mark)
    assert opts.workspace.status == "failed"
    assert opts.workspace.journal()[-1].facts["reason"] == "cancelled"


#: A program that runs an agent on a backend (1) in a workspace (2), with a mark (3) to be found by.
CALLER = """
import sys
from staddle import RunOpts, Workspace, new_jail
script = '(setsid sh -c "while :; do sleep 1; done" "$0" &); touch ready; while :; do sleep 1; done'
new_jail(sys.argv[1]).run(RunOpts(Workspace.load(sys.argv[2]), ["sh", "-c", script, sys.argv[3]]))
"""


def start_caller(world: World, backend: str, workspace: Workspace, mark: str) -> subprocess.Popen[bytes]:
    (world.top / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", CALLER, backend, workspace.path, mark],
        env={**os.environ, "PYTHONPATH": SOURCE, "TMPDIR": str(world.top / "tmp")},
        stderr=subprocess.DEVNULL,
    )


def nothing_left(world: World, workspace: Workspace) -> bool:
    """No directory of ours for what was private, no lock, and a repository that is whole."""
    is_empty = until(lambda: not os.listdir(world.top / "tmp"))
    return is_empty and healthy(world) and workspace.status == "failed"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_when_the_caller_is_ended_so_is_the_agent(world: World, backend: str, how: signal.Signals) -> None:
    mark = f"mark-{os.urandom(6).hex()}"
    workspace = Workspace.create(str(world.repository))
    caller = start_caller(world, backend, workspace, mark)
    try:
        assert appears(Path(workspace.path, "ready"))
        assert workspace.status == "running"
        with pytest.raises(WorkspaceBusy):
            new_jail(backend).run(RunOpts(workspace, ["true"]))
        caller.send_signal(how)
        assert caller.wait(60) != 0
    finally:
        caller.kill()
        caller.wait()
    assert gone(mark)
    assert nothing_left(world, workspace)
    assert new_jail(backend).run(RunOpts(workspace, ["true"], timeout=30.0)) == 0


@pytest.mark.slow
def test_at_whatever_moment_the_caller_is_killed_nothing_is_left(world: World, backend: str) -> None:
    workspace = Workspace.create(str(world.repository))
    marks = []
    for number in range(8):
        marks.append(f"mark-{os.urandom(6).hex()}")
        caller = start_caller(world, backend, workspace, marks[-1])
        end = time.monotonic() + 60
        while workspace.record.state != "running" and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(number * 0.006)  # from before the launcher to after the command
        caller.kill()
        caller.wait()
        assert gone(marks[-1])
        records.write(workspace.directory, workspace.record.replace(state="failed"))
    assert nothing_left(world, workspace)
    assert new_jail(backend).run(RunOpts(workspace, ["true"], timeout=30.0)) == 0


@pytest.mark.slow
@pytest.mark.same_for_everyone
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
            said = new_jail(BACKENDS[number % len(BACKENDS)]).run_capture(opts).decode().strip()
            assert said == opts.workspace.branch
            assert opts.workspace.commit_all("rest")
            answers[number] = opts.workspace
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    run_together(threads)
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
