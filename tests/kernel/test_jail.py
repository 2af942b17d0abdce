"""A scripted agent in a real jail: it works, and what it tries beyond that stays without effect."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from staddle.errors import CommandCancelled, CommandFailed, CommitRefused
from staddle.jail.jail import RunOpts, new_jail
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World
from tests.support.jail_agent import Doors, Ways, leave, reached, reached_outside
from tests.support.jail_runs import BACKENDS, agent, appears, healthy, make_world
from tests.support.waiting import until


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(tmp_path, monkeypatch)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


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
    with pytest.raises(CommitRefused, match=r"\.vscode is a protected name"):
        workspace.commit_all("x")
    workspace.commit_all("x", allow_protected=True)
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
    # Without a view, as Landlock has none for an ordinary user, the home is a directory elsewhere.
    assert said == (b"" if backend == "landlock" and os.geteuid() else b"config\n")
    assert sorted(os.listdir(opts.workspace.directory)) == [
        *("claim", "git", "journal.jsonl", "tree", "workspace.json"),
    ]
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


def test_git_works_inside(world: World, backend: str) -> None:
    script = """
        set -ex
        echo 1 >> file.txt; git stash -q; git stash pop -q; git commit -qam one
        git commit -q --amend -m 'one again'; git tag mark; git branch other
        git switch -q -c side; echo s > s; git add s; git commit -qm side; git switch -q -
        echo m > m; git add m; git commit -qm m; git merge -q --no-edit side
        git switch -q -c pick main; echo p > p; git add p; git commit -qm p; git switch -q -
        git cherry-pick pick; git revert --no-edit HEAD
        git reset -q --hard HEAD~2; git rebase -q mark; git notes add -m note; git reflog > /dev/null
        git checkout -q --detach; git checkout -q -; git restore -q file.txt; git clean -fdq
        git format-patch -q -1; git apply --check -R 0001-*; git rm -q --cached m; git reset -q
        git log -p > /dev/null; git blame file.txt; git grep one; git archive HEAD > /dev/null
        git worktree list; git submodule status; git fsck --strict; git describe --all
    """
    opts = agent(world, script)
    assert new_jail(backend).run(opts) == 0
    assert opts.workspace.inspect() == ()
    assert healthy(world)


def test_the_repository_and_the_workspaces_may_lie_in_the_home(
    world: World, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STADDLE_WORKSPACES")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    home = Path(os.environ["HOME"])
    world.init(home / "code/project")
    (home / "code/secret").write_text("not for it\n")
    workspace = Workspace.create(str(home / "code/project"))
    assert workspace.path.startswith(f"{home}/.local/share/staddle/workspaces/")
    script = "echo x > x; git add x; git commit -qm x; cat ../../../../../../code/secret ~/code/secret; pwd"
    opts = RunOpts(workspace, ["bash", "-c", script], timeout=60)
    assert new_jail(backend).run_capture(opts).decode() == f"{workspace.path}\n"
    assert [subject for _, subject in workspace.log()] == ["x"]
    workspace.remove()


def test_any_byte_of_a_variable_arrives(world: World, backend: str) -> None:
    value = os.fsdecode(bytes(range(1, 256))) + "$HOME `id` $(id) \"'\\ %s"
    opts = agent(world, 'printf %s "$ODD"', env=[f"ODD={value}"])
    assert new_jail(backend).run_capture(opts) == os.fsencode(value)


def test_it_cannot_leave(world: World, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Workspace.create(str(world.repository))
    home, bus = world.top / "home", world.top / "runtime/bus"
    sockets = [
        *(home / ".gnupg/S.gpg-agent", world.top / "ssh-agent", world.top / "docker.sock"),
        *(bus, world.top / "runtime/systemd/private"),
    ]
    abstract = f"@staddle-test-{os.urandom(6).hex()}"
    hook = world.common / "hooks/pre-commit"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bus.parent))
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={bus}")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(world.top / "ssh-agent"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the user")
    ways: Ways = [
        ("a secret of the home", "read", str(home / ".ssh/id")),
        ("another workspace", "read", f"{other.path}/file.txt"),
        ("the record of another", "read", f"{other.directory}/workspace.json"),
        ("the repository's own tree", "read", str(world.repository / "file.txt")),
        ("a hook", "add", str(hook)),
        ("the repository's config", "change", str(world.common / "config")),
        *((f"the socket {path.name}", "connect", os.path.relpath(path)) for path in sockets),
        ("an abstract socket", "connect", abstract),
        *(
            (f"the variable {name}", "variable", name)
            for name in (
                "DBUS_SESSION_BUS_ADDRESS",
                "XDG_RUNTIME_DIR",
                "SSH_AUTH_SOCK",
                "AWS_SECRET_ACCESS_KEY",
            )
        ),
    ]
    with Doors(*sockets, abstract):
        # Socket names are short, and relative to where the command starts: the tree, or here.
        opts = agent(world, "")
        inside = [
            (name, way, os.path.relpath(os.path.abspath(place), opts.workspace.path))
            if way == "connect" and place[0] != "@"
            else (name, way, place)
            for name, way, place in ways
        ]
        said = new_jail(backend).run_capture(opts.replace(command=tuple(leave(inside))))
        assert reached(said) == []
        assert not hook.exists()
        assert reached_outside(ways) == [name for name, _, _ in ways]


def _holders(key: bytes) -> list[bytes]:
    """The command lines of those who have the key in their environment; it may be on none of them."""
    holders = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
            assert key not in command
            if key in Path(f"/proc/{entry}/environ").read_bytes():
                holders.append(command)
        except OSError:
            continue
    return holders


def test_the_key_is_on_no_command_line_and_in_no_environment_but_the_commands(
    world: World, backend: str
) -> None:
    key = f"sk-{os.urandom(12).hex()}"
    cancel = threading.Event()
    script = 'printf %s "$ANTHROPIC_API_KEY" | sha256sum > key; touch ready; exec sleep 30'
    opts = agent(world, script, api_key=key, cancel=cancel, env=[f"OTHER_TOKEN={key}"])
    endings: list[object] = []

    def run() -> None:
        try:
            endings.append(new_jail(backend).run(opts))
        except CommandCancelled as error:
            endings.append(str(error))

    runner = threading.Thread(target=run)
    runner.start()
    try:
        assert appears(Path(opts.workspace.path, "ready"))
        # As root everything can be looked into; the command itself must be found, and only it.
        only = ([b"sleep\x0030\0"], []) if os.geteuid() else ([b"sleep\x0030\0"],)
        assert until(lambda: _holders(key.encode()) in only)
    finally:
        cancel.set()
        runner.join(30)
    assert len(endings) == 1
    assert key not in str(endings)
    for place, _, names in os.walk(world.top):
        for name in names:
            if os.path.isfile(f"{place}/{name}"):
                assert key.encode() not in Path(place, name).read_bytes()


def test_the_journal_tells_what_happened_without_secrets(world: World, backend: str) -> None:
    key = f"sk-{os.urandom(12).hex()}"
    opts = agent(world, f"mkdir .vscode; : {key}; exit 3", api_key=key, env=[f"MY_TOKEN={key}x", "PLAIN=1"])
    assert new_jail(backend).run(opts) == 3
    created, began, ended = opts.workspace.journal()
    assert (created.what, began.what, ended.what) == ("created", "began", "ended")
    assert began.facts["backend"] == backend
    assert began.facts["variables"] == ["MY_TOKEN", "PLAIN"]
    assert began.facts["command"][2] == "mkdir .vscode; : (hidden); exit 3"
    assert (ended.facts["status"], ended.facts["reason"]) == (3, "exited")
    assert ".vscode" in ended.facts["violations"][0]
    journal = Path(opts.workspace.directory, "journal.jsonl")
    assert key not in journal.read_text()
    assert journal.stat().st_mode & 0o077 == 0


def test_branches_of_others_that_it_moves_are_told(world: World, backend: str) -> None:
    other = Workspace.create(str(world.repository))
    for name in ("packed", "kept", "gone"):
        world.git("branch", name, where=world.repository)
    world.git("pack-refs", "--all", where=world.repository)
    world.git("branch", "loose", where=world.repository)
    was = world.git("rev-parse", "main", where=world.repository).decode().strip()
    script = """
        echo x > x; git add x; git commit -qm x; git tag mine; git stash -q; set -e
        for name in packed loose; do git update-ref refs/heads/$name HEAD; done
    """
    opts = agent(world, script)
    with new_jail(backend).prepare(opts) as run:
        done = run.command.run()
        world.git("update-ref", f"refs/heads/{other.branch}", f"{was}~1", where=world.repository)
        world.git("branch", "-q", "-D", "gone", where=world.repository)
        run.ended(done.returncode)
    assert [event.what for event in run.events] == [
        f"refs/heads/{name}" for name in ("gone", "loose", "packed")
    ]
    assert all(was in event.rule and was in event.allow for event in run.events)


def test_what_is_refused_leaves_the_workspace_as_it_was(world: World, backend: str) -> None:
    opts = agent(world, "true")
    with pytest.raises(Exception, match="NUL"):
        new_jail(backend).run(opts.replace(command=("a\0b",)))
    assert opts.workspace.status == "prepared"
    assert opts.workspace.journal()[-1].what == "refused"
    assert new_jail(backend).run(opts) == 0
