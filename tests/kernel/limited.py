"""For the tests of limits: processes in control groups of their own, or alone without any."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from staddle import Limits
from staddle.limits import host, where
from staddle.limits.family import Family
from staddle.limits.group import Group
from tests.kernel.in_a_child import SRC

GROUPS = "/sys/fs/cgroup"


def means() -> where.Means:
    """What this machine has to hold limits with."""
    return where.decide(host.observe())


@contextlib.contextmanager
def family() -> Iterator[Family]:
    """Groups of our own, and none of them afterwards."""
    made = Family(means())
    try:
        yield made
    finally:
        made.close()
        assert leftovers() == []


def leftovers() -> list[str]:
    """The groups of this process that still exist."""
    pid = os.getpid()
    return [str(path) for path in Path(GROUPS).rglob("staddle-*") if path.name.split("-")[2:3] == [str(pid)]]


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[Group]:
    """The groups of one sandbox."""
    with family() as whole:
        group = whole.group(limits)
        try:
            yield group
        finally:
            assert group.close()


def started(group: Group, code: str) -> subprocess.Popen[str]:
    """Python that puts itself into the group, is alone in a pid namespace, and then runs `code`."""
    doors = group.doors()
    try:
        text = (
            f"import sys; sys.path.insert(0, {str(SRC)!r})\nimport errno, os, signal, time\n"
            f"from staddle.linux import cgroups\ncgroups.enter({doors!r})\n{textwrap.dedent(code)}"
        )
        return subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-I", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=doors,
        )
    finally:
        for fd in doors:
            os.close(fd)


def ran(group: Group, code: str, timeout: float = 30) -> tuple[str, int]:
    """What such a process prints, and its exit status."""
    with started(group, code) as child:
        try:
            out, _ = child.communicate(timeout=timeout)
        except BaseException:
            group.kill()
            raise
    return out.strip(), child.returncode
