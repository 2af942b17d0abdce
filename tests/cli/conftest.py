"""A project, a state directory of its own, and `staddle` in them: for what is kept between commands."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle.files.remove_tree import remove
from tests.support.kept_sandboxes import Run
from tests.support.staddle_command import environment, staddle


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory that also somebody who is not root can pass through."""
    made = Path(tempfile.mkdtemp(prefix="staddle-kept-", dir="/var/tmp"))
    made.chmod(0o711)
    yield made
    remove((os.fsencode(made),))  # the kernel leaves a directory there that its owner cannot open


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "a project, with: odd\nname"
    (directory / "src").mkdir(parents=True)
    (directory / "README").write_text("one\nteh end\n")
    (directory / "src" / "code").write_text("code\n")
    (directory / "gone").write_text("soon\n")
    return directory


@pytest.fixture
def command(state: Path, project: Path) -> Run:
    """`staddle ...` in the project, with that state directory."""

    def run(*words: str, status: int = 0, **more: object) -> subprocess.CompletedProcess[str]:
        env = {**environment(), "XDG_STATE_HOME": str(state)}
        done = staddle(*words, **{"cwd": project, "env": env, **more})
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    return run
