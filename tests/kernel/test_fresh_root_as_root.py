"""Run by root, the sandbox is nobody, and what it is granted is its own all the same."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fresh_roots import SANDBOX, run, shell, started, system, tree
from tests.support.in_a_child import captured
from tests.support.waiting import next_line
from tests.unit.mounts.plans import read, write

pytestmark = [pytest.mark.needs_root, pytest.mark.usefixtures("fresh_root")]


def test_it_is_not_root_on_the_host_and_cannot_write_the_kernels_settings() -> None:
    launch = SANDBOX.prepare(
        system(), ("/bin/sh", "-c", "echo x > /proc/sys/kernel/core_pattern; echo tried; read x")
    )
    process = started(launch, stdin=subprocess.PIPE)
    assert next_line(process) == "tried\n"
    status = Path(f"/proc/{process.pid}/status").read_text()
    ids = {line.split()[1] for line in status.splitlines() if line.startswith(("Uid:", "Gid:"))}
    groups = next(line.split()[1:] for line in status.splitlines() if line.startswith("Groups:"))
    _, err = process.communicate("\n", timeout=10)
    os.close(launch.status or 0)
    assert len(ids) == 1
    assert int(ids.pop()) > 1_000_000_000
    assert groups == []
    assert "Permission denied" in err


@pytest.mark.parametrize(("uid", "gid"), [(0, 0), (4321, 8765)])
def test_files_belong_to_the_owner_of_the_grant(uid: int, gid: int, tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir(mode=0o700)
    (ws / "private").write_text("private")
    (ws / "foreign").write_text("foreign")
    (ws / "group").write_text("group")
    (ws / "private").chmod(0o600)
    (ws / "foreign").chmod(0o600)
    for path, owner in ((ws, (uid, gid)), (ws / "private", (uid, gid)), (ws / "group", (uid, 77))):
        os.chown(path, *owner)
    os.chown(ws / "foreign", 55, 55)
    ran = shell(
        system(grants=(write(str(ws)),), cwd=str(ws)),
        "cat private; echo more >> private; echo new > new; mkdir d; echo more >> group; cat foreign; id -u;"
        " stat -c %u private foreign; chown 0 new; chmod u+s new",
    )
    assert ran.out.split() == ["private1000", "1000", "65534"]
    for name in ("private", "new", "d"):
        made = (ws / name).stat()
        assert (made.st_uid, made.st_gid) == (uid, gid)
    assert (ws / "group").read_text() == "groupmore\n"
    assert not stat.S_IMODE((ws / "new").stat().st_mode) & 0o6000


def test_a_read_grant_in_roots_home_is_readable_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    (tmp_path / "f").chmod(0o600)
    ran = shell(system(grants=(read(str(tmp_path)),), cwd=str(tmp_path)), "cat f; echo x > f; touch n; rm f")
    assert ran.out == "f"
    assert tree(tmp_path) == {"f": b"f"}


def test_what_only_root_may_read_in_the_system_stays_roots() -> None:
    ran = shell(system(grants=(read("/etc"),)), "cat /etc/shadow; cat /etc/passwd | head -c 5")
    assert ran.out == "root:"


def test_what_is_mounted_below_a_grant_is_seen(tmp_path: Path) -> None:
    script = (
        "import ctypes, os\n"
        "from tests.support.fresh_roots import shell, system\n"
        "from tests.unit.mounts.plans import write\n"
        "from staddle.linux.mounts import mount, private_namespace\n"
        "private_namespace()\n"
        f"os.mkdir('{tmp_path}/m'); mount('tmpfs', '{tmp_path}/m', 'tmpfs')\n"
        f"open('{tmp_path}/m/f', 'w').write('below')\n"
        f"os.mkdir('{tmp_path}/p'); mount('proc', '{tmp_path}/p', 'proc')\n"
        f"r = shell(system(grants=(write('{tmp_path}'),)), 'cat {tmp_path}/m/f; ls {tmp_path}/p | wc -l')\n"
        "print(r.out, r.err)"
    )
    assert in_python(script).split()[0].startswith("below")


def test_a_filesystem_that_cannot_translate_owners_is_a_gap_and_refused(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from staddle.linux.mounts import mount, private_namespace\n"
        "from tests.support.fresh_roots import SANDBOX, refused, system\n"
        "from tests.unit.mounts.plans import write\n"
        "private_namespace()\n"
        f"t = '{tmp_path}'\n"
        "mount('tmpfs', t, 'tmpfs')\n"
        "for n in 'luwm': os.mkdir(f'{t}/{n}')\n"
        "mount('overlay', f'{t}/m', 'overlay', options=f'lowerdir={t}/l,upperdir={t}/u,workdir={t}/w')\n"
        "plan = system(grants=(write(f'{t}/m'),))\n"
        "print([(g.protection, g.documented) for g in SANDBOX.gaps(plan)])\n"
        "print(refused(plan))\n"
    )
    out = in_python(script)
    assert out.startswith("[('write', False)]\n")
    assert "cannot translate owners" in out


def test_the_calling_process_keeps_its_mounts(tmp_path: Path) -> None:
    before = os.readlink("/proc/self/ns/mnt")
    run(system(grants=(write(str(tmp_path)),)), "/bin/true")
    assert {os.readlink(f"/proc/self/task/{t}/ns/mnt") for t in os.listdir("/proc/self/task")} == {before}


def in_python(script: str) -> str:
    """Run a script in an interpreter of its own, which may change its mounts."""
    here = Path(__file__).parents[2]
    done = captured([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": f"{here}:{here}/src"})
    assert done.returncode == 0, done.stderr
    return done.stdout
