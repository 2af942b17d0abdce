"""No sandbox writes to what staddle itself trusts, whichever way it was started and wherever that is."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from staddle import LocalEnvironment, Policy, Sandbox, places, wrap
from staddle.agents.broker import ShellBroker
from staddle.agents.install import brokers_of
from staddle.errors import (
    CommitRefused,
    InvalidCall,
    LaunchFailed,
    PathEscape,
    PolicyError,
    PolicyNotEnforceable,
)
from staddle.files.beneath import open_for_write, safe_mkdir_all, safe_remove
from staddle.policy import own_places
from tests.support.staddle_command import environment, staddle
from tests.support.waiting import next_line

#: Where variables put our places, below a home that a sandbox may write.
USUAL: dict[str, str] = {}
MOVED = {
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
    "XDG_CACHE_HOME": "cache",
    "STADDLE_BASES": "bases",
    "STADDLE_WORKSPACES": "trees",
    "STADDLE_DOWNLOADS": "downloads",
}
#: Tries everything in the directory where it starts, and says nothing.
ATTACK = """
for place in {places}; do
  mkdir -p "$place/x"; echo forged > "$place/file"; rm -rf "$place/mine"; chmod 777 "$place"
  up=$place
  while [ "$up" != . ]; do up=$(dirname "$up"); [ "$up" = . ] || mv "$up" "$up.aside" 2>/dev/null; done
  ln -s /tmp "$place"
