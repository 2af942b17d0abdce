"""What is written to a group, on paper: directories with the files that a kernel would show there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from staddle import Limits
from staddle.errors import LaunchFailed
from staddle.limits import sandbox_cgroups
from staddle.limits.cgroup_layout import CgroupParent
from staddle.limits.sandbox_cgroups import SandboxCgroups
from staddle.limits.usage import Events, GroupMeter
from staddle.linux import open_files

FILES = {
    "cgroup.procs": "",
    "cgroup.kill": "",
    "cgroup.freeze": "0\n",
    "cgroup.events": "populated 1\nfrozen 1\n",
    "cpu.max": "max 100000\n",
    "cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.current": "1000\n",
    "memory.events": "low 0\noom 1\noom_kill 2\n",
    "pids.max": "max\n",
    "pids.events": "max 7\n",
}


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def unified(path: Path) -> SandboxCgroups:
    return SandboxCgroups(
        {CgroupParent(2, str(path.parent), frozenset({"memory", "cpu", "pids"})): str(path)}
    )


def test_limits_of_the_second_version_are_written(paper: Path) -> None:
    unified(paper).limit(Limits(memory="64M", cpu=2, processes=10), ours=1)
    assert (paper / "memory.max").read_text().startswith("67108864")
    assert (paper / "memory.swap.max").read_text().startswith("0")
    assert (paper / "cpu.max").read_text().startswith("200000 100000")
    assert (paper / "pids.max").read_text().startswith("11")


def test_a_kernel_without_swap_is_fine_and_one_without_the_limit_is_not(paper: Path) -> None:
    (paper / "memory.swap.max").unlink()
    unified(paper).limit(Limits(memory="64M"))
    (paper / "memory.max").unlink()
    with pytest.raises(LaunchFailed, match=r"limits\.memory could not be set"):
        unified(paper).limit(Limits(memory="64M"))


def test_only_what_a_group_has_is_set_in_it(paper: Path) -> None:
    SandboxCgroups({CgroupParent(2, "", frozenset({"pids"})): str(paper)}).limit(
        Limits(memory="64M", processes=3)
    )
    assert (paper / "memory.max").read_text() == "max\n"
    assert (paper / "pids.max").read_text().startswith("3")


def test_freezing_and_killing_are_words_to_the_kernel(paper: Path) -> None:
    group = unified(paper)
    assert group.freeze()
    assert (paper / "cgroup.freeze").read_text().startswith("1")
    group.thaw()
    assert (paper / "cgroup.freeze").read_text().startswith("0")
    group.kill()
    assert (paper / "cgroup.kill").read_text() == "1"


def test_to_go_on_needs_no_room_for_another_file(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "no room")

    group, before = unified(paper), open_files.count()
    assert group.freeze()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        group.thaw()
    assert (paper / "cgroup.freeze").read_text().startswith("0")
    assert group.freeze()
    monkeypatch.setattr(sandbox_cgroups, "removed", lambda _: True)
    group.leave()
    assert open_files.count() == before


def test_members_that_cannot_be_read_are_not_none(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(number: int) -> None:
        def members(_: str) -> list[int]:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(sandbox_cgroups.cgroups, "members", members)

    for number in (errno.ENOENT, errno.ENODEV):
        failing(number)
        assert unified(paper).members() == set(), "it is removed"
    failing(errno.EMFILE)
    with pytest.raises(OSError, match="open files"):
        unified(paper).members()


def test_events_and_usage_are_read(paper: Path) -> None:
    meter = GroupMeter(unified(paper))
    assert meter.events() == Events(out_of_memory=2, refused_processes=7)
    total = meter.total(5.0)
    assert (total.user, total.system, total.memory) == (2.0, 1.0, 1000)
    meter.begin()
    (paper / "cpu.stat").write_text("usage_usec 4500000\nuser_usec 3000000\nsystem_usec 1500000\n")
    used = meter.end(1.0)
    assert (used.user, used.system) == (1.0, 0.5)
    meter.park()
