"""Nothing is left of a launch that had to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import staddle
from staddle import Policy, Sandbox, wrap
from staddle.background import wait_for_jobs
from staddle.launch import running
from staddle.launch.contract import Launch
from staddle.sandbox.open.spare_agents import SPARES
from tests.support.waiting import next_line, until

pytestmark = pytest.mark.both_users


def test_private_directories_of_a_launcher_that_was_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE", 0.1)
    top = tmp_path / "private"
    (top / "0/deep").mkdir(parents=True)
    (top / "0/link").symlink_to(tmp_path)
    (tmp_path / "kept").touch()
    deaf = "trap '' TERM; echo; while :; do sleep 0.1; done"
    launch = Launch(("/bin/sh", "-c", deaf), dict(os.environ), "/", scratch=(os.fsencode(top),))
    process = running.start(launch, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        running.end(process)
    assert not top.exists()
    assert (tmp_path / "kept").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["command", "session"])
def test_a_landlock_supervisor_that_is_killed_leaves_no_private_directory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE", 0.1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o1777)
    fill = "cd $HOME; for i in $(seq 100); do mkdir d; cd d; done; "
    if kind == "command":
        with pytest.raises(subprocess.TimeoutExpired):
            wrap(
                ["sh", "-c", fill + "trap '' TERM; sleep 1000"],
                policy=Policy.agent(),
                backend="landlock",
                best_effort=True,
            ).run(timeout=2)
    else:
        with Sandbox(backend="landlock", best_effort=True) as sb:
            sb.run(fill)
            sb._now().agent.kill()
        wait_for_jobs()  # a spare may be being started
        SPARES.close()
    assert until(lambda: not [path for path in tmp_path.iterdir() if path.name.startswith("staddle-")])


#: A program whose lock of its store is held a little longer than its sockets are open: by another process, as
#: by the kernel on a busy machine, which closes the files of a killed program one after the other.
SLOW_TO_END = """
import os, subprocess, time
from staddle import Sandbox
sandbox = Sandbox(os.environ["PROJECT"])
sandbox.run("echo x > y")
names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
locks = [name for name in names if os.path.exists(name) and os.readlink(name).endswith("/lock")]
holding = subprocess.Popen(["sleep", "1"], pass_fds=[int(name.rpartition("/")[2]) for name in locks])
print(len(locks), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A directory that everybody gets to: root's sandboxes have another id."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.chmod(place, 0o711)
        yield Path(place)


@pytest.mark.slow
def test_layers_of_a_program_that_takes_long_to_end_are_removed(everybodys: Path) -> None:
    layers, project = everybodys / "layers", everybodys / "project"
    for directory in (layers, project):
        directory.mkdir()
        directory.chmod(0o711)
    places = {"STADDLE_LAYERS": str(layers), "PROJECT": str(project)}
    source = str(Path(staddle.__file__).parents[1])
    words, variables = [sys.executable, "-c", SLOW_TO_END], {**os.environ, **places, "PYTHONPATH": source}
    with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert next_line(process) == "1\n"
        process.kill()
    assert until(lambda: not [name for _, _, names in os.walk(layers) for name in names])
