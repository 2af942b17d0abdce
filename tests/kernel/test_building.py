"""The one builder of the view, in namespaces of its own: what is shown, and what is never made."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from staddle.errors import LaunchFailed
from staddle.linux.own_mounts import with_own_mounts
from staddle.mounts.builder import Builder
from staddle.mounts.operations import Bind, Devices, Directory, Empty, File, Mask, Seal, Symlink

if TYPE_CHECKING:
    from staddle.mounts.operations import Operation

ROOT = Empty("/", 0o755, 1 << 20, "")


def built(place: Path, *operations: Operation, look: Callable[[], None] = lambda: None) -> None:
    """Build at `place` in a child, and `look` there; what goes wrong is raised here."""

    def work() -> None:
        Builder(str(place)).build((ROOT, *operations))
        look()

    for namespace in with_own_mounts(work):
        os.close(namespace)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for name in ("place/granted", "tree/d"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "f").write_text("host")
    return tmp_path


def entries(path: str) -> list[str]:
    return sorted(os.listdir(path))


def test_what_lies_where_it_is_built_and_above_is_shown_as_it_was(host: Path) -> None:
    place = host / "place"

    def look() -> None:
        assert Path(f"{place}{place}/granted/f").read_text() == "host"
        assert entries(f"{place}{host}") == ["place", "tree"]
        assert entries(f"{place}{place}") == ["granted"]

    built(place, Bind(str(host), False, ""), look=look)
    built(place, Bind(f"{place}/granted", False, ""), look=lambda: None)


def test_a_file_covers_the_hosts_and_a_mask_hides_it(host: Path) -> None:
    tree, seen = host / "tree", f"{host}/place{host}/tree"
    (tree / "hidden").write_text("host")

    def look() -> None:
        assert Path(f"{seen}/d/f").read_text() == "ours"
        assert entries(f"{host}/place") == [str(host).split("/")[1]]
        for path in (f"{seen}/d/f", f"{seen}/hidden"):
            with pytest.raises(OSError, match="Read-only") as error:
                os.chmod(path, 0o777)
            assert error.value.errno == errno.EROFS
        with pytest.raises(PermissionError):
            os.close(os.open(f"{seen}/hidden", os.O_RDONLY))

    cover, mask = File(f"{tree}/d/f", b"ours", "", below=True), Mask(f"{tree}/hidden", "")
    built(host / "place", Bind(str(tree), True, ""), cover, mask, look=look)
    assert (tree / "d/f").read_text() == (tree / "hidden").read_text() == "host"


@pytest.mark.parametrize(
    "operation",
    [
        lambda tree: Symlink(f"{tree}/new", "x", ""),
        lambda tree: File(f"{tree}/d/new", b"", ""),
        lambda tree: Directory(f"{tree}/new", 0o755, ""),
        lambda tree: Empty(f"{tree}/new/deeper", 0o755, 0, ""),
        lambda tree: Empty(f"{tree}/new", 0, 0, "", below=True),
        lambda tree: Bind(f"{tree}/new", True, "", below=True, again=True),
        lambda tree: Mask(f"{tree}/new", ""),
    ],
)
def test_nothing_is_made_in_the_users_tree(operation: Callable[[Path], Operation], host: Path) -> None:
    tree = host / "tree"
    with pytest.raises(LaunchFailed):
        built(host / "place", Bind(str(tree), True, ""), operation(tree))
    assert entries(str(tree)) == ["d"]
    assert entries(f"{tree}/d") == ["f"]


def test_a_link_in_the_way_is_refused(host: Path) -> None:
    (host / "tree/link").symlink_to(host / "place")
    for operation in (Empty(f"{host}/tree/link", 0, 0, "", below=True), Mask(f"{host}/tree/link/x", "")):
        with pytest.raises(LaunchFailed, match="there is a link in it"):
            built(host / "place", Bind(f"{host}/tree", True, ""), operation)


def test_modes_are_exact_and_a_hidden_directory_stays_shut(host: Path) -> None:
    place = f"{host}/place"

    def look() -> None:
        modes = [
            os.stat(f"{place}{path}").st_mode & 0o7777 for path in ("", "/tmp", "/tmp/way", "/a", "/a/t")
        ]
        assert modes == [0o755, 0o1777, 0o555, 0o755, 0o444]
        for path, error in (("/tmp/hidden", errno.EROFS), ("/sealed", errno.EROFS)):
            with pytest.raises(OSError, match="Read-only") as refused:
                os.chmod(place + path, 0o777)
            assert refused.value.errno == error

    before = os.umask(0o077)
    try:
        built(
            host / "place",
            Empty("/tmp", 0o1777, 0, ""),
            Directory("/tmp/way", 0o555, ""),
            Empty("/tmp/hidden", 0, 4096, ""),
            File("/a/t", b"", ""),
            Empty("/sealed", 0o755, 0, ""),
            Seal("/sealed", ""),
            look=look,
        )
    finally:
        assert os.umask(before) == 0o077


@pytest.mark.needs_root
def test_as_root_a_thread_builds_and_the_process_keeps_its_umask(host: Path) -> None:
    from staddle.backends.bwrap.staged_view import build_as_root

    before = os.umask(0o077)
    try:
        made = build_as_root(
            (ROOT, Directory("/d", 0o555, ""), Bind(f"{host}/tree", True, "")), 1_900_000_000
        )
    finally:
        assert os.umask(before) == 0o077
    os.close(made.mount_namespace)
    assert entries(str(host)) == ["place", "tree"]


def test_a_very_deep_path_is_no_problem(host: Path) -> None:
    deep = "/d" * 900
    built(host / "place", File(f"{deep}/f", b"", ""), look=lambda: None)


def test_devices_are_these_and_no_others(host: Path) -> None:
    def look() -> None:
        assert sorted(os.listdir(f"{host}/place/dev")) == sorted(
            [
                "null",
                "zero",
                "full",
                "random",
                "urandom",
                "tty",
                "pts",
                "ptmx",
                "fd",
                "stdin",
                "stdout",
                "stderr",
            ]
        )
        with open(f"{host}/place/dev/zero", "rb") as zero:
            assert zero.read(1) == b"\0"

    built(host / "place", Devices("/dev", ""), look=look)


def test_things_are_made_in_what_covers_and_not_in_what_is_covered(host: Path) -> None:
    def look() -> None:
        assert entries(f"{host}/place/a") == ["b", "new"]
        assert entries(f"{host}/place/a/b") == ["new"]

    built(
        host / "place",
        File("/a/b/old", b"", ""),
        Empty("/a", 0o755, 0, ""),
        File("/a/new", b"", ""),
        File("/a/b/new", b"", ""),
        look=look,
    )


def test_no_descriptor_stays_open(host: Path) -> None:
    def work() -> None:
        gc.collect()  # what earlier tests have left to it
        before = os.listdir("/proc/self/fd")
        Builder(f"{host}/place").build(
            (ROOT, Bind(str(host), False, ""), Bind(f"{host}/tree/d", True, "", below=True))
        )
        with pytest.raises(LaunchFailed):
            Builder(f"{host}/place").build((ROOT, Bind(f"{host}/tree", False, ""), Mask(f"{host}/none", "")))
        assert {*os.listdir("/proc/self/fd")} <= {*before}

    for namespace in with_own_mounts(work):
        os.close(namespace)
