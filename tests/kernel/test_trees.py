"""Several mounts that are exchanged together: all of them, or none. In a child with mounts of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.inside.agent.mount_swap import TreeMounts, show
from staddle.linux import mounts
from staddle.linux.overlay import exchange_together
from staddle.linux.own_mounts import with_own_mounts
from staddle.mounts.operations import Bind


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Directories to show, and places to show them at."""
    for name in ("old/a", "old/b", "new/a", "new/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "which").write_text(name)
    for name in ("at/a", "at/b", "aside/a", "aside/b"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def clone(path: Path) -> int:
    directory = os.open(path, os.O_PATH)
    try:
        return mounts.clone_tree(directory)
    finally:
        os.close(directory)


def attach(path: Path, target: Path) -> None:
    place = os.open(target, os.O_PATH)
    mounts.attach(clone(path), place)
    os.close(place)


def count() -> int:
    with open("/proc/self/mountinfo") as file:
        return len(file.readlines())


def exchange_both(place: Path) -> None:
    exchange_together(
        [(clone(place / "new" / name), f"{place}/at/{name}", f"{place}/aside/{name}") for name in ("a", "b")]
    )
    for name in ("a", "b"):
        assert (place / "aside" / name / "which").read_text() == f"old/{name}"
        mounts.umount(f"{place}/aside/{name}")


def apart(work: object) -> None:
    for fd in with_own_mounts(work):  # type: ignore[arg-type]
        os.close(fd)


def seen(place: Path) -> list[str]:
    return [(place / "at" / name / "which").read_text() for name in ("a", "b")]


def test_all_are_exchanged(place: Path) -> None:
    def work() -> None:
        for name in ("a", "b"):
            attach(place / "old" / name, place / "at" / name)
        before = count()
        exchange_both(place)
        assert seen(place) == ["new/a", "new/b"]
        assert count() == before

    apart(work)


def test_when_one_cannot_be_none_is(place: Path) -> None:
    def work() -> None:
        for name in ("a", "b"):
            attach(place / "old" / name, place / "at" / name)
        before = count()
        impossible = os.open(place / "new" / "b", os.O_PATH)  # no mount of its own
        trees = (("a", clone(place / "new" / "a")), ("b", impossible))
        with pytest.raises(OSError, match="Invalid"):
            exchange_together([(tree, f"{place}/at/{name}", f"{place}/aside/{name}") for name, tree in trees])
        assert seen(place) == ["old/a", "old/b"]
        assert count() == before
        # And what is there can be exchanged as ever.
        exchange_both(place)
        assert seen(place) == ["new/a", "new/b"]
        assert count() == before

    apart(work)


def test_a_world_is_shown_in_parts_and_exchanged_with_what_is_mounted_in_them(place: Path) -> None:
    def work() -> None:
        at = str(place / "at")
        for world in ("old", "new"):  # as it is seen, from the root
            inside = f"{place}/{world}/world{at}"
            for name in ("a", "b"):
                os.makedirs(f"{inside}/{name}/granted")
                Path(f"{inside}/{name}/which").write_text(f"{world}/{name}")
        places = (f"{at}/a", f"{at}/b")
        show(clone(place / "old" / "world"), places, str(place / "aside"))
        assert seen(place) == ["old/a", "old/b"]
        attach(place / "new" / "b", Path(at, "a", "granted"))
        before = count()
        aside = os.open(place / "aside", os.O_RDONLY)
        trees = TreeMounts(-1, aside, places, lambda: [Bind(f"{at}/a/granted", False, "")])
        (place / "at" / "b" / "new").touch()
        for old in trees.swap(["/"], True, lambda: {"/": clone(place / "new" / "world")}):
            os.close(old)
        assert seen(place) == ["new/a", "new/b"]
        assert Path(at, "a", "granted", "which").read_text() == "new/b"
        trees.tidy()
        assert count() == before

    apart(work)


def test_a_file_that_is_open_for_writing_is_in_the_way_of_all(place: Path) -> None:
    def work() -> None:
        at = str(place / "at")
        for world in ("old", "new"):
            for name in ("a", "b"):
                os.makedirs(f"{place}/{world}/world{at}/{name}")
                Path(f"{place}/{world}/world{at}/{name}/which").write_text(f"{world}/{name}")
        places = (f"{at}/a", f"{at}/b")
        show(clone(place / "old" / "world"), places, str(place / "aside"))
        trees = TreeMounts(-1, os.open(place / "aside", os.O_RDONLY), places)
        with open(f"{at}/b/which", "a"), pytest.raises(OSError, match="busy"):
            trees.swap(["/"], True, lambda: {"/": clone(place / "new" / "world")})
        assert seen(place) == ["old/a", "old/b"]
        Path(at, "a", "still").write_text("written")
        Path(at, "b", "still").write_text("written")

    apart(work)
