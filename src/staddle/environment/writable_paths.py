"""writable_paths: check the globs, turn them into write grants, and decide which changes may stay.

The kernel knows files and directories, not patterns. In a layer (see `command_layer`) a command writes whole
directories directly, and of its other changes only matching ones are committed: see `division`. Without a
layer, a glob that names an existing file becomes that file, and any other glob becomes the directory that
contains everything it can match: see `grants`. If that is more than the glob names, `limits` reports it.

`refused` decides which changes of a command may not be committed. A change is (path, kind before, kind now):
"directory", "file" for anything else, "" for nothing. An allowed change can depend on a refused one: a file
cannot replace something that has to stay, and a directory cannot be removed while something in it stays.
"""

from __future__ import annotations

import errno
import os
import stat

from ..check import several
from ..enforcement import Gap
from ..errors import PathEscape, PathNotAllowed, PolicyError
from ..files import beneath
from ..files.globs import Glob, GlobSet
from ..hostinfo.protected import pointer_name, protected_name
from ..linux.openat2 import open_beneath, open_without_symlinks
from ..paths import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import TypeAlias

    Touched: TypeAlias = tuple[str, str, str]
    from typing import Literal

    from ..policy.plan import Plan


#: The reason for a path that no glob matches.
NOT_NAMED = "no glob of writable_paths names it"


def parse_globs(globs: Iterable[str]) -> GlobSet:
    """Return the globs as one set. Refuses an empty list, because it would allow no write at all."""
    found = [Glob(glob) for glob in several(globs, "writable_paths")]  # type: ignore[arg-type]
    if not found:
        raise PolicyError(
            "writable_paths is set but empty",
            why="nothing could be written, which is hardly meant",
            fix="leave it out, or name a glob",
        )
    return GlobSet(found)


def refuse_protected(name: str, unprotect: Sequence[str]) -> None:
    """Raise PathNotAllowed for a protected name, or a path inside one."""
    guarded = _protected(name, unprotect)
    if guarded is not None:
        raise PathNotAllowed(
            f"{name!r} may not be written",
            why=f"{guarded} is a protected name: other programs run what it contains",
            fix=f"name it in writable_paths in full, or use unprotect=[{guarded!r}] in the policy",
        )


