"""Write grants for a command, derived from the globs of writable_paths.

The kernel knows files and directories, not patterns. With a layer to work in (see `layer`) a
command writes whole directories directly, and for the rest only what matches is taken over
afterwards: see `division`. Without one, a glob that names a file which is there becomes that
file, and every other the directory that holds all it can match: see `grants`. Where that is
more than the glob names, `limits` reports it.
"""

from __future__ import annotations

import errno
import os
import stat

from ..enforcement import Gap
from ..errors import PathEscape
from ..files import beneath
from ..linux.openat2 import open_beneath, open_without_symlinks
from .partial_commit import parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from ..files.globs import Glob, GlobSet
    from ..policy.plan import Plan


def division(root: int, globs: GlobSet) -> tuple[list[str], bool]:
    """(directories that may be written as a whole, whether something else may be written too)."""
    whole = {
        glob.prefix for glob in globs.globs if _is_whole(glob) and _kind(root, glob.prefix) == "directory"
    }
    rest = any(not _lies_in(glob, whole) and _can_match(root, glob) for glob in globs.globs)
    return sorted(whole), rest


def _lies_in(glob: Glob, directories: set[str]) -> bool:
    return any(path in directories for path in ("", glob.prefix, *parents(glob.prefix)))


def _can_match(root: int, glob: Glob) -> bool:
    """Whether a file that it names is there or could be made: not where a directory has the name."""
    if glob.literal is not None:
        return _kind(root, glob.literal) in ("file", "missing")
    kind = _kind(root, glob.prefix)
    return kind in ("directory", "missing") or (kind == "file" and _is_whole(glob))


def grants(root: int, globs: GlobSet, *, make: bool) -> list[str]:
    """Paths that a command may write, relative to `root`. Missing directories are made, or left out."""
    found: set[str] = set()
    whole = {glob.prefix for glob in globs.globs if _is_whole(glob)}
    for glob in globs.globs:
        if _lies_in(glob, whole - {glob.prefix} if _is_whole(glob) else whole):
            continue  # nothing is made for what may be written anyway
        if glob.literal is not None:
            kind = _kind(root, glob.literal)
            if kind == "file":
                found.add(glob.literal)
            if kind != "missing":
                continue  # a directory where the glob names a file: nothing may be written there
        kind = _kind(root, glob.prefix)
        if kind == "missing" and make:
            os.close(beneath.make_directories(root, glob.prefix))
            kind = "directory"
        if kind == "directory" or (kind == "file" and _is_whole(glob)):
            found.add(glob.prefix)
    return sorted(found)


def limits(root: int, globs: GlobSet) -> tuple[Gap, ...]:
    """Where commands may write more than the globs say, and the file tools not."""
    whole = {glob.prefix for glob in globs.globs if _is_whole(glob)}
    return tuple(
        _gap(glob) for glob in globs.globs if not _lies_in(glob, whole) and not _is_exact(root, glob)
    )


def _is_exact(root: int, glob: Glob) -> bool:
    if _is_whole(glob) or (glob.literal is not None and _kind(root, glob.literal) != "missing"):
        return True
    return _kind(root, glob.prefix) in ("file", "blocked")  # then it can match nothing


def _is_whole(glob: Glob) -> bool:
    """Whether it names its prefix and all below: `docs/**`."""
    return glob.deep and not glob.tail


def unlayered(why: str) -> Gap:
    """The gap for commands that have no layer, where one would make them exact."""
    return Gap("write", f"commands have no layer to work in: {why}", documented=True)


def by_policy(path: str) -> Gap:
    """The gap for a path in the directory that the policy itself lets commands write."""
    why = f"the policy lets commands write {path!r}, whatever writable_paths says"
    return Gap("write", why, "leave it out of the policy's write", documented=True)


def _gap(glob: Glob) -> Gap:
    where = f"everything in {glob.prefix!r}" if glob.prefix else "everything in the working directory"
    return Gap(
        "write",
        f"commands may write {where}, not only {glob.text!r}; the file tools are exact",
        "name whole directories (docs/**), or files that exist",
        documented=True,
    )


def _kind(root: int, path: str) -> Literal["file", "directory", "missing", "blocked"]:
    """The kind of file at `path`; "blocked" for a pipe and the like, or below a file."""
    try:
        fd = open_beneath(root, path or ".", os.O_PATH)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return "missing"
        if error.errno == errno.ENOTDIR:
            return "blocked"
        raise beneath.translated(error, path) from None
    try:
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "blocked"


def refuse_strangers(plan: Plan, asked: Iterable[str]) -> None:
    """Refuse a plan in which one of these write grants leads elsewhere, through a link made meanwhile.

    Backends open what a plan names without following links, so what passes here stays true.
    """
    origins = {f"write {path!r}": path for path in asked}
    for grant in plan.grants:
        if origins.get(grant.origin, grant.path) != grant.path:
            raise PathEscape(
                f"{origins[grant.origin]!r} leads to {grant.path!r}",
                why="a link was put in its way",
                fix="remove the link",
            )


def refuse_replaced(root: int, path: str) -> None:
    """Refuse when `path` is no longer the directory that `root` is open on."""
    try:
        fd = open_without_symlinks(path, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise PathEscape(
            f"the working directory {path!r} is gone", why=os.strerror(error.errno or 0)
        ) from None
    try:
        there, ours = os.fstat(fd), os.fstat(root)
    finally:
        os.close(fd)
    if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
        raise PathEscape(
            f"the working directory {path!r} was replaced",
            why="it is not the directory this environment was made for",
            fix="make a new environment",
        )
