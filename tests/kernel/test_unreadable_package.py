"""Our own files need not be readable for a command: they are in a home, or only root can read them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import staddle

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from staddle import Network, Policy, Sandbox, wrap

policy = Policy.agent().with_limits(memory="1G", processes=100)
for network in (Network.deny(), Network.allow("example.com")):
    done = wrap(["echo", "here"], policy.with_network(network), backend=sys.argv[2], best_effort=True)
    done = done.run(capture_output=True)
    print(done.returncode, done.stdout, done.stderr)
with Sandbox(policy=policy, backend=sys.argv[2], best_effort=True) as sandbox:
    print(sandbox.run("echo here").stdout, sandbox.exec(["echo", "there"]).stdout)
    sandbox.files.write("file", "text")
    print(sandbox.files.read("file"))
"""


@pytest.mark.parametrize("backend", ["namespaces", "bwrap", "landlock"])
def test_what_runs_inside_was_loaded_before(backend: str, tmp_path: Path) -> None:
    place = tmp_path / "private"
    shutil.copytree(Path(staddle.__file__).parent, place / "staddle", ignore=shutil.ignore_patterns("docs"))
    place.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, str(place), backend],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    said = "0 b'here\\n' b''\n"
    assert done.stdout == f"{said}{said}here\n there\n\ntext\n"
