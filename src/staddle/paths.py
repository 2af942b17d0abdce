"""Facts about a path from its text alone, without accessing the disk.

A declared path stays as written, except for `//`, `.` and a trailing slash. It may be absolute, relative, or
start with `~`. `compile` resolves it on this host.
"""

from __future__ import annotations

import os

from .check import several
from .errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

LONGEST_NAME = 255  # NAME_MAX, in bytes
LONGEST_PATH = 4095  # PATH_MAX without its NUL, in bytes

#: Fields that grant or deny access. Other fields only name a path.
GRANTING = ("read", "write", "deny", "sockets", "home")
#: Every sandbox has its own, with the kernel's content.
KERNEL_TREES = ("/proc", "/sys", "/dev")
_BELOW_KERNEL_TREES = tuple(f"{tree}/" for tree in KERNEL_TREES)
#: The path of the workspace in a session.
WORKSPACE_PATH = "/workspace"
#: The origin of a further path of the workspace.
ALSO_AT = "workspace_at"
#: Name of the layered tree at the root of a sandbox, if directories can be created there. Not a path.
ROOT_TREE = "/."
#: The home of root inside.
ROOT_HOME = "/root"
#: Private and empty in every sandbox; paths below them on the host can be granted.
PRIVATE = ("/tmp", "/run")


def declared_all(paths: object, field: str) -> tuple[str, ...]:
    """Return all paths of one field: checked, normalised, sorted, without duplicates."""
    return tuple(sorted({declared(path, field) for path in several(paths, field)}))


def declared(path: object, field: str) -> str:
    """Return `path` in its canonical spelling. Raises PolicyError if it is invalid or must not be granted."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
        encoded = os.fsencode(text)
    except TypeError:
        raise PolicyError(
            f"{field} contains {path!r}", why="it is not a path", fix="give text, bytes or a pathlib path"
        ) from None
    except UnicodeError:
        raise _refused(field, path, "it has characters that no file name can contain", "") from None
    if not text:
        raise _refused(field, path, "it is empty", "write '.' for the current directory")
    if "\0" in text:
        raise _refused(field, path, "it has a NUL in it", "")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _refused(
            field,
            path,
            "'..' can point to another place when a directory before it is a link",
            "write the path it should reach",
        )
    if len(encoded) > LONGEST_PATH:
        raise _refused(field, path, f"it is longer than {LONGEST_PATH} bytes", "")
    if len(encoded) > LONGEST_NAME and any(len(os.fsencode(part)) > LONGEST_NAME for part in parts):
        raise _refused(field, path, f"a name in it is longer than {LONGEST_NAME} bytes", "")
    if text[0] == "/":
        normal = "/" + "/".join(parts)
        reason = not_for(field, normal)
        if reason:
            raise _refused(field, path, *reason)
        return normal
    if text[0] == "~" and parts[0] != "~":
        raise _refused(field, path, "homes of other users are not looked up", "write the whole path")
    if field == "sockets" and text[0] == "@":
        raise _refused(
            field, path, "abstract sockets cannot be granted one by one", "use a socket that has a path"
        )
    # "./~x" is a file called "~x"; without the dot it would be a user's home.
    dot = "./" if parts and parts[0].startswith("~") and text[0] != "~" else ""
    return dot + "/".join(parts) or "."


def not_for(field: str, path: str) -> tuple[str, str] | None:
    """Return why the absolute `path` cannot be in `field`, and a fix; None if it can."""
    if field not in GRANTING:
        return None
    if path == "/":
        if field == "deny":
            return "it would hide everything, and then nothing could run", "deny what should be hidden"
        return "it would grant the whole machine", "name the directories that are needed"
    if field == "deny":
        return None
    if path in KERNEL_TREES or path.startswith(_BELOW_KERNEL_TREES):
        tree = next(tree for tree in KERNEL_TREES if covers(tree, path))
        if tree == "/dev" and field == "sockets":
            return None  # such as /dev/log
        return f"every sandbox has its own {tree}", "leave it out"
    if path in PRIVATE and field != "home":
        return f"{path} is private in every sandbox", f"name what is needed below {path}"
    return None


def absolute(path: str, base: str, home: str) -> str:
    """Make a declared path absolute, without accessing the disk."""
    if path[0] == "/":
        return path
    if path[0] == "~":
        return join(home, path[2:])
    if path.startswith("./"):
        path = path[2:]
    return base if path == "." else join(base, path)


def join(directory: str, rest: str) -> str:
    """Return the path `rest` below `directory`."""
    if not rest:
        return directory
    return f"/{rest}" if directory == "/" else f"{directory}/{rest}"


def covers(ancestor: str, path: str) -> bool:
    """Whether `path` is `ancestor` or below it."""
    return ancestor in (path, "/") or path.startswith(ancestor + "/")


class Ancestry:
    """Finds the nearest parent of a path in a set of paths. Caches results for siblings."""

    __slots__ = ("_nearest", "_paths")

    def __init__(self, paths: Container[str]) -> None:
        self._paths = paths
        self._nearest: dict[str, str | None] = {}

    def at_or_above(self, path: str) -> str | None:
        """Return `path` itself if it is in the set, else its nearest parent in the set."""
        return path if path in self._paths else self.above(path)

    def above(self, path: str) -> str | None:
        """Return the nearest parent of `path` in the set, without `path` itself."""
        parent = path[: path.rfind("/")] or "/"
        if parent in self._nearest:
            return self._nearest[parent]
        place: str | None = parent
        while place is not None and place not in self._paths:
            place = (place[: place.rfind("/")] or "/") if place != "/" else None
        self._nearest[parent] = place
        return place


def upward(path: str) -> Iterator[str]:
    """Yield `path`, its parent, and so on up to `/`."""
    while path != "/":
        yield path
        path = path[: path.rfind("/")] or "/"
    yield path


def above(path: str) -> Iterator[str]:
    """Yield the parent of `path`, and so on up to `/`."""
    if path != "/":
        yield from upward(path[: path.rfind("/")] or "/")


def _refused(field: str, path: object, why: str, fix: str) -> PolicyError:
    shown = repr(path)
    return PolicyError(
        f"{field} cannot contain {shown if len(shown) < 200 else shown[:199] + '…'}",
        why=why,
        fix=fix or "write another path",
    )
