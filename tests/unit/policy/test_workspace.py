"""A directory of the host as the workspace of a session."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import pytest

from staddle import Policy
from staddle.errors import PolicyError
from staddle.mounts.from_plan import lay_out
from staddle.mounts.host import Host
from staddle.mounts.operations import Bind, Mask
from staddle.paths import WORKSPACE_PATH
from staddle.policy import resolve_rules
from staddle.policy.compiler import compile as compile_policy
from staddle.policy.workspace import compile_session


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "a project's dir"
    (directory / ".git").mkdir(parents=True)
    (directory / ".git" / "config").write_text("")
    (directory / "secret").write_text("")
    return directory.resolve()


def test_it_is_seen_at_one_place_and_nowhere_else(project: Path) -> None:
    plan, _ = compile_session(Policy(), str(project), access="write")
    assert plan.cwd == WORKSPACE_PATH
    assert plan.access(f"{WORKSPACE_PATH}/x") == "write"
    assert not plan.shows(str(project))
    assert plan.outside(f"{WORKSPACE_PATH}/a/b") == f"{project}/a/b"
    assert plan.outside("/usr/bin") == "/usr/bin"


def test_protected_names_are_protected_at_their_new_place(project: Path) -> None:
    plan, alone = compile_session(Policy(), str(project), access="write")
    assert [guard.path for guard in plan.guards] == [f"{WORKSPACE_PATH}/.git/config"]
    assert alone is not None
    assert [guard.path for guard in alone.guards] == [f"{project}/.git/config"]


def test_what_is_only_read_needs_no_protection(project: Path) -> None:
    plan, _ = compile_session(Policy(), str(project), access="read")
    assert plan.guards == ()
    assert plan.access(f"{WORKSPACE_PATH}/x") == "read"


def test_what_is_denied_below_it_is_denied_at_its_new_place(project: Path) -> None:
    plan, _ = compile_session(Policy().with_deny(str(project / "secret")), str(project), access="read")
    assert plan.access(f"{WORKSPACE_PATH}/secret") == "none"
    operations = lay_out(plan, Host()).operations
    assert Mask(f"{WORKSPACE_PATH}/secret", plan.hidden[-1].origin) in operations


def test_a_denied_name_that_is_missing_is_kept_out_of_a_read_only_workspace(project: Path) -> None:
    plan, _ = compile_session(Policy().with_deny(str(project / "later")), str(project), access="read")
    layout = lay_out(plan, Host())
    assert not layout.unheld
    shown = {op.path: op.outside for op in layout.operations if isinstance(op, Bind)}
    assert shown[f"{WORKSPACE_PATH}/secret"] == f"{project}/secret"


def test_the_layout_shows_the_host_directory_there(project: Path) -> None:
    plan, _ = compile_session(Policy(), str(project), access="write")
    shown = [
        op for op in lay_out(plan, Host()).operations if isinstance(op, Bind) and op.path == WORKSPACE_PATH
    ]
    assert [(op.outside, op.writable) for op in shown] == [(str(project), True)]
    assert str(shown[0]).startswith("show ")
    assert f"at {WORKSPACE_PATH}" in str(shown[0])


def test_without_one_there_is_an_empty_directory() -> None:
    plan, alone = compile_session(Policy(), None, access="write")
    assert alone is None
    assert plan.cwd == WORKSPACE_PATH
    assert WORKSPACE_PATH in {item.path for item in plan.scratch}


def test_where_it_cannot_be_moved_it_stays_where_it_is(project: Path) -> None:
    plan, _ = compile_session(Policy(), str(project), access="write", moved=False)
    assert plan.cwd == str(project)
    assert plan.access(str(project)) == "write"


def test_a_workspace_that_is_no_directory_is_an_error(project: Path) -> None:
    with pytest.raises(PolicyError, match="not a directory"):
        compile_session(Policy(), str(project / "secret"), access="read")


def test_a_workspace_that_is_denied_is_an_error(project: Path) -> None:
    with pytest.raises(PolicyError, match="denied"):
        compile_session(Policy().with_deny(str(project)), str(project), access="read")


def test_a_policy_that_grants_that_place_leaves_no_room_for_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("staddle.policy.workspace.WORKSPACE_PATH", str(project.parent))
    with pytest.raises(PolicyError, match="seen at"):
        compile_session(Policy().with_read(str(project)), str(project), access="read")


def policies(home: Path) -> dict[str, Policy]:
    """Each preset, by itself and with a grant of the caller, in a home with a coding agent's files."""
    for name in (".codex", ".claude", ".local/bin", ".local/share/mise", ".config/opencode", "granted"):
        (home / name).mkdir(parents=True)
    presets = {
        "none": Policy(home=home),
        "agent": Policy.agent(),
        "coding-agent": Policy.coding_agent(home),
    }
    more = {name: policy.with_write(home / "granted") for name, policy in presets.items()}
    return {**presets, **{f"{name} and a grant": policy for name, policy in more.items()}}


