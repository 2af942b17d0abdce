"""The home, /tmp and /var/tmp of a sandbox: its own, like a machine's, and part of all that layers can do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Policy, Sandbox
from staddle.errors import InvalidCall
from staddle.forkserver import client
from staddle.layers import trash
from staddle.sandbox.workspace import stores
from tests.support.waiting import until

PLACES = ("/home/user", "/tmp", "/var/tmp")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "file").write_text("of the host\n")
    return directory


@pytest.fixture
def sandbox(project: Path) -> Iterator[Sandbox]:
    with Sandbox(project) as made:
        yield made


def written(sandbox: Sandbox) -> str:
    return sandbox.run("cat ~/h /tmp/t /var/tmp/v /workspace/w 2>&1 | grep -v 'No such'").stdout


WRITE = "for p in ~/h /tmp/t /var/tmp/v /workspace/w; do echo {0} > $p; done"


# ---------------------------------------------------------------- what it is


def test_it_is_the_users_and_everybodys_as_on_any_machine(sandbox: Sandbox) -> None:
    said = sandbox.run(
        "stat -c '%U %a' /tmp /var/tmp; stat -c %U ~; [ -w ~ ] && [ -O ~ ] && echo mine"
    ).stdout
    owner = "user" if os.geteuid() else "root"  # an ordinary user has one id
    assert said == f"{owner} 1777\n{owner} 1777\nuser\nmine\n"


@pytest.mark.parametrize("place", PLACES)
def test_everything_that_programs_do_with_files_can_be_done_there(sandbox: Sandbox, place: str) -> None:
    script = """
