"""A ref that moved is seen, wherever git keeps it; what an agent put in its place does no harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staddle.jail.workspace_run import moved_refs, read_refs
from tests.support.git_plants import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.git("branch", "a/b", where=made.repository)
    made.git("tag", "v1", where=made.repository)
    return made


def test_it_is_what_git_says(world: World) -> None:
    def said() -> dict[str, str]:
        lines = world.git("for-each-ref", "--format=%(refname) %(objectname)", where=world.repository)
        return dict(line.split(" ") for line in lines.decode().splitlines())  # type: ignore[misc]

    assert read_refs(str(world.common)) == said()
    world.git("pack-refs", "--all", where=world.repository)
    assert read_refs(str(world.common)) == said()
    world.git("commit", "-q", "--allow-empty", "-m", "x", where=world.repository)
    assert read_refs(str(world.common)) == said()


def test_a_long_list_is_read_whole(world: World) -> None:
    commit = world.git("rev-parse", "main", where=world.repository).decode().strip()
    lines = [f"{commit} refs/heads/x{number:05}\n" for number in range(30_000)]
    (world.common / "packed-refs").write_text(
        "# pack-refs with: peeled fully-peeled sorted\n" + "".join(lines)
    )
    assert read_refs(str(world.common))["refs/heads/x29999"] == commit


def test_packing_moves_nothing(world: World) -> None:
    before = read_refs(str(world.common))
    world.git("pack-refs", "--all", where=world.repository)
    assert moved_refs(before, read_refs(str(world.common)), ()) == ()


def test_moved_and_gone_are_told_new_and_own_are_not(world: World) -> None:
    before = read_refs(str(world.common))
    world.git("branch", "new", where=world.repository)
    world.git("update-ref", "refs/heads/a/b", "main~1", where=world.repository)
    world.git("tag", "-d", "v1", where=world.repository)
    world.git("commit", "-q", "--allow-empty", "-m", "x", where=world.repository)
    found = moved_refs(before, read_refs(str(world.common)), {"refs/heads/main"})
    assert [(name, bool(now)) for name, _, now in found] == [
        ("refs/heads/a/b", True),
        ("refs/tags/v1", False),
    ]


def test_links_fifos_and_long_files_do_no_harm(world: World) -> None:
    heads = world.common / "refs/heads"
    before = read_refs(str(world.common))
    (heads / "main").unlink()
    (heads / "main").symlink_to("/etc/passwd")
    os.mkfifo(heads / "fifo")
    (heads / "circle").symlink_to(heads)
    (heads / "long").write_bytes(b"x" * (2 << 20))
    after = read_refs(str(world.common))
    assert moved_refs(before, after, ()) == (("refs/heads/main", before["refs/heads/main"], ""),)
