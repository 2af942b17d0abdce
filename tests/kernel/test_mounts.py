"""Mounts, tried in a child with namespaces of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from staddle.errors import LaunchFailed
from staddle.linux.own_mounts import with_own_mounts
from staddle.linux.process_tree import descendants
from tests.support.in_a_child import captured

HERE = Path(__file__).parent
ROOT = os.geteuid() == 0

IN_OWN_NAMESPACE = """
import os, sys
from staddle.linux import mounts, userns
from staddle.linux.syscalls import call
if os.geteuid():
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", userns.CLONE_NEWUSER)
    userns.map_ids(uid, gid, 0, 0)
mounts.private_namespace()
root = sys.argv[1]
mounts.mount("tmpfs", root, "tmpfs")
def made(name):
    os.mkdir(f"{root}/{name}")
    return os.open(f"{root}/{name}", os.O_PATH)
def refuses(call_, *args):
    try:
        call_(*args)
    except OSError as error:
        return error.errno
    return 0
"""


def in_child(script: str, tmp_path: Path) -> str:
    done = captured(
        [sys.executable, "-c", IN_OWN_NAMESPACE + script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_child_mounts_is_not_seen_here(tmp_path: Path) -> None:
    before = Path("/proc/self/mountinfo").read_bytes()
    out = in_child('print(os.path.ismount(root)); open(root + "/f", "w"); print(os.listdir(root))', tmp_path)
    assert out == "True\n['f']\n"
    assert list(tmp_path.iterdir()) == []
    assert Path("/proc/self/mountinfo").read_bytes() == before


def test_a_copy_comes_with_what_is_mounted_below_and_can_be_made_read_only(tmp_path: Path) -> None:
    script = """
source, target = made("source"), made("target")
os.mkdir(f"{root}/source/below")
mounts.mount("tmpfs", f"{root}/source/below", "tmpfs")
open(f"{root}/source/below/f", "w").write("below")
tree = mounts.clone_tree(source)
mounts.set_attributes(tree, mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV)
mounts.attach(tree, target)
print(open(f"{root}/target/below/f").read())
print(refuses(open, f"{root}/target/f", "w"), refuses(open, f"{root}/target/below/f", "w"))
print(refuses(open, f"{root}/source/f", "w"))
mounts.umount(f"{root}/target")
print(os.listdir(f"{root}/target"))
"""
    assert in_child(script, tmp_path).split("\n") == ["below", "30 30", "0", "[]", ""]


def test_only_the_mount_itself_when_told_so(tmp_path: Path) -> None:
    script = """
top = made("top")
os.mkdir(f"{root}/top/below")
mounts.mount("tmpfs", f"{root}/top", "tmpfs")
os.mkdir(f"{root}/top/below")
mounts.mount("tmpfs", f"{root}/top/below", "tmpfs")
mounts.set_attributes(os.open(f"{root}/top", os.O_PATH), mounts.ATTR_RDONLY, recursive=False)
print(refuses(open, f"{root}/top/f", "w"), refuses(open, f"{root}/top/below/f", "w"))
"""
    assert in_child(script, tmp_path) == "30 0\n"


def test_a_descriptor_is_a_place_to_mount_on_wherever_its_name_leads_now(tmp_path: Path) -> None:
    script = """
target = made("target")
os.rename(f"{root}/target", f"{root}/moved")
os.symlink("/", f"{root}/target")
mounts.mount("tmpfs", mounts.path_of(target), "tmpfs")
print(os.path.ismount(f"{root}/moved"))
"""
    assert in_child(script, tmp_path) == "True\n"


@pytest.mark.needs_root
def test_owners_are_translated_both_ways(tmp_path: Path) -> None:
    script = """
from staddle.linux.idmaps import translation
source, target = made("source"), made("target")
os.chown(f"{root}/source", 7, 8)
open(f"{root}/source/f", "w")
os.chown(f"{root}/source/f", 7, 8)
open(f"{root}/source/root", "w")
tree = mounts.clone_tree(source)
mounts.map_ids(tree, translation(7, 8, 1900000000))
mounts.attach(tree, target)
def ids(path): s = os.stat(f"{root}/{path}"); return s.st_uid, s.st_gid
print(ids("target/f"), ids("target/root"), ids("source/f"), flush=True)
os.chdir(root)  # the way there is root's alone
if os.fork() == 0:
    os.setgroups([]); os.setresgid(*[1900000000] * 3); os.setresuid(*[1900000000] * 3)
    open("target/new", "w")
    print(refuses(open, "target/root", "w"), flush=True)
    os._exit(0)
os.wait()
print(ids("target/new"), ids("source/new"))
"""
    stranger = "(1900000000, 1900000000)"
    assert in_child(script, tmp_path).split("\n")[:-1] == [
        f"{stranger} (0, 0) (7, 8)",
        "13",
        f"{stranger} (7, 8)",
    ]


class TestWorkApart:
    """An ordinary user's mounts are made by a child, and kept by descriptor."""

    def test_the_namespaces_are_left_and_the_child_is_not(self, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()

        def work() -> None:
            from staddle.linux.mounts import mount

            mount("tmpfs", str(tmp_path / "m"), "tmpfs")
            (tmp_path / "m/f").write_text("kept")

        before = descendants(os.getpid())  # whatever other tests have left to this process
        mounts, users = with_own_mounts(work)
        assert list((tmp_path / "m").iterdir()) == []
        assert set(descendants(os.getpid())) <= set(before)
        done = subprocess.run(
            [
                *("nsenter", f"--user=/proc/self/fd/{users}", f"--mount=/proc/self/fd/{mounts}"),
                *("--preserve-credentials", "cat", str(tmp_path / "m/f")),
            ],
            pass_fds=(mounts, users),
            capture_output=True,
            check=False,
        )
        assert done.stdout == b"kept", done.stderr
        os.close(mounts)
        os.close(users)

    def test_what_goes_wrong_is_told_here(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError) as missing:
            with_own_mounts(lambda: os.stat("/no/such\nfile") and None)
        assert missing.value.filename == "/no/such\nfile"

        def refuse() -> None:
            raise LaunchFailed("what", why="why", fix="fix")

        with pytest.raises(LaunchFailed) as refused:
            with_own_mounts(refuse)
        assert (refused.value.what, refused.value.why, refused.value.fix) == ("what", "why", "fix")
        with pytest.raises(Exception, match="ZeroDivisionError"):
            with_own_mounts(lambda: 1 / 0 and None)
        assert len(os.listdir("/proc/self/fd")) <= before

    def test_from_a_process_with_threads(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            for fd in with_own_mounts(lambda: None):
                os.close(fd)
        finally:
            stop.set()
            thread.join()
