"""Resolve declared paths on this host. Each component is checked once, every link recorded."""

from __future__ import annotations

import errno
import os
import stat

from ..errors import PolicyError
from ..linux.fileio import current_directory
from ..paths import absolute, declared, join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    Kind = Literal["directory", "file", "socket", "other", "missing", "unreadable", "circle"]

MOST_LINKS = 40  # the kernel's limit

_KINDS: dict[int, Kind] = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFSOCK: "socket"}


class ResolvedPath:
    """The real `path`, its kind, and (link, target) of every link on the way."""

    __slots__ = ("kind", "links", "path")

    def __init__(self, path: str, kind: Kind, links: tuple[tuple[str, str], ...] = ()) -> None:
        self.path, self.kind, self.links = path, kind, links


class HostPaths:
    """A snapshot of this host's directory tree, taken on first access to each part.

    It runs with the rights of the compiling process. Each plan has one HostPaths: parents are checked once,
    so a thousand paths in one directory need a thousand lstat calls, and all rules of a plan see the same
    links. With `root`, paths resolve as in a chroot to that directory: no link leads out.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._places: dict[str, ResolvedPath] = {"/": ResolvedPath("/", "directory")}

    def find(self, path: str) -> ResolvedPath:
        """Resolve the absolute, normalised `path`. A missing path also has a result."""
        found = self._places.get(path)
        if found is not None:
            return found
        head, _, name = path.rpartition("/")
        parent = self._places.get(head or "/")
        if parent is None:
            parent = self._places["/"]
            for end in _ends(head):  # no recursion: paths may exceed Python's stack
                here = head[:end]
                parent = self._places.get(here) or self._step(parent, here.rpartition("/")[2], here, 0)
        return self._step(parent, name, path, 0)

    def _step(self, parent: ResolvedPath, name: str, path: str, depth: int) -> ResolvedPath:
        real = join(parent.path, name)
        links = parent.links
        if parent.kind != "directory":
            kind: Kind = "unreadable" if parent.kind == "unreadable" else "missing"
            place = ResolvedPath(real, kind, links)
        elif real != path and real in self._places:
            known = self._places[real]
            place = ResolvedPath(known.path, known.kind, links + known.links)
        else:
            try:
                mode = os.lstat(self._root + real).st_mode
            except OSError as error:
                place = ResolvedPath(real, _absence(error, real), links)
            else:
                if stat.S_ISLNK(mode):
                    place = self._follow(parent, real, depth + 1)
                else:
                    place = ResolvedPath(real, _KINDS.get(stat.S_IFMT(mode), "other"), links)
        self._places[path] = place
        return place

    def walk(self, start: str, text: str) -> ResolvedPath:
        """Resolve `text`, relative or absolute, with or without `..`, from the real directory `start`."""
        return self._walk(start, text, 0)

    def _walk(self, start: str, text: str, depth: int) -> ResolvedPath:
        current = ResolvedPath("/" if text.startswith("/") else start, "directory")
        met: tuple[tuple[str, str], ...] = ()
        for part in text.split("/"):
            if part == "..":
                # `current` contains no link, so its parent is the real one.
                current = ResolvedPath(os.path.dirname(current.path), "directory")
            elif part not in ("", "."):
                path = join(current.path, part)
                bare = ResolvedPath(current.path, current.kind)
                current = self._places.get(path) or self._step(bare, part, path, depth)
                met += current.links
        return ResolvedPath(current.path, current.kind, met)

    def _follow(self, parent: ResolvedPath, link: str, depth: int) -> ResolvedPath:
        if depth > MOST_LINKS:
            return ResolvedPath(link, "circle", parent.links)
        end = self._walk(parent.path, os.readlink(self._root + link), depth)
        return ResolvedPath(end.path, end.kind, (*parent.links, (link, end.path), *end.links))


class PathContext:
    """The values of `~`, of the directory for relative paths and of host variables for this plan."""

    def __init__(
        self,
        cwd: str | None,
        base: str | None = None,
        home: str | None = None,
        host_env: Mapping[str, str] | None = None,
    ) -> None:
        self.env: Mapping[str, str] = os.environ if host_env is None else host_env
        self._home = home
        self.cwd = None if cwd is None else self._from_here(declared(cwd, "cwd"))
        self._base = self.cwd if base is None else self._from_here(declared(base, "base"))

    @property
    def base(self) -> str:
        """The directory for relative paths."""
        if self._base is None:
            self._base = self._from_here(".")
        return self._base

    @property
    def home(self) -> str:
        """The home of the user who starts the sandbox."""
        if self._home is None:
            self._home = self.env.get("HOME") or _home_of_this_user()
        if not os.path.isabs(self._home):
            raise PolicyError(
                "it is not known where '~' is",
                why=f"HOME is {self._home!r}",
                fix="set HOME to an absolute path",
            )
        self._home = "/" + "/".join(part for part in self._home.split("/") if part not in ("", "."))
        return self._home

    def at(self, path: str) -> str:
        """Return a declared path as an absolute path."""
        if path[0] == "/":
            return path
        return absolute(path, "", self.home) if path[0] == "~" else absolute(path, self.base, "")

    def _from_here(self, path: str) -> str:
        if path[0] == "/":
            return path
        if path[0] == "~":
            return absolute(path, "", self.home)
        here = current_directory()
        if here is None:
            raise PolicyError(
                "a relative path means nothing here",
                why="the current directory does not exist any more",
                fix="change to one that does, or write absolute paths",
            )
        return absolute(path, here, "")


def _home_of_this_user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _ends(path: str) -> list[int]:
    """Return the offsets at which the components of `path` end, in order."""
    return [index for index, letter in enumerate(path) if letter == "/" and index] + (
        [len(path)] if path else []
    )


def _absence(error: OSError, path: str) -> Kind:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return "missing"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "unreadable"
    raise PolicyError(
        f"{path!r} cannot be read",
        why=os.strerror(error.errno or 0),
        fix="make it readable, or leave it out",
    ) from None
