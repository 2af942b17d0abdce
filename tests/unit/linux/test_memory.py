"""The memory that is available: the least of what the machine and every cgroup on the way have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from staddle.linux import memory

_MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1024 kB\nMemAvailable: {} kB\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group(root: Path, path: str, limit: str, used: int, cached: int = 0) -> None:
    write(root / path / "memory.max", limit)
    write(root / path / "memory.current", str(used))
    write(root / path / "memory.stat", f"anon 5\ninactive_file {cached}\nactive_file 0\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", _MEMINFO.format(8 << 20))
    write(tmp_path / "proc/self/cgroup", "0::/pod/own\n")
    write(tmp_path / "proc/self/mountinfo", "30 20 0:26 / /cg rw shared:1 - cgroup2 cgroup2 rw\n")
    group(tmp_path, "cg/pod/own", "max", 0)
    group(tmp_path, "cg/pod", "max", 0)
    return tmp_path


def test_without_limited_groups_it_is_the_machines(root: Path) -> None:
    assert memory.measure(str(root)) == 8 << 30


def test_a_limit_further_up_counts(root: Path) -> None:
    group(root, "cg/pod", str(300 << 20), 100 << 20)
    assert memory.measure(str(root)) == 200 << 20


def test_content_of_files_can_be_dropped(root: Path) -> None:
    group(root, "cg/pod/own", str(300 << 20), 250 << 20, cached=150 << 20)
    assert memory.measure(str(root)) == 200 << 20


def test_a_full_group_has_nothing_left(root: Path) -> None:
    group(root, "cg/pod/own", "4096", 8192)
    assert memory.measure(str(root)) == 0


def test_version_1_says_a_huge_number_for_no_limit(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:memory:/own\n0::/\n")
    write(root / "proc/self/mountinfo", "30 20 0:26 / /cg rw - cgroup cgroup rw,memory\n")
    write(root / "cg/own/memory.limit_in_bytes", "9223372036854771712")
    assert memory.measure(str(root)) == 8 << 30


def test_this_machine_has_some() -> None:
    assert 0 < memory.available() <= 1 << 50