done
echo fine > allowed
"""


class Home:
    """A home, and our places in it, relative to it."""

    def __init__(self, path: Path, names: list[str], there: bool) -> None:
        self.path, self.names = path, names
        for name in names if there else ():
            (path / name).mkdir(parents=True)
            (path / name / "mine").write_text("ours")
        self._before = self._seen()

    def _seen(self) -> dict[str, tuple[int, list[str]]]:
        found = {}
        for name in self.names:
            if (self.path / name).exists():
                found[name] = (self.path / name).stat().st_ino, sorted(os.listdir(self.path / name))
        return found

    @property
    def attack(self) -> str:
        return ATTACK.format(places=" ".join(self.names))

    def check(self) -> None:
        """Nothing of ours was changed or made, and what may be written was."""
        own_places.remove_made()
        own_places._held.clear()
        own_places._made.clear()
        assert self._seen() == self._before
        assert (self.path / "allowed").read_text() == "fine\n"
        assert not [
            path for path in self.path.rglob("*") if path.name.endswith(".aside") or path.is_symlink()
        ]


@pytest.fixture(params=["usual", "moved"])
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    return USUAL if request.param == "usual" else MOVED


@pytest.fixture(params=["there", "missing"])
def home(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> Home:
    path = tmp_path.resolve() / "a home"
    path.mkdir()
    for up in (path, *path.parents):
        if str(up).startswith(str(tmp_path.parents[1])):
            up.chmod(0o755)
    monkeypatch.setenv("HOME", str(path))
    for variable, name in variables.items():
        monkeypatch.setenv(variable, f"{path}/{name}")
    names = [place.removeprefix(f"{path}/") for place in places.trusted() if place.startswith(f"{path}/")]
    return Home(path, names, request.param == "there")


def by_wrap(home: Path, attack: str) -> None:
    wrap(["sh", "-c", attack], Policy(write=[home]), cwd=str(home)).run()


def by_wrap_on_bwrap(home: Path, attack: str) -> None:
    wrap(["sh", "-c", attack], Policy(write=[home]), cwd=str(home), backend="bwrap").run()


def by_run(home: Path, attack: str) -> None:
    done = staddle("run", "--write", str(home), "--workdir", str(home), "-c", attack, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


def by_bind(home: Path, attack: str) -> None:
    with Sandbox(home, Policy.agent(), mode="bind") as sandbox:
        sandbox.run(attack)


def by_unprotected_bind(home: Path, attack: str) -> None:
    with Sandbox(home, Policy.agent().with_unprotect(".git/hooks"), mode="bind", backend="bwrap") as sandbox:
        sandbox.run(attack)


def by_grant_of_a_sandbox(home: Path, attack: str) -> None:
    with Sandbox(None, Policy.agent().with_write(home)) as sandbox:
        sandbox.run(f"cd '{home}'\n{attack}")


def by_environment(home: Path, attack: str) -> None:
    with LocalEnvironment(home) as tools:
        tools.exec_command("sh", ["-c", attack])


def by_writable_paths(home: Path, attack: str) -> None:
    with LocalEnvironment(home, ["**"]) as tools:
        tools.exec_command("sh", ["-c", attack])


DOORS: list[Callable[[Path, str], None]] = [
    *(by_wrap, by_wrap_on_bwrap, by_run, by_bind, by_unprotected_bind, by_grant_of_a_sandbox),
    *(by_environment, by_writable_paths),
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_no_door_lets_a_command_write_to_what_staddle_trusts(
    home: Home, door: Callable[[Path, str], None]
) -> None:
    door(home.path, home.attack)
    home.check()


@pytest.mark.parametrize("mode", ["overlay", "copy"])
def test_a_commit_never_writes_there(home: Home, mode: str) -> None:
    with Sandbox(home.path, mode=mode) as sandbox:  # type: ignore[arg-type]
        sandbox.run(
            f"for place in {' '.join(home.names)}; do mkdir -p $place/x; echo forged > $place/file; done"
        )
        sandbox.run("echo fine > allowed")
        with pytest.raises(CommitRefused, match="staddle's own"):
            sandbox.commit(allow_protected=True, on_conflict="overwrite")
        with pytest.raises(CommitRefused, match="staddle's own"):
            sandbox.commit(allow=["**"], on_conflict="overwrite")
        sandbox.commit(paths=["allowed"])
    home.check()


def test_a_directory_above_it_cannot_be_replaced_by_a_commit(home: Home) -> None:
    above = home.names[0].split("/", 1)[0]
    with Sandbox(home.path) as sandbox:
        sandbox.run(f"rm -rf {above}; mkdir /tmp/x; ln -s /tmp/x {above}; echo fine > allowed")
        with pytest.raises(CommitRefused, match="staddle's own"):
            sandbox.commit(allow_protected=True, on_conflict="overwrite")
        sandbox.commit(paths=["allowed"])
    home.check()


def test_file_tools_do_not_write_there(home: Home) -> None:
    with LocalEnvironment(home.path) as tools:
        for name in home.names:
            with pytest.raises(PermissionError):
                tools.write_file(f"{name}/file", "forged")
            with pytest.raises((PermissionError, FileNotFoundError)):
                tools.remove_file(f"{name}/mine")
            with pytest.raises(PermissionError):
                open_for_write(home.path, f"{name}/file")
            with pytest.raises(PermissionError):
                safe_mkdir_all(home.path, f"{name}/x")
            with pytest.raises(PermissionError):
                safe_remove(home.path, f"{name}/mine")
        tools.write_file("allowed", "fine\n")
    home.check()


def test_a_grant_in_one_of_them_is_refused(home: Home) -> None:
    for name in home.names:
        (home.path / name / "deep").mkdir(parents=True, exist_ok=True)
        for path in (home.path / name, home.path / name / "deep"):
            with pytest.raises(PolicyError, match="staddle's own"):
                wrap(["true"], Policy(write=[path]))
            with pytest.raises(PolicyError, match="staddle's own"):
                Sandbox(path, mode="bind")


def test_where_it_cannot_be_protected_nothing_runs(home: Home) -> None:
    for best_effort in (False, True):
        with pytest.raises(PolicyNotEnforceable, match="staddle's own"):
            wrap(["true"], Policy(write=[home.path]), backend="landlock", best_effort=best_effort)
        with pytest.raises(PolicyNotEnforceable, match="staddle's own"):
            Sandbox(home.path, mode="bind", backend="landlock", best_effort=best_effort)


def test_a_link_that_leads_to_one_of_them_is_refused(home: Home) -> None:
    name = home.names[0]
    shutil.rmtree(home.path / name, ignore_errors=True)
    (home.path / "elsewhere").mkdir()
    (home.path / name).parent.mkdir(parents=True, exist_ok=True)
    (home.path / name).symlink_to(home.path / "elsewhere")
    with pytest.raises(PathEscape, match="staddle's own"):
        wrap(["true"], Policy(write=[home.path]))


def test_a_kept_sandbox_does_not_break_a_grant_that_contains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    with Sandbox(tmp_path / "project", keep="mine") as sandbox:
        sandbox.run("mkdir -p a/.git/hooks; chmod 0 a; echo kept > file")
    done = staddle("run", "--write", str(tmp_path), "--", "touch", f"{tmp_path}/new", env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new").exists()


def test_shims_and_brokers_are_never_where_a_sandbox_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TMPDIR", "XDG_RUNTIME_DIR", "TEMP", "TMP"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert not brokers_of("claude").startswith(str(tmp_path))
    with Sandbox(tmp_path, mode="bind") as sandbox:
        broker = ShellBroker(sandbox)
        try:
            assert not broker.home.startswith(str(tmp_path))
            assert sandbox.run(f"ls {broker.home}").exit_code != 0
            assert places.is_shared(broker.home)
        finally:
            broker.close()


@pytest.mark.parametrize("creator_ends_first", [True, False])
def test_two_programs_share_what_they_keep_and_the_last_one_leaves_nothing(
    tmp_path: Path, creator_ends_first: bool
) -> None:
    code = """
