"""A process of a session is held like a command of its own: every protection, and no gap.

And nothing of what makes the session can be reached from inside: its first process and the fork
server, the layers that changes are kept in, the files between the host program and the shells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Sandbox
from staddle.errors import StaddleError
from staddle.sandbox.workspace import stores
from tests.support.sandboxes import descriptors, open_none_in_advance
from tests.support.waiting import until

from .checks import Containment
from .switches.session import IN_PYTHON


class TestSession(Containment):
    backend = "session"

    def test_it_declares_no_gap(self) -> None:
        assert self.report()["gaps"] == []

    def test_everything_ends_with_whoever_started_it(self) -> None:
        """Killing the host program is tried in tests/kernel/test_forkserver.py."""


class TestSessionByCallsInPython(TestSession):
    """As where the machine code of call lists cannot be used."""

    edits = (IN_PYTHON,)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    (tmp_path / "of-the-host").write_text("x")
    with Sandbox(tmp_path, backend="namespaces") as made:
        yield made


#: Every way to a directory that any process in sight has, and every mount; where the file `sys.argv[1]` is.
LOOK_EVERYWHERE = """
import json, os, sys
ways = ["", "/..", *(f"{up}/{name}" for up in ("", "/..") for name in ("workspace", "upper", "work"))]
ways += [f"{way}/work" for way in ways if way.endswith("/work")]
places = [line.split()[4] for line in open("/proc/self/mountinfo")]
for pid in filter(str.isdigit, os.listdir("/proc")):
    places += [f"/proc/{pid}/root", f"/proc/{pid}/cwd"]
    try:
        places += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        pass
found = set()
for place in places:
    for way in ways:
        try:
            status = os.stat(f"{place}{way}/{sys.argv[1]}")
            found.add((status.st_dev, status.st_ino))
        except OSError:
            pass
print(json.dumps(sorted(found)))
"""


def test_a_file_is_in_the_workspace_and_nowhere_else(sandbox: Sandbox, tmp_path: Path) -> None:
    """Neither the layer that it is really in, nor the directory of the host below it."""
    sandbox.run("touch new; sleep 60 & sleep 60 < of-the-host &", check=True)
    for name in ("new", "of-the-host"):
        seen = json.loads(sandbox.exec(["/usr/bin/python3", "-c", LOOK_EVERYWHERE, name], check=True).stdout)
        there = json.loads(
            sandbox.exec(
                [
                    "/usr/bin/python3",
                    "-c",
                    f"import os; s = os.stat('{name}'); print([s.st_dev, s.st_ino])",
                ]
            ).stdout
        )
        assert seen == [there]


def test_the_mount_table_names_neither_the_workspace_nor_its_layers(sandbox: Sandbox, tmp_path: Path) -> None:
    table = sandbox.run("cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats").stdout
    assert " /workspace " in table
    for path in (tmp_path, *(store.path for store in stores._stores)):
        assert str(path) not in table
    for word in table.replace(",", " ").split():
        if word.startswith(("lowerdir", "upperdir", "workdir")):
            assert "=/proc/self/fd/" in word, word


def test_only_processes_of_the_sandbox_are_in_sight(sandbox: Sandbox) -> None:
    sandbox.session("other").run("true")
    names = sandbox.run("cat /proc/[0-9]*/comm").stdout.split()
    assert names == ["staddle-forkser", "bash", "bash"]


def test_no_socket_of_the_host_is_in_sight(sandbox: Sandbox) -> None:
    """Only the lines between the first process and the host program, which have no name."""
    rows = sandbox.run("cat /proc/net/unix").stdout.splitlines()[1:]
    assert [row for row in rows if len(row.split()) > 7] == []


def test_shells_of_a_sandbox_can_read_each_other_but_change_nothing(sandbox: Sandbox) -> None:
    """They are one user in one place, and could as well trace each other."""
    other = sandbox.session("other")
    other.run("true")
    file = "/dev/.staddle/1t"
    said = sandbox.run(f"test -r {file} && cat {file} >/dev/null && echo read; echo x > {file}; rm -f {file}")
    assert said.stdout == "read\n"
    assert said.stderr.count("Read-only file system") == 2
    assert other.run("echo still").stdout == "still\n"


#: Says on every pipe of the shells what nobody asked for, and takes what was meant for them.
MEDDLE = """
import glob, os, random, select, time
talking, taking = {}, {}
until = time.monotonic() + 20
print("begun", flush=True)
while time.monotonic() < until:
    for path in glob.glob("/dev/.staddle/*") + glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if path.startswith("/dev/.staddle") and not os.path.isfile(path) and path not in talking:
                talking[path] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            elif os.readlink(path).startswith("pipe:") and not path.startswith(f"/proc/{os.getpid()}/"):
                taking.setdefault(path, os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            pass
    for path, fd in list(talking.items()):
        try:
            os.write(fd, random.choice([random.randbytes(100), b"0 0\\n", b"\\0", b"\\n"]) * 10)
        except BlockingIOError:
            pass
        except OSError:
            os.close(talking.pop(path))
    for fd in select.select(taking.values(), (), (), 0.001)[0]:
        try:
            os.read(fd, 4096)
        except OSError:
            pass
"""


def test_who_meddles_with_the_shells_of_a_sandbox_hurts_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes of its own commands is anybody's guess; the host program goes on, others notice nothing."""
    open_none_in_advance(monkeypatch)
    with Sandbox(backend="namespaces") as other:
        other.run("true")
        with Sandbox(tmp_path, backend="namespaces") as first:  # with which comes what stays
            first.run("sleep 9 &")
        before = descriptors()
        sandbox = Sandbox(tmp_path, backend="namespaces")
        meddling = sandbox.start(["/usr/bin/python3", "-c", MEDDLE])
        assert until(lambda: "begun" in meddling.output().stdout)
        for _ in range(3):
            try:
                sandbox.run("echo mine; sleep 0.05", timeout=1)
            except StaddleError:
                break
        assert other.run("echo there").stdout == "there\n"
        sandbox.close()
        made_ahead = 3  # the files of cgroups for the next sandbox, if there were none of them before
        assert until(lambda: descriptors() <= before + made_ahead)
        assert other.run("echo still there").stdout == "still there\n"
    assert os.listdir(tmp_path) == []