def _protected(name: str, unprotect: Sequence[str]) -> str | None:
    """Return the protected name that `name` is, or is in."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        found = protected_name("/" + "/".join(parts[:count]))
        if found is not None and found not in unprotect:
            return found
    # As a file, `.git` redirects git to another repository.
    pointer = pointer_name("/".join(parts))
    return pointer if pointer not in unprotect else None


def validate_writable_paths(
    working_dir: str | os.PathLike[str], globs: Iterable[str], process_cwd: str | os.PathLike[str]
) -> None:
    """Refuse invalid globs: PathEscape for paths that lead out, PolicyError for malformed ones.

    `working_dir` must be in `process_cwd` after all links are followed. If it does not exist yet, its deepest
    existing ancestor decides.
    """
    root = os.path.realpath(process_cwd)
    asked = os.path.join(root, working_dir)
    if "\0" in asked:
        raise PolicyError(
            f"working_dir is {asked!r}", why="no path can contain a NUL byte", fix="take it out"
        )
    where = os.path.realpath(asked)
    if not covers(root, where) or _is_circle(asked):
        raise PathEscape(
            f"working_dir {os.fspath(working_dir)!r} leaves the session's root {root!r}",
            why=f"it points to {where!r}",
            fix="choose a directory below it",
        )
    parse_globs(globs)


def _is_circle(path: str) -> bool:
    try:
        os.path.realpath(path, strict=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a loop of links, or an unreadable directory
    return False


def refused(changes: Collection[Touched], why_not: Callable[[str], str]) -> dict[str, str]:
    """Return the changes that are not allowed, by path, with the reason.

    `why_not` returns the reason against a single path, or "". A new directory may stay if something in it
    may.
    """
    found = {path: why for path, _, _ in changes if (why := why_not(path))}
    stays = set(_all_above(path for path, before, after in changes if path in found and before and not after))
    for path, before, after in changes:
        if before == "directory" != after and path in stays:
            found.setdefault(path, "something in it may not be removed")
    in_the_way = {
        path for path, before, after in changes if path in found and before == "file" and after == "directory"
    }
    for path, _, after in changes if in_the_way else ():
        if after and path not in found:
            place = next((above for above in parents(path) if above in in_the_way), None)
            if place is not None:
                found[path] = f"{place!r} may not be replaced"
    needed = set(_all_above(path for path, _, after in changes if after and path not in found))
    for path, before, after in changes:
        if after == "directory" and not before and path in needed:
            found.pop(path, None)
    return found


def parents(path: str) -> Iterator[str]:
    """Yield the directories above `path`, nearest first."""
    while (path := path.rpartition("/")[0]) != "":
        yield path


def _all_above(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from parents(path)


def division(root: int, globs: GlobSet) -> tuple[list[str], bool]:
    """Return directories that are writable as a whole, and whether anything else is writable."""
    whole = {
        glob.prefix for glob in globs.globs if _is_whole(glob) and _kind(root, glob.prefix) == "directory"
    }
    rest = any(not _lies_in(glob, whole) and _can_match(root, glob) for glob in globs.globs)
    return sorted(whole), rest


def _lies_in(glob: Glob, directories: set[str]) -> bool:
    return any(path in directories for path in ("", glob.prefix, *parents(glob.prefix)))


def _can_match(root: int, glob: Glob) -> bool:
    """Whether a file that it names exists or could be created; not if a directory has the name."""
    if glob.literal is not None:
        return _kind(root, glob.literal) in ("file", "missing")
    kind = _kind(root, glob.prefix)
    return kind in ("directory", "missing") or (kind == "file" and _is_whole(glob))


def grants(root: int, globs: GlobSet, *, make: bool) -> list[str]:
    """Return the paths that a command may write, relative to `root`. `make` creates missing directories."""
    found: set[str] = set()
    whole = {glob.prefix for glob in globs.globs if _is_whole(glob)}
    for glob in globs.globs:
        if _lies_in(glob, whole - {glob.prefix} if _is_whole(glob) else whole):
            continue  # nothing needs to be created: it is writable anyway
        if glob.literal is not None:
            kind = _kind(root, glob.literal)
            if kind == "file":
                found.add(glob.literal)
            if kind != "missing":
                continue  # a directory where the glob names a file
        kind = _kind(root, glob.prefix)
        if kind == "missing" and make:
            os.close(beneath.make_directories(root, glob.prefix))
            kind = "directory"
        if kind == "directory" or (kind == "file" and _is_whole(glob)):
            found.add(glob.prefix)
    return sorted(found)


def limits(root: int, globs: GlobSet) -> tuple[Gap, ...]:
    """Return the gaps: where commands, but not the file tools, may write more than the globs name."""
    whole = {glob.prefix for glob in globs.globs if _is_whole(glob)}
    return tuple(
        _gap(glob) for glob in globs.globs if not _lies_in(glob, whole) and not _is_exact(root, glob)
    )


def _is_exact(root: int, glob: Glob) -> bool:
    if _is_whole(glob) or (glob.literal is not None and _kind(root, glob.literal) != "missing"):
        return True
    return _kind(root, glob.prefix) in ("file", "blocked")  # then it matches nothing


def _is_whole(glob: Glob) -> bool:
    """Whether it names its prefix and everything below, such as `docs/**`."""
    return glob.deep and not glob.tail


def unlayered(why: str) -> Gap:
    """Return the gap for commands without a layer, if a layer would make them exact."""
    return Gap("write", f"commands have no layer to work in: {why}", documented=True)


def copied(path: str) -> Gap:
    """Return the gap for commands that work in a copy of the directory, at another path."""
    return Gap(
        "workspace",
        f"commands work in a copy of {path!r}: it is at another path, and {path!r} itself can only be read",
        "name files relative to the working directory",
        documented=True,
    )


def unconfined(why: str) -> Gap:
    """Return the gap for unconfined commands."""
    because = f": {why}" if why else ""
    return Gap(
        "write",
        f"commands may write whatever this user may; only the file tools keep to the directory{because}",
        "choose a backend that confines",
        documented=True,
    )


def by_policy(path: str) -> Gap:
    """Return the gap for a path in the directory that the policy itself makes writable."""
    why = f"the policy lets commands write {path!r}, whatever writable_paths contains"
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
    """Return the kind of file at `path`; "blocked" for special files, or below a file."""
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
    """Refuse a plan in which one of these write grants leads elsewhere, through a link created meanwhile.

    Backends open the paths of a plan without following links, so an accepted grant stays valid.
    """
    origins = {f"write {path!r}": path for path in asked}
    for grant in plan.grants:
        if origins.get(grant.origin, grant.path) != grant.path:
            raise PathEscape(
                f"{origins[grant.origin]!r} points to {grant.path!r}",
                why="a link was put in its way",
                fix="remove the link",
            )


def refuse_replaced(root: int, path: str) -> None:
    """Refuse if `path` is no longer the directory that `root` is open on."""
    try:
        fd = open_without_symlinks(path, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise PathEscape(
            f"the working directory {path!r} no longer exists",
            why=os.strerror(error.errno or 0),
            fix="make it again, and a new environment for it",
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