import sys
from staddle import Policy, wrap
done = wrap(["sh", "-c", sys.argv[2]], Policy(write=[sys.argv[1]]), cwd=sys.argv[1]).run()
"""
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    env = {**environment(), "HOME": str(tmp_path)}
    begun = []
    for _ in range(2):
        begun.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    code,
                    str(tmp_path),
                    "echo begun; read line; mkdir -p .config/staddle/x",
                ],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert next_line(begun[-1]) == "begun\n"
    order = (begun[0], begun[1]) if creator_ends_first else (begun[1], begun[0])
    for program, is_last in zip(order, (False, True), strict=True):
        program.communicate("go\n", timeout=60)
        assert program.returncode == 0
        assert (tmp_path / ".config/staddle").is_dir() is not is_last, (
            "another program needs it, or none does"
        )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("door", ["sandbox", "bind", "wrap", "environment"])
def test_an_audit_log_is_not_where_the_audited_can_write(tmp_path: Path, door: str) -> None:
    (tmp_path / "granted").mkdir()
    (tmp_path / "project").mkdir()
    policy, log = Policy.agent().with_write(tmp_path / "granted"), tmp_path / "granted/log"
    project = tmp_path / "project"
    doors: dict[str, Callable[[], object]] = {
        "wrap": lambda: wrap(["true"], policy, audit=log),
        "environment": lambda: LocalEnvironment(project, policy=policy, audit=log),
        "sandbox": lambda: Sandbox(project, policy, audit=log),
        "bind": lambda: Sandbox(project, policy, audit=log, mode="bind"),
    }
    with pytest.raises(InvalidCall, match="can be written"):
        doors[door]()
    assert os.listdir(tmp_path / "granted") == []


def test_a_directory_that_a_killed_program_left_is_removed_with_those_below_it(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "left").chmod(own_places._MADE & 0o7777)
    own_places._hold(str(tmp_path / "left/place"))
    own_places.remove_made()
    os.close(own_places._held.pop(str(tmp_path / "left/place")))
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_made_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = places.make_directory

    def refuse_the_second(path: str, mode: int) -> None:
        if path.endswith("second"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        make(path, mode)

    monkeypatch.setattr(places, "make_directory", refuse_the_second)
    with pytest.raises(LaunchFailed, match="cannot be made"):
        own_places._hold(str(tmp_path / "first/second"))
    own_places.remove_made()
    assert os.listdir(tmp_path) == []
