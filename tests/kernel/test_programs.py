"""Real programs work inside every confining backend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from staddle import Policy, wrap
from tests.support.programs import IDENTITY, PIP, SCRIPTS, SERVE, sample_wheel, script

VENV = Path(sys.executable).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.same_for_everyone] if name == "pip-local-index" else [])
        for name in SCRIPTS
    ],
)
def test_program_works(name: str, backend: str, tmp_path: Path) -> None:
    work = tmp_path / "work place"
    work.mkdir()
    wheel = sample_wheel(tmp_path)
    serve, pip = SERVE[backend != "landlock"], PIP[backend != "bwrap"]
    text = script(name, python=sys.executable, wheel=str(wheel), serve=serve, pip=pip)
    policy = Policy.agent().with_write(str(work)).with_read(str(wheel), str(VENV)).with_limits(timeout=200)
    done = wrap(["bash", "-euo", "pipefail", "-c", text], policy, backend=backend, cwd=str(work)).run(
        capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("backend", ["namespaces", "bwrap"])
def test_commits_work_where_the_host_repository_is_protected(backend: str, tmp_path: Path) -> None:
    """The workspace is a clone and a worktree of it: commits go through, config and hooks do not change."""
    import subprocess

    subprocess.run(
        [
            "bash",
            "-euc",
            f"""{IDENTITY}
git init -q repo; cd repo; echo 1 > f; git add f; git commit -qm 1; git worktree add -q ../tree""",
        ],
        cwd=tmp_path,
        check=True,
    )
    repo, tree = tmp_path / "repo", tmp_path / "tree"
    config = (repo / ".git/config").read_bytes()
    body = f"""
        {IDENTITY}
        echo 2 >> f && git commit -qam 2
        ! git config core.fsmonitor /tmp/evil 2>/dev/null
        ! sh -c 'echo evil > .git/hooks/pre-commit' 2>/dev/null
        ! mv .git/hooks .git/other 2>/dev/null
        ! mv .git .gone 2>/dev/null
        cd ../tree && echo 3 >> f && git commit -qam 3
    """
    policy = Policy.agent().with_write(str(repo), str(tree))
    done = wrap(["bash", "-euc", body], policy, backend=backend, cwd=str(repo)).run(
        capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (repo / ".git/config").read_bytes() == config
    assert not (repo / ".git/hooks/pre-commit").exists()
    log = subprocess.run(
        ["git", "log", "--oneline", "--all"], cwd=repo, capture_output=True, text=True, check=True
    )
    assert len(log.stdout.splitlines()) == 3
    assert subprocess.run(["git", "fsck"], cwd=repo, capture_output=True, check=False).returncode == 0