import fcntl, mmap, os, socket, stat, subprocess, sys, tempfile
os.chdir(sys.argv[1])
os.mkfifo("pipe"); assert stat.S_ISFIFO(os.stat("pipe").st_mode)
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
    server.bind("socket"); server.listen(); client.connect("socket")
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600); os.write(unnamed, b"x")
os.link(f"self/fd/{unnamed}", "named", src_dir_fd=os.open("/proc", 0)); assert open("named").read() == "x"
open("one", "w").write("a" * 4096); os.link("one", "two"); assert os.stat("one").st_nlink == 2
with open("one", "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with mmap.mmap(file.fileno(), 4096) as view: view[:1] = b"b"
assert open("two").read(1) == "b"
open("program", "w").write("#!/bin/sh\\necho ran\\n"); os.chmod("program", 0o755)
assert subprocess.run(["./program"], capture_output=True).stdout == b"ran\\n"
os.makedirs("a/b"); os.rename("a", "c"); os.symlink("c/b", "link"); os.rename("one", "c/b/one")
os.setxattr("two", "user.note", b"n"); assert os.getxattr("two", "user.note") == b"n"
print("all", sorted(os.listdir()))
"""
    said = sandbox.exec(["python3", "-c", script, place])
    assert said.stdout.startswith("all "), said


def test_devices_and_other_users_rights_are_not_to_be_had_there(sandbox: Sandbox) -> None:
    assert not sandbox.run("mknod /tmp/null c 1 3").ok
    for place in PLACES:
        options = sandbox.run(f"findmnt -no OPTIONS {place}").stdout.split(",")
        assert {"nosuid", "nodev"} <= set(options)


def test_nothing_of_where_it_lies_can_be_seen(sandbox: Sandbox) -> None:
    store = os.path.basename(stores._stores[-1].path)
    for file in ("/proc/self/mountinfo", "/proc/mounts"):
        said = sandbox.run(f"cat {file}").stdout
        assert store not in said
        assert "staddle-" not in said


def test_what_is_granted_in_tmp_is_there_also_after_an_exchange(project: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "a").write_text("of the host\n")
    (tmp_path / "one").write_text("one\n")
    policy = Policy.agent().with_read(given, tmp_path / "one")
    with Sandbox(project, policy=policy) as sandbox:
        read = f"cat {given}/a {tmp_path}/one"
        assert sandbox.run(read).stdout == "of the host\none\n"
        assert sandbox.diff(everything=True) == []
        assert not sandbox.run(f"echo x > {given}/b").ok
        sandbox.run("echo 1 > /tmp/t")
        before = sandbox.snapshot()
        assert before.method == "swap"
        sandbox.run(f"rm -rf /tmp/* 2>/dev/null; {read}")
        sandbox.restore(before)
        assert sandbox.run(f"{read} /tmp/t").stdout == "of the host\none\n1\n"
        (fork,) = sandbox.fork()
        with fork:
            assert fork.run(f"{read} /tmp/t").stdout == "of the host\none\n1\n"
    assert (given / "a").read_text() == "of the host\n"


# ---------------------------------------------------------------- what can be done with it


def test_a_snapshot_brings_all_of_it_back(sandbox: Sandbox) -> None:
    sandbox.run(WRITE.format(1) + "; cd ~; x=1")
    before = sandbox.snapshot()
    assert before.method == "swap"
    sandbox.run("rm ~/h /tmp/t; echo 2 > /var/tmp/v; echo 2 > /workspace/w; cd /tmp; x=2")
    sandbox.restore(before)
    assert written(sandbox) == "1\n1\n1\n1\n"
    assert sandbox.run("pwd; ls; echo $x").stdout == "/home/user\nh\n1\n"


def test_a_shell_in_the_home_stays_there(sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p ~/deep/er; cd ~/deep/er")
    sandbox.snapshot()
    assert sandbox.run("echo new > file; pwd; ls ~/deep/er").stdout == "/home/user/deep/er\nfile\n"


def test_with_something_running_all_of_it_is_copied(sandbox: Sandbox) -> None:
    sandbox.run(WRITE.format(1))
    job = sandbox.start("echo started; exec sleep 60")
    before = sandbox.snapshot()
    assert before.method == "copy"
    sandbox.run(WRITE.format(2))
    job.kill()
    job.wait()
    sandbox.restore(before)
    assert written(sandbox) == "1\n1\n1\n1\n"


def test_a_file_in_the_home_that_is_open_for_writing_is_copied_too(sandbox: Sandbox) -> None:
    sandbox.run("exec 7> ~/h; echo 1 >&7")
    before = sandbox.snapshot()
    assert before.method == "copy"
    assert sandbox.run("echo 2 >&7; exec 7>&-; cat ~/h").stdout == "1\n2\n"
    sandbox.restore(before)
    assert sandbox.run("cat ~/h").stdout == "1\n"


def test_what_was_not_written_to_is_not_exchanged(sandbox: Sandbox) -> None:
    def mounts() -> list[str]:
        return sandbox.run("stat -c %d ~ /tmp /workspace").stdout.split()

    home, tmp, workspace = mounts()
    sandbox.run("echo 1 > w")
    before = sandbox.snapshot()
    assert mounts()[:2] == [home, tmp]
    assert mounts()[2] != workspace
    sandbox.restore(before)
    assert mounts()[:2] == [home, tmp]


def test_forks_continue_each_for_itself(sandbox: Sandbox) -> None:
    sandbox.run(WRITE.format(1))
    one, other = sandbox.fork(2)
    with one, other:
        one.run(WRITE.format("one"))
        assert written(other) == written(sandbox) == "1\n1\n1\n1\n"
        (again,) = one.fork()
        sandbox.close()
        one.close()
        with again:
            assert written(again) == "one\none\none\none\n"


def test_after_a_reset_it_is_empty(sandbox: Sandbox) -> None:
    sandbox.run(WRITE.format(1))
    sandbox.reset()
    assert written(sandbox) == ""
    assert sandbox.diff(everything=True) == []


@pytest.mark.slow
def test_a_chain_of_snapshots_stays_right(sandbox: Sandbox) -> None:
    points = []
    for number in range(40):
        sandbox.run(f"echo {number} > ~/h; echo {number} > /tmp/{number}")
        points.append(sandbox.snapshot())
    trash.wait()
    assert sandbox.run("ls /tmp | wc -l; cat ~/h").stdout == "40\n39\n"
    for number in (3, 38, 0):
        sandbox.restore(points[number])
        assert sandbox.run("ls /tmp | wc -l; cat ~/h").stdout == f"{number + 1}\n{number}\n"


# ---------------------------------------------------------------- changes


def test_changes_there_are_told_when_asked_for(sandbox: Sandbox) -> None:
    result = sandbox.run(WRITE.format(1))
    assert [change.path for change in result.changes if not change.elsewhere] == ["/workspace/w"]
    assert [change.path for change in sandbox.diff()] == ["/workspace/w"]
    found = [change.path for change in sandbox.diff(everything=True)]
    assert found == ["/workspace/w", "/home/user/h", "/tmp/t", "/var/tmp/v"]
    (change,) = sandbox.diff(["/tmp/t"])
    assert (change.kind, change.path) == ("added", "/tmp/t")
    assert "+1" in change.text_diff()
    sandbox.run("cd ~; mkdir -p a; echo x > a/b")
    assert [change.path for change in sandbox.diff(["a"])] == ["/home/user/a", "/home/user/a/b"]


def test_what_lies_in_no_layer_is_an_error(sandbox: Sandbox) -> None:
    for path in ("/etc/passwd", "/home", "/"):
        with pytest.raises(InvalidCall, match="not in the workspace"):
            sandbox.diff([path])
    with pytest.raises(InvalidCall, match="only what is under /workspace can be committed"):
        sandbox.commit(["/tmp/t"])


def test_dropped_changes_are_those_of_the_workspace_unless_others_are_named(sandbox: Sandbox) -> None:
    sandbox.run(WRITE.format(1))
    sandbox.discard()
    assert written(sandbox) == "1\n1\n1\n"
    sandbox.discard(["/tmp/t", "/home/user/h"])
    assert written(sandbox) == "1\n"


def test_a_commit_takes_nothing_of_it(sandbox: Sandbox, project: Path) -> None:
    sandbox.run(WRITE.format(1))
    sandbox.commit()
    assert sorted(os.listdir(project)) == ["file", "w"]


# ---------------------------------------------------------------- gone


@pytest.mark.parametrize("mode", ["bind", "readonly"])
def test_without_layers_it_is_gone_with_the_sandbox(project: Path, mode: str) -> None:
    with Sandbox(project, mode=mode) as sandbox:
        said = sandbox.run("echo 1 > ~/h; cat ~/h; for p in ~ /tmp; do findmnt -no FSTYPE $p; done")
        assert said.stdout == "1\ntmpfs\ntmpfs\n"


def test_nothing_is_left_of_it(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run(WRITE.format(1))
        paths = layers(sandbox)
        with sandbox.fork()[0] as fork:
            fork.run(WRITE.format(2))
            point = fork.snapshot()
            paths |= layers(fork)
        paths |= layers(sandbox)
        point.close()
        assert len(paths) == 8
    trash.wait()
    assert not any(map(os.path.exists, paths))


def layers(sandbox: Sandbox) -> set[str]:
    """Those that are worked on, and those below them."""
    found = sandbox._inside.workspace
    assert found is not None
    return {os.path.dirname(path) for path in found.written()}


def test_what_was_made_ahead_goes_with_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_stores", [])  # one of its own, so that nobody else makes anything there
    with Sandbox() as sandbox:
        (store,) = stores._stores
        (server,) = (one for key, one in client._servers.items() if store.path.encode() in key.skeleton)

        def ahead() -> set[str]:
            return {name for name in os.listdir(store.path) if name.startswith("prewarmed-")}

        (mine,) = (os.path.basename(path) for path in layers(sandbox) if "/prewarmed-" in path)
        assert until(lambda: len(ahead()) > 1)
        server.close()
        assert ahead() == {mine}
    trash.wait()
    assert ahead() == set()
    store.close()
