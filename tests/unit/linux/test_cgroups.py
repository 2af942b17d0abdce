"""What the kernel says about control groups, read right."""

from __future__ import annotations

import pytest

from staddle.linux import cgroups
from staddle.linux.cgroups import Mount

UNIFIED = (
    b"30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
)
MEMORY = b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
CPU = b"36 31 0:33 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro,relatime - cgroup cgroup rw,cpu,cpuacct"
OTHER = b"23 27 0:22 / /sys rw,relatime - sysfs sysfs rw"


def test_hierarchies_are_found_among_other_mounts() -> None:
    found = cgroups.mounts(b"\n".join([OTHER, MEMORY, CPU, UNIFIED]))
    assert found == (
        Mount(2, frozenset(), "/sys/fs/cgroup", "/", False),
        Mount(1, frozenset({"cpu", "cpuacct"}), "/sys/fs/cgroup/cpu,cpuacct", "/docker/ab", True),
        Mount(1, frozenset({"memory"}), "/sys/fs/cgroup/memory", "/", False),
    )


def test_a_mount_with_odd_names_is_read_as_it_is() -> None:
    line = rb"35 31 0:32 /a\134b /mnt/with\040blank rw - cgroup2 none rw"
    assert cgroups.mounts(line) == (Mount(2, frozenset(), "/mnt/with blank", "/a\\b", False),)


@pytest.mark.parametrize("text", [b"", b"nonsense", b"1 2 3 4 5 6 - cgroup", b"a - b"])
def test_what_is_no_mount_table_has_no_hierarchies(text: bytes) -> None:
    assert cgroups.mounts(text) == ()


def test_memberships_are_by_controller_and_version_two_has_no_name() -> None:
    text = b"9:name=systemd:/\n4:memory:/a/b:c\n2:cpu,cpuacct:/x\n0::/user.slice\n"
    assert cgroups.memberships(text) == {
        "name=systemd": "/",
        "memory": "/a/b:c",
        "cpu": "/x",
        "cpuacct": "/x",
        "": "/user.slice",
    }


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [
        ("/", "/", "/mnt"),
        ("/", "/a/b", "/mnt/a/b"),
        ("/a", "/a", "/mnt"),
        ("/a", "/a/b", "/mnt/b"),
        ("/a", "/ab", None),
        ("/a", "/", None),
        ("/", "/../x", None),
    ],
)
def test_a_group_is_seen_below_the_root_of_its_mount(root: str, path: str, seen: str | None) -> None:
    assert cgroups.directory(Mount(2, frozenset(), "/mnt", root, False), path) == seen


def test_a_table_is_names_and_numbers() -> None:
    assert cgroups.table("oom 1\noom_kill 22\nmax max\n\nfoo\n") == {"oom": 1, "oom_kill": 22}