WHERE = ("w", "a/much/longer/path/to/a/project", ".codex/w", ".local/bin/w", "granted/w", "granted", ".codex")


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("where", WHERE)
def test_the_workspace_is_the_directory_that_was_asked_for_whatever_the_policy_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, access: Literal["read", "write"]
) -> None:
    home = tmp_path.resolve() / "h"
    monkeypatch.setenv("HOME", str(home))
    for name, policy in policies(home).items():
        workspace = home / where
        workspace.mkdir(parents=True, exist_ok=True)
        (workspace / "secret").touch()
        (workspace / ".envrc").touch()
        plan, alone = compile_session(policy.with_deny(workspace / "secret"), str(workspace), access=access)
        assert plan.outside(f"{WORKSPACE_PATH}/x") == f"{workspace}/x", name
        assert plan.access(f"{WORKSPACE_PATH}/x") == access, name
        assert plan.access(f"{WORKSPACE_PATH}/secret") == "none", name
        assert alone is not None
        assert [grant.path for grant in alone.grants] == [str(workspace)], name
        if access == "write" and where != ".codex":  # who names a protected directory means all of it
            assert plan.access(f"{WORKSPACE_PATH}/.envrc") == "read", name


def test_a_private_home_below_the_workspace_uncovers_nothing_that_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path.resolve() / "homes/me"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    plan, _ = compile_session(Policy.coding_agent(home), str(home.parent), access="read")
    assert plan.access(f"{WORKSPACE_PATH}/me/.ssh/id") == "none"


def test_denies_hold_in_a_workspace_in_shared_memory() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        Path(place, "secret").touch()
        plan, _ = compile_session(Policy().with_deny(f"{place}/secret"), place, access="read")
        assert plan.access(f"{WORKSPACE_PATH}/secret") == "none"


@pytest.mark.parametrize("mark", [".ssh", ".bashrc"])
def test_secrets_are_hidden_in_every_home_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    theirs, project = tmp_path.resolve() / "theirs", tmp_path.resolve() / "project"
    for place in (theirs, project):
        (place / ".ssh").mkdir(parents=True)
        (place / ".npmrc").touch()
    (project / ".ssh").rmdir()
    (theirs / mark).mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    plan, _ = compile_session(Policy.agent(), str(theirs), access="read")
    assert plan.access(f"{WORKSPACE_PATH}/.ssh/id") == plan.access(f"{WORKSPACE_PATH}/.npmrc") == "none"
    granted = compile_policy(Policy.agent().with_write(theirs), cwd="/")
    assert granted.access(f"{theirs}/.ssh/id") == "none"
    plan, _ = compile_session(Policy.agent(), str(project), access="read")
    assert plan.access(f"{WORKSPACE_PATH}/.npmrc") == "read", "a project's own settings"


def test_secrets_are_hidden_in_the_homes_of_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path.resolve() / "homes/them"
    (theirs / ".aws").mkdir(parents=True)
    monkeypatch.setattr(resolve_rules, "_homes_of_accounts", lambda: (str(theirs),))
    plan, _ = compile_session(Policy.agent(), str(theirs.parent), access="read")
    assert plan.access(f"{WORKSPACE_PATH}/them/.aws/credentials") == "none"
