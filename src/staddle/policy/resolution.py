"""Following declared paths on this host: each component looked at once, every link remembered."""

from __future__ import annotations

import errno
import os
import stat

from ..errors import PolicyError
from .paths import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["directory", "file", "socket", "other", "missing", "unreadable", "circle"]

MOST_LINKS = 40  # as the kernel

_KINDS: dict[int, Kind] = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFSOCK: "socket"}


class Place:
    """Where a path leads: its real `path`, what is there, and (where, to) of every link on the way."""

    __slots__ = ("kind", "links", "path")

    def __init__(self, path: str, kind: Kind, links: tuple[tuple[str, str], ...] = ()) -> None:
        self.path, self.kind, self.links = path, kind, links


class Host:
    """This host's directory tree as it was when each part of it was first asked about.

    Runs with the rights of whoever compiles. One Host per plan: parents are looked at once,
    so a thousand paths in one directory cost a thousand lstat calls, and all rules of a plan
    see the same links. With `root`, it is the tree below that directory, as one sees it who has it as
    the root: no link leads out.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._places: dict[str, Place] = {"/": Place("/", "directory")}

    def find(self, path: str) -> Place:
        """Where the absolute, normalised `path` leads. That it is missing is an answer."""
        found = self._places.get(path)
        if found is not None:
            return found
        head, _, name = path.rpartition("/")
        parent = self._places.get(head or "/")
        if parent is None:
            parent = self._places["/"]
            for end in _ends(head):  # from the top: a path may have more components than Python has frames
                here = head[:end]
                parent = self._places.get(here) or self._step(parent, here.rpartition("/")[2], here, 0)
        return self._step(parent, name, path, 0)

    def _step(self, parent: Place, name: str, path: str, depth: int) -> Place:
        real = join(parent.path, name)
        links = parent.links
        if parent.kind != "directory":
            kind: Kind = "unreadable" if parent.kind == "unreadable" else "missing"
            place = Place(real, kind, links)
        elif real != path and real in self._places:
            known = self._places[real]
            place = Place(known.path, known.kind, links + known.links)
        else:
            try:
                mode = os.lstat(self._root + real).st_mode
            except OSError as error:
                place = Place(real, _absence(error, real), links)
            else:
                if stat.S_ISLNK(mode):
                    place = self._follow(parent, real, depth + 1)
                else:
                    place = Place(real, _KINDS.get(stat.S_IFMT(mode), "other"), links)
        self._places[path] = place
        return place

    def walk(self, start: str, text: str) -> Place:
        """Where `text` leads from the real directory `start`: relative, absolute, with `..` in it."""
        return self._walk(start, text, 0)

    def _walk(self, start: str, text: str, depth: int) -> Place:
        current = Place("/" if text.startswith("/") else start, "directory")
        met: tuple[tuple[str, str], ...] = ()
        for part in text.split("/"):
            if part == "..":
                # `current` has no link left in it, so its parent is the real one.
                current = Place(os.path.dirname(current.path), "directory")
            elif part not in ("", "."):
                path = join(current.path, part)
                bare = Place(current.path, current.kind)
                current = self._places.get(path) or self._step(bare, part, path, depth)
                met += current.links
        return Place(current.path, current.kind, met)

    def _follow(self, parent: Place, link: str, depth: int) -> Place:
        if depth > MOST_LINKS:
            return Place(link, "circle", parent.links)
        end = self._walk(parent.path, os.readlink(self._root + link), depth)
        return Place(end.path, end.kind, (*parent.links, (link, end.path), *end.links))


def _ends(path: str) -> list[int]:
    """Where each component of `path` ends, the first one first."""
    return [index for index, letter in enumerate(path) if letter == "/" and index] + (
        [len(path)] if path else []
    )


def _absence(error: OSError, path: str) -> Kind:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return "missing"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "unreadable"
    raise PolicyError(f"{path!r} cannot be looked at", why=os.strerror(error.errno or 0)) from None
