"""Stacks that are mounted in advance for the next snapshot: used if they fit, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from staddle import Sandbox
from staddle.background import wait_for_jobs
from staddle.errors import LaunchFailed
from staddle.forkserver.client import SandboxProcess
from staddle.forkserver.connection import OverlayDirs
from staddle.sandbox.workspace.overlay import OverlayWorkspace
from staddle.sandbox.workspace.prepared_stacks import MountedStacks
from tests.support.in_a_child import SRC
from tests.support.layers_overlay import stores_are_empty
from tests.support.waiting import until

pytestmark = pytest.mark.both_users


def ready(sandbox: Sandbox) -> MountedStacks:
    """Return what is prepared, once no preparation is in progress."""
    workspace = sandbox._now().workspace
    assert isinstance(workspace, OverlayWorkspace)
    wait_for_jobs()
    return workspace._prepared._ready


@pytest.fixture
def mounting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that had trees of an open sandbox mounted."""
    found: list[str] = []
    make = SandboxProcess.make_trees

    def made(self: SandboxProcess, layers: Mapping[str, OverlayDirs], line: int) -> None:
        found.append(threading.current_thread().name)
        make(self, layers, line)

    monkeypatch.setattr(SandboxProcess, "make_trees", made)
    return found


@pytest.fixture
def sandbox(tmp_path: Path, mounting: list[str]) -> Iterator[Sandbox]:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep").write_text("deep\n")
    (tmp_path / "gone").write_text("soon\n")
    with Sandbox(tmp_path) as made:
        yield made


def test_a_snapshot_uses_what_is_prepared_and_shows_all_that_was_written_since(
    sandbox: Sandbox, mounting: list[str]
) -> None:
    main = threading.current_thread().name
    sandbox.run("echo 1 > a; ln -s a link; mkdir new; echo x > new/x; echo home > ~/h")
    assert not ready(sandbox)  # the first snapshot begins it
    assert sandbox.snapshot().method == "swap"
    assert mounting == [main]
    assert len(ready(sandbox).mounts) == 2
    mounting.clear()
    sandbox.run(
        "echo 2 > a; rm link gone; mv new moved; rm -r sub; echo file > sub; echo home >> ~/h; chmod 600 a"
    )
    shown = "find . -type f | sort | xargs stat -c '%n %a %s'; cat a sub moved/x ~/h"
    before = sandbox.run(shown).stdout
    point = sandbox.snapshot()
    assert point.method == "swap"
    assert main not in mounting
    assert sandbox.run(shown).stdout == before
    sandbox.run("echo 3 > a; rm -rf moved; echo other > ~/h")
    sandbox.restore(point)
    assert sandbox.run(shown).stdout == before


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("change", ["touch new", "chmod 2770 .", "touch -d 2001-01-01 .", "attribute"])
def test_a_snapshot_keeps_what_the_root_itself_shows(
    sandbox: Sandbox, mounting: list[str], change: str, prepared: bool
) -> None:
    """Its mode, its times and its attributes, which are no entry of any directory."""
    sandbox.run("echo 1 > a")
    sandbox.snapshot()
    stacks = ready(sandbox)
    if not prepared:
        sandbox._now().workspace._prepared.drop()  # type: ignore[attr-defined]
    mounting.clear()
    sandbox.run(
        'python3 -c \'import os; os.setxattr(".", "user.x", b"1")\'' if change == "attribute" else change
    )
    shows = "stat -c '%a %U:%G %y' .; python3 -c 'import os; print(os.listxattr(\".\"))'"
    before = sandbox.run(shows).stdout
    sandbox.run("echo 2 > a")  # not in the directory itself
    point = sandbox.snapshot()
    assert point.method == "swap"
    used = prepared and change.startswith("touch")
    assert (threading.current_thread().name not in mounting) == used
    assert until(lambda: not stacks.mounts)
    assert sandbox.run(shows).stdout == before
    sandbox.run("chmod 700 .; touch other")
    sandbox.restore(point)
    assert sandbox.run(shows).stdout == before
    (fork,) = sandbox.fork()
    with fork:
        assert fork.run(shows).stdout == before


def test_other_trees_or_none_that_changed(sandbox: Sandbox, mounting: list[str]) -> None:
    sandbox.run("echo 1 > a")
    sandbox.snapshot()
    mounts = list(ready(sandbox).mounts)
    sandbox.snapshot()  # nothing has changed
    sandbox.run("true")
    assert ready(sandbox).mounts == mounts
    mounting.clear()
    sandbox.run("echo 1 > ~/a; echo 2 > a")
    sandbox.snapshot()
    assert threading.current_thread().name in mounting
    assert sandbox.run("cat a ~/a").stdout == "2\n1\n"
    assert len(ready(sandbox)) == 2


