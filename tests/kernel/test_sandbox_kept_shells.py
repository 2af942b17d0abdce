"""A kept sandbox remembers its shells: variables, functions, directory and options come back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.layers import session_record
from staddle.sandbox.workspace.persistent import FILE, PersistentWorkspace
from tests.support.staddle_command import staddle


@pytest.fixture
def name() -> Iterator[str]:
    made = f"shells-{os.urandom(6).hex()}"
    yield made
    staddle("rm", "--force", made)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


STATE = """
plain=1; export shown='two words'; declare -A table=([a]=b); list=(x 'y z'); readonly fixed=3
greet() { echo "hello $1"; }
alias ll='ls -l'; set -f; shopt -s nullglob; umask 027; trap 'echo caught' USR1; set -- p 'q r'
mkdir -p sub; cd sub
"""
ASK = """
echo "$plain/$shown/${table[a]}/${list[1]}/$fixed/$1/$2/$#/$PWD"; greet you; alias ll; echo $-; shopt nullglob
umask; trap -p USR1
"""


def file_of(name: str) -> Path:
    return Path(session_record.directory_of(name), FILE)


@pytest.mark.same_for_everyone
def test_a_shell_stays_in_its_directory_when_the_workspace_is_at_another_path(
    name: str, project: Path
) -> None:
    with Sandbox(project, keep=name, workspace_at="/app") as sb:
        assert sb.run("mkdir -p a/b; cd a; pushd b > /dev/null; pwd").stdout == "/app/a/b\n"
    with Sandbox(project, keep=name) as sb:
        assert sb.run("pwd; dirs -l").stdout == "/workspace/a/b\n/workspace/a/b /workspace/a\n"
    with Sandbox(project, keep=name, workspace_at="/app") as sb:
        assert sb.run("pwd").stdout == "/app/a/b\n"


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_variables_functions_directory_and_options_come_back(name: str, project: Path) -> None:
    with Sandbox(project, keep=name) as sb:
        sb.run(STATE).check()
        before = sb.run(ASK).stdout
        sb.session("other").run("mine=7")
    assert "1/two words/b/y z/3/p/q r/2/" in before
    for _ in range(2):  # and again, unused in between
        with Sandbox(project, keep=name) as sb:
            assert sb.run(ASK).stdout == before
            assert sb.session("other").run("echo $mine").stdout == "7\n"
            assert sb.exec(["printenv", "shown"]).stdout == "two words\n"
    with Sandbox(project, keep=name) as sb:
        sb.run("unset shown; unset -f greet; cd /")
    with Sandbox(project, keep=name) as sb:
        assert (
            sb.run("echo ${shown-none} $PWD; greet you 2>/dev/null || echo gone").stdout == "none /\ngone\n"
        )


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_variables_of_the_policy_are_the_next_ones_and_not_in_the_file(name: str, project: Path) -> None:
    def with_token(value: str) -> Policy:
        return Policy.agent().with_env(TOKEN=value, OTHER="o")

    with Sandbox(project, with_token("first-secret"), keep=name) as sb:
        sb.run("OTHER=changed; mine=1")
    content = file_of(name).read_text()
    for form in (b"first-secret", b"changed"):
        found = any(form in _decoded(piece) for piece in _pieces(json.loads(content)))
        assert found == (form == b"changed")
    assert os.stat(file_of(name)).st_mode & 0o777 == 0o600
    with Sandbox(project, with_token("second"), keep=name) as sb:
        assert sb.run("echo $TOKEN $OTHER $mine").stdout == "second changed 1\n"
    with Sandbox(project, keep=name) as sb:
        assert sb.run("echo ${TOKEN-none} $mine").stdout == "none 1\n"


def _pieces(facts: object) -> list[str]:
    if isinstance(facts, dict):
        return [piece for value in facts.values() for piece in _pieces(value)]
    return [facts] if isinstance(facts, str) else []


def _decoded(piece: str) -> bytes:
    from base64 import b64decode

    return b64decode(piece)


def test_a_command_that_runs_at_the_end_does_not_hold_it_up(name: str, project: Path) -> None:
    sb = Sandbox(project, keep=name)
    sb.run("x=1")
    stream = sb.stream("x=2; echo on; while :; do :; done", timeout=None)
    assert next(iter(stream))
    sb.close()
    with Sandbox(project, keep=name) as sb:
        assert sb.run("echo ${x-none}").stdout == "none\n"


@pytest.mark.same_for_everyone
@pytest.mark.parametrize("content", ["", "{", '{"format": 1}', '{"format": 9}', '{"format": 1, "now": 3}'])
def test_a_file_that_cannot_be_read_is_no_state(name: str, project: Path, content: str) -> None:
    with Sandbox(project, keep=name) as sb:
        sb.run("x=1; echo file > f")
    file_of(name).write_text(content)
    with Sandbox(project, keep=name) as sb:
        assert sb.run("echo ${x-none}; cat f").stdout == "none\nfile\n"


def test_a_state_that_ends_every_shell_does_not_lock_the_sandbox(name: str, project: Path) -> None:
    with Sandbox(project, keep=name) as sb:
        sb.run("x=1; trap 'exit 3' DEBUG")
    with Sandbox(project, keep=name) as sb:
        assert sb.exec(["true"]).ok


@pytest.mark.slow
@pytest.mark.same_for_everyone
def test_snapshots_have_the_shells_of_their_moment(name: str, project: Path, tmp_path: Path) -> None:
    with Sandbox(project, keep=name) as sb:
        sb.run("x=1")
    assert staddle("snapshot", name, "one").returncode == 0
    with Sandbox(project, keep=name) as sb:
        sb.run("x=2")
    assert staddle("snapshot", name, "--save", str(tmp_path / "two")).returncode == 0
    assert staddle("restore", name, "one").returncode == 0
    with Sandbox(project, keep=name) as sb:
        assert sb.run("echo $x").stdout == "1\n"
    assert staddle("restore", name, "--load", str(tmp_path / "two")).returncode == 0
    with Sandbox(project, keep=name) as sb:
        assert sb.run("echo $x").stdout == "2\n"
    with Sandbox.from_snapshot(str(tmp_path / "two"), project) as other:
        assert other.run("echo $x").stdout == "2\n"
    assert staddle("snapshot", name, "--delete", "one").returncode == 0
    kept = PersistentWorkspace(name)
    try:
        assert kept._shells.points == {}
    finally:
        kept.close()
