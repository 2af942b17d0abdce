"""A directory of the host as the workspace of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle import Policy
from staddle.errors import PolicyError
from staddle.mounts.from_plan import lay_out
from staddle.mounts.host import Host
from staddle.mounts.operations import Bind, Mask
from staddle.policy.paths import WORKSPACE_PATH
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
