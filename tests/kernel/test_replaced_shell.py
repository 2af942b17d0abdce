"""A shell that takes the place of another one is where that was, or where the session began: never in `/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.sandbox.session import Session

LIMITED = Policy.agent().with_limits(disk="10M")
#: Commands that end their shell: by a limit, a signal, or themselves.
ENDS = {
    "disk": "dd if=/dev/zero of=core.dump bs=1M count=5000",
    "SIGKILL": "kill -9 $$",
    "exec": "exec true",
    "exit": "exit 3",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for up in (tmp_path, *tmp_path.parents[:2]):
        up.chmod(0o755)
    (tmp_path / "project/sub").mkdir(parents=True)
    return tmp_path / "project"


def _main(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED)
    return sandbox, sandbox.session("main"), "/workspace"


def _workdir(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED, workdir="sub")
    return sandbox, sandbox.session("main"), "/workspace/sub"


def _named(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED)
    return sandbox, sandbox.session("other"), "/workspace"


def _without_workspace(_: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(policy=LIMITED)
    return sandbox, sandbox.session("main"), "/workspace"


def _linked(project: Path) -> tuple[Sandbox, Session, str]:
    sandbox = Sandbox(project, LIMITED, workspace_at="/app")
    return sandbox, sandbox.session("main"), "/app"


SHELLS: dict[str, Callable[[Path], tuple[Sandbox, Session, str]]] = {
    "main": _main,
    "workdir": _workdir,
    "named": _named,
    "without a workspace": _without_workspace,
    "workspace_at": _linked,
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("end", ENDS)
def test_when_the_first_command_ends_it(project: Path, shell: str, end: str) -> None:
    sandbox, session, start = SHELLS[shell](project)
    with sandbox:
        first = session.run(ENDS[end])
        assert first.shell_exited
        assert first.cwd == start
        assert session.run("pwd").stdout == f"{start}\n"
        assert session.run("pwd").cwd == start
        if shell in {"main", "without a workspace"} and end != "disk":
            sandbox.files.write("here", "x")
            assert sandbox.exec(["ls", "/workspace/here"]).ok


@pytest.mark.parametrize("end", ENDS)
def test_when_a_later_command_ends_it(project: Path, end: str) -> None:
    with Sandbox(project, LIMITED) as sandbox:
        sandbox.run("mkdir -p a/b; cd a/b; x=1")
        assert sandbox.state.cwd == "/workspace/a/b"  # and so the state is known
        assert sandbox.run(ENDS[end]).cwd == "/workspace/a/b"
        assert sandbox.run("pwd; echo $x").stdout == "/workspace/a/b\n1\n"


def test_when_its_directory_is_gone_it_is_in_the_nearest_above(project: Path) -> None:
    with Sandbox(project, LIMITED) as sandbox:
        sandbox.run("mkdir -p a/b/c; cd a/b/c")
        sandbox.run("rm -r /workspace/a/b")
        sandbox.run("kill -9 $$")
        assert sandbox.run("pwd").stdout == "/workspace/a\n"


def test_after_a_restore_to_a_time_without_its_directory(project: Path) -> None:
    with Sandbox(project) as sandbox:
        before = sandbox.snapshot()
        sandbox.run("mkdir -p d/e; cd d/e")
        sandbox.restore(before)
        assert sandbox.run("pwd").stdout == "/workspace\n"


def test_a_shell_that_was_killed_between_two_commands_is_told_of(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run("cd sub; x=kept")
        assert sandbox.state.env  # and so the state is known
        pid = sandbox.run("echo $$").stdout.strip()
        other = sandbox.session("other")
        other.run(f"kill -9 {pid}")
        other.run(f"while kill -0 {pid} 2>/dev/null; do :; done")
        result = sandbox.run("pwd; echo $x")
        assert result.stdout == "/workspace/sub\nkept\n"
        assert "another one" in result.why
        assert sandbox.run("true").why == ""
