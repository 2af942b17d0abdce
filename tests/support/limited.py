"""For the tests of limits: processes in control groups of their own, or alone without any."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from staddle import Limits
from staddle.forkserver import client
from staddle.layers import trash
from staddle.limits import cgroup_layout, host_cgroups
from staddle.limits.cgroup_tree import CgroupTree
from staddle.limits.sandbox_cgroups import SandboxCgroups
from staddle.sandbox.open.next_sandbox import NEXT
from tests.support.in_a_child import SRC

GROUPS = "/sys/fs/cgroup"


def means() -> cgroup_layout.CgroupSupport:
    """What this machine has to hold limits with."""
    return cgroup_layout.decide(host_cgroups.observe())


@pytest.fixture(autouse=True, scope="module")
def no_groups_left() -> Iterator[None]:
    """To be imported: the tests of a module leave no group behind."""
    yield
    host_cgroups.close()
    assert leftovers() == []


@contextlib.contextmanager
def family() -> Iterator[CgroupTree]:
    """Groups of our own, and none of them afterwards."""
    before = leftovers()  # of sandboxes that are kept ready in this process
    made = CgroupTree(means())
    try:
        yield made
    finally:
        made.close()
        assert set(leftovers()) <= set(before)


def leftovers(pid: int | None = None) -> list[str]:
    """The groups of this process, or of another, that still exist."""
    found = []
    for place, names, _ in os.walk(GROUPS):  # and not by glob: groups of others go meanwhile
        found += [f"{place}/{name}" for name in names if name.startswith("staddle-")]
    return [path for path in found if path.rpartition("/")[2].split("-")[2:3] == [str(pid or os.getpid())]]


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[SandboxCgroups]:
    """The groups of one sandbox."""
    with family() as whole:
        group = whole.group(limits)
        try:
            yield group
        finally:
            assert group.close()


def started(group: SandboxCgroups, code: str) -> subprocess.Popen[str]:
    """Python that puts itself into the group, is alone in a pid namespace, and then runs `code`."""
    cgroup_fds = group.cgroup_fds()
    try:
        text = (
            f"import sys; sys.path.insert(0, {str(SRC)!r})\nimport errno, os, signal, time\n"
            f"from staddle.linux import cgroups\ncgroups.enter({cgroup_fds!r})\n{textwrap.dedent(code)}"
        )
        return subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-I", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=cgroup_fds,
        )
    finally:
        for fd in cgroup_fds:
            os.close(fd)


def ran(group: SandboxCgroups, code: str, timeout: float = 30) -> tuple[str, int]:
    """What such a process prints, and its exit status."""
    with started(group, code) as child:
        try:
            out, _ = child.communicate(timeout=timeout)
        except BaseException:
            group.kill()
            raise
    return out.strip(), child.returncode


def groups_in_use() -> list[str]:
    """The groups of sandboxes of ours, which are two levels below what we are in; but those that wait."""
    trash.wait()  # some may be in the making
    NEXT.close()
    ahead = [server.cgroups for server in client._servers.values() if server.cgroups is not None]
    groups = [group for one in ahead for group in (*one._waiting, *(made[0] for made in one._stock))]
    waiting = {tail for group in groups for tail in group.tails}
    found = [path for own in leftovers() for path in Path(own).iterdir() if path.is_dir()]
    return [str(path) for path in found if f"{path.parent.name}/{path.name}" not in waiting]


#: A program that nobody may look into, with a file in memory that is in no process's own.
HIDDEN = """
import ctypes, os, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
fd = os.memfd_create('x')
for _ in range(150): os.write(fd, bytes(1 << 20))
time.sleep(20)
"""
