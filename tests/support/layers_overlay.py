"""Real overlays: mounted, and worked in, by a child with mounts of its own; looked at from outside."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from staddle.layers.stack import Stack
from staddle.linux.mounts import attach
from staddle.linux.overlay import overlay
from staddle.linux.own_mounts import with_own_mounts

#: Where many small commits are made: a tmpfs has nothing to wait for when it is synced.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

Picture = dict[str, tuple[str, int, bytes]]


def stores_are_empty(place: str) -> bool:
    """Whether nothing is left in any store in `place`. A store may be: the next program removes it."""
    top = place.count("/")
    return not any(names or files for at, names, files in os.walk(place) if at.count("/") - top >= 2)


def inside(stack: Stack, work: Callable[[Path], object], place: Path) -> Picture:
    """Do `work` in the mounted stack; the whole directory afterwards, seen through the mount."""
    place.mkdir(exist_ok=True)
    told = place.parent / f"{place.name}.told"

    def mounted() -> None:
        tree = overlay(stack.lowers, stack.top.upper, stack.top.work)
        attach(tree, os.open(place, os.O_PATH))
        work(place)
        told.write_bytes(pickle.dumps(picture(place)))

    for fd in with_own_mounts(mounted):
        os.close(fd)
    seen: Picture = pickle.loads(told.read_bytes())  # noqa: S301 - our own child wrote it
    told.unlink()
    return seen


def picture(directory: Path | str) -> Picture:
    """Path to (type, permissions, content) of everything below, which must be readable."""
    found: Picture = {}
    todo = [os.fspath(directory)]
    while todo:
        for entry in os.scandir(todo.pop()):
            path = os.path.relpath(entry.path, directory)
            status = entry.stat(follow_symlinks=False)
            mode = stat.S_IMODE(status.st_mode)
            if entry.is_symlink():
                found[path] = ("symlink", 0, os.fsencode(os.readlink(entry.path)))
            elif entry.is_dir(follow_symlinks=False):
                found[path] = ("directory", mode, b"")
                todo.append(entry.path)
            elif stat.S_ISREG(status.st_mode):
                found[path] = ("file", mode, Path(entry.path).read_bytes())
            else:
                found[path] = ("special", mode, b"")
    return found


def naive_changes(before: Picture, after: Picture) -> set[tuple[str, str]]:
    """What a change list must say, from two pictures, without any idea of layers or renames."""
    found = set()
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            found.add(("added" if old is None else "deleted", path))
        elif old[0] != new[0]:
            found.add(("type", path))
        elif old[2] != new[2]:
            found.add(("link" if new[0] == "symlink" else "modified", path))
        elif old[1] != new[1]:
            found.add(("mode", path))
    return found


def fill(directory: Path, tree: Sequence[tuple[str, str | bytes | None]]) -> None:
    """Make files (text or bytes), directories (None) and links ("-> target") below `directory`."""
    for path, content in tree:
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir(exist_ok=True)
        elif isinstance(content, str) and content.startswith("-> "):
            place.symlink_to(content[3:])
        else:
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
