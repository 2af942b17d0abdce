"""Version 2 without systemd: sandboxes are in a sibling of the program's own cgroup, which has processes.

The program sees a cgroup namespace of its own, as in a container. There nobody delegates anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_a_child import SRC
from tests.support.limited import family, means
from tests.support.waiting import next_line, until

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.skipif(means().version("memory") != 2, reason="version 2 has no controllers here"),
]

#: Enters the namespace: `top` is its root, and contains `program` with us and a process of somebody else.
ENTERED = f"""
import json, os, subprocess, sys, time
sys.path.insert(0, {str(SRC)!r})
from staddle.linux import cgroups, mounts, userns
from staddle.linux.syscalls import call
TOP, OWN = '/sys/fs/cgroup', '/sys/fs/cgroup/program'
cgroups.add(sys.argv[1], os.getpid())
call('unshare', userns.CLONE_NEWCGROUP | mounts.CLONE_NEWNS)
mounts.mount(None, '/', flags=mounts.MS_REC | mounts.MS_PRIVATE)
mounts.mount('none', TOP, 'tmpfs')  # else the file system of version 2 would be mounted on itself
mounts.mount('cgroup2', TOP, 'cgroup2')
if os.path.isdir('/run/systemd'):
    mounts.mount('none', '/run/systemd', 'tmpfs')
os.mkdir(OWN)
other = subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL)
for pid in (os.getpid(), other.pid):
    cgroups.add(OWN, pid)
cgroups.enable(TOP, frozenset({{'memory', 'cpu', 'pids'}}))
from staddle import Policy, Sandbox, wrap
from staddle.limits import host_cgroups
from staddle.limits.enforced import usable

def siblings():
    return [name for name in os.listdir(TOP) if name.startswith('staddle-')]

def tell(**found):
    found['other'] = other.pid
    found['still there'] = other.poll() is None and other.pid in cgroups.members(OWN)
    found['enabled in its own'] = cgroups.read(OWN, 'cgroup.subtree_control')
    found['enabled above'] = sorted(cgroups.read(TOP, 'cgroup.subtree_control').split())
    print(json.dumps(found), flush=True)
"""
HOG = "x = bytearray(150 << 20); import time; time.sleep(20)"
HELD = """
policy = Policy.agent().with_limits(memory='64M', processes=50, cpu=0.5)
with Sandbox(policy=policy) as sb:
    by = {limit.limit: limit.by for limit in sb.enforced.limits}
    hog = sb.exec(['python3', '-c', HOG])
    during = siblings()
    members = [pid for name in during for place, _, _ in os.walk(f'{TOP}/{name}')
               for pid in cgroups.members(place)]
alone = wrap(['python3', '-c', HOG], policy, backend='namespaces')
told = {limit.limit: limit.by for limit in alone.enforced.limits}
done = alone.run(capture_output=True)
host_cgroups.close()
limits = ('memory', 'processes', 'cpu')
tell(session=[by[name] for name in limits], alone=[told[name] for name in limits], hog=str(hog.reason),
     reason=done.reason, one=len(during), inside=bool(members), left=siblings())
"""
KILLED = """
sb = Sandbox(policy=Policy.agent().with_limits(memory='64M'))
sb.run('sleep 100 &')
tell(siblings=siblings())
time.sleep(100)
"""
LIMITED = """
cgroups.write(OWN, 'pids.max', '1000')
found = usable()
tell(places=[len(place.controllers) for place in found.places], why=found.reason('memory'), left=siblings())
"""
UNTOUCHED = {"still there": True, "enabled in its own": "", "enabled above": ["cpu", "memory", "pids"]}


@pytest.fixture
def top() -> Iterator[Path]:
    """A cgroup with controllers to enable in it; nothing is left in it."""
    with family() as whole:
        base = next(own for place, own in whole._own.items() if "memory" in place.controllers)
        made = Path(base, "top")
        made.mkdir()
        try:
            yield made
            assert not [path for path in made.iterdir() if path.is_dir()]
        finally:
            for path in [path for path in made.iterdir() if path.is_dir()]:  # it has failed
                (path / "cgroup.kill").write_text("1")
                until(lambda path=path: not (path / "cgroup.procs").read_text())
                path.rmdir()
            made.rmdir()


def program(top: Path, code: str) -> subprocess.Popen[str]:
    text = f"{ENTERED}\nHOG = {HOG!r}\n{code}"
    return subprocess.Popen(
        [sys.executable, "-I", "-c", text, str(top)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def ended(top: Path, other: int) -> None:
    """End the process of somebody else, which nothing else has ended, and remove its cgroup."""
    processes = top / "program/cgroup.procs"  # ours take a moment to end
    assert until(lambda: processes.read_text().split() == [str(other)]), processes.read_text()
    (top / "program/cgroup.kill").write_text("1")
    assert until(lambda: not (top / "program/cgroup.procs").read_text())
    (top / "program").rmdir()


def told(top: Path, code: str) -> dict[str, Any]:
    """What the program tells, which has ended."""
    with program(top, code) as child:
        said = next_line(child)
    assert said, "it failed"
    found: dict[str, Any] = json.loads(said)
    ended(top, found.pop("other"))
    return found


def test_all_limits_are_held_by_a_sibling_of_its_own_group_which_is_left_alone(top: Path) -> None:
    by = ["a control group (version 2)"] * 3
    assert told(top, HELD) == {
        **UNTOUCHED,
        "session": by,
        "alone": by,
        "hog": "memory",
        "reason": "memory",
        "one": 1,
        "inside": True,
        "left": [],
    }


def test_the_sibling_goes_with_a_program_that_is_killed(top: Path) -> None:
    with program(top, KILLED) as child:
        found = json.loads(next_line(child))
        (sibling,) = found["siblings"]
        assert (top / sibling).is_dir()
        child.kill()
    assert until(lambda: not (top / sibling).exists())
    ended(top, found["other"])


def test_no_limit_of_its_own_group_is_escaped(top: Path) -> None:
    found = told(top, LIMITED)
    assert "pids.max" in found.pop("why")[0]
    assert found == {**UNTOUCHED, "places": [0], "left": []}