def test_it_is_dropped_when_other_layers_are_mounted(sandbox: Sandbox, mounting: list[str]) -> None:
    sandbox.run("echo 1 > a")
    point = sandbox.snapshot()
    for change in (lambda: sandbox.restore(point), sandbox.discard):
        sandbox.run("echo 2 > a")
        sandbox.snapshot()
        (stack,) = ready(sandbox).values()
        mounting.clear()
        change()
        assert not ready(sandbox)
        assert not stack.is_open
        shown = sandbox.run("cat a").stdout
        sandbox.run("echo more > b")
        sandbox.snapshot()
        assert threading.current_thread().name in mounting
        assert sandbox.run("cat a").stdout == shown
        assert sandbox.run("cat b").stdout == "more\n"


def test_a_background_program_has_it_dropped(sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    sandbox.snapshot()
    assert ready(sandbox)
    sandbox.run("echo 2 > a; sleep 77 &")
    point = sandbox.snapshot()
    assert point.method == "copy"
    assert not ready(sandbox)
    sandbox.run("echo 3 > a")
    sandbox.restore(point)
    assert sandbox.run("cat a").stdout == "2\n"


def test_it_does_not_count_as_another_user_of_the_layers(sandbox: Sandbox) -> None:
    sandbox.run("head -c 100000 /dev/zero > a")
    sandbox.snapshot().close()
    workspace = sandbox._now().workspace
    assert isinstance(workspace, OverlayWorkspace)
    assert ready(sandbox)
    tree = workspace.trees["/workspace"]
    assert not any(tree.is_shared(layer) for layer in tree.stack.frozen)


def test_it_ends_with_the_sandbox(tmp_path: Path) -> None:
    with Sandbox(tmp_path) as keeps_the_fork_server:
        keeps_the_fork_server.run("true")
        with Sandbox(tmp_path) as sandbox:
            sandbox.run("echo 1 > a")
            sandbox.snapshot().close()
            made = ready(sandbox)
            (stack,), (mount,) = made.values(), made.mounts
            assert os.path.isdir(stack.top.path)
            identity = os.fstat(mount)
        wait_for_jobs()
        assert not made.mounts
        assert not stack.is_open
        assert not os.path.exists(stack.top.path)
        open_now = []
        for name in os.listdir("/proc/self/fd"):
            try:
                status = os.fstat(int(name))
            except OSError:
                continue  # that of the listing
            open_now.append((status.st_dev, status.st_ino))
        assert (identity.st_dev, identity.st_ino) not in open_now


def test_a_preparation_that_fails_or_comes_late_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    main, make, opened = threading.current_thread().name, SandboxProcess.make_trees, threading.Event()
    fails = True

    def made(self: SandboxProcess, layers: Mapping[str, OverlayDirs], line: int) -> None:
        if threading.current_thread().name != main:
            if fails:
                raise LaunchFailed("no room")
            assert opened.wait(30)
        make(self, layers, line)

    monkeypatch.setattr(SandboxProcess, "make_trees", made)
    with Sandbox() as sandbox:
        for number in range(6):
            if number == 3:
                assert not ready(sandbox)
                fails = False
            sandbox.run(f"echo {number} > a")
            assert sandbox.snapshot().method == "swap"
            assert sandbox.run("cat a").stdout == f"{number}\n"
        opened.set()
        sandbox.run("echo last > a")
        sandbox.snapshot()
        assert sandbox.run("cat a").stdout == "last\n"
        assert until(lambda: bool(ready(sandbox)))


@pytest.mark.slow
def test_nothing_of_it_is_left_by_a_program_that_is_killed() -> None:
    with tempfile.TemporaryDirectory(prefix="layers-") as place:
        os.chmod(place, 0o711)
        code = f"""
import os, signal, sys
sys.path.insert(0, {str(SRC)!r})
os.environ["STADDLE_LAYERS"] = {place!r}
from staddle import Sandbox
from staddle.background import wait_for_jobs

sb = Sandbox(history=True)
sb.run("echo 1 > a", check=True)
wait_for_jobs()
assert sb._now().workspace._prepared._ready
os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert until(lambda: stores_are_empty(place))
