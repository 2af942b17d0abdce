"""What the tests of real jails share: a home with secrets in it, a repository, a scripted agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle import backends
from staddle.jail.jail import RunOpts
from staddle.jail.workspace import Workspace
from tests.support.git_plants import World
from tests.support.waiting import until

#: Every backend that confines on this host; systemd has a file of its own, with a machine of its own.
BACKENDS = tuple(name for name in backends.candidates() if name != "systemd")
SOURCE = str(Path(__file__).parents[2] / "src")


def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("private key\n")
    (home / ".claude").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("STADDLE_WORKSPACES", str(tmp_path / "data"))
    return World(tmp_path)


def agent(world: World, script: str, **options: object) -> RunOpts:
    workspace = Workspace.create(str(world.repository))
    return RunOpts(workspace, ["bash", "-c", script], **{"timeout": 60.0, **options})  # type: ignore[arg-type]


def healthy(world: World) -> bool:
    return world.git("fsck", "--full", "--strict", where=world.repository) == b""


def processes_with(mark: str) -> list[int]:
    """Those whose command line or environment holds `mark`, as far as we may look."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            for name in ("cmdline", "environ"):
                try:
                    if mark.encode() in Path(f"/proc/{entry}/{name}").read_bytes():
                        found.append(int(entry))
                except OSError:
                    continue
    return found


def gone(mark: str) -> bool:
    return until(lambda: not processes_with(mark))


def appears(path: str | Path) -> bool:
    return until(lambda: os.path.exists(path))
