"""The socket of a terminal for another process: removed with its program, also when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from staddle.adapters._attach import AttachServer

pytestmark = pytest.mark.same_for_everyone
KILLED = """
import os, signal
from staddle.adapters._attach import AttachServer
print(AttachServer(print).path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_one_removes_what_a_killed_program_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip()).parent
    assert left.is_dir()
    living = AttachServer(print)
    another = AttachServer(print)
    assert not left.exists()
    assert Path(living.path).is_socket()
    living.close()
    another.close()
    assert list(tmp_path.iterdir()) == []
