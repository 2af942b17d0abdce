"""writable_paths: what a session may write, checked before anything of it runs."""

from __future__ import annotations

import os

from ..errors import PathEscape, PathNotAllowed, PolicyError
from ..files.globs import Glob, GlobSet
from ..policy.paths import covers, several
from ..policy.protected import protected_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def parse_globs(globs: Iterable[str]) -> GlobSet:
    """The globs as one set. None at all is refused: saying what may be written must say something."""
    found = [Glob(glob) for glob in several(globs, "writable_paths")]  # type: ignore[arg-type]
    if not found:
        raise PolicyError(
            "writable_paths is set but empty",
            why="nothing could be written, which is hardly meant",
            fix="leave it out, or name a glob",
        )
    return GlobSet(found)


def refuse_protected(name: str, unprotect: Sequence[str]) -> None:
    """PathNotAllowed for a name that other programs obey, or what lies in one."""
    guarded = _protected(name, unprotect)
    if guarded is not None:
        raise PathNotAllowed(
            f"{name!r} may not be written",
            why=f"{guarded} is a protected name: other programs run what it says",
            fix=f"name it in writable_paths in full, or say unprotect=[{guarded!r}] in the policy",
        )


def _protected(name: str, unprotect: Sequence[str]) -> str | None:
    """The protected name that `name` is, or lies in."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        found = protected_name("/" + "/".join(parts[:count]))
        if found is not None and found not in unprotect:
            return found
    # As a file, `.git` sends git to another repository.
    return ".git" if parts[-1].lower() == ".git" and ".git" not in unprotect else None


def validate_writable_paths(
    working_dir: str | os.PathLike[str], globs: Iterable[str], process_cwd: str | os.PathLike[str]
) -> None:
    """Refuse what cannot be meant: PathEscape for what leads out, a plain PolicyError for the malformed.

    `working_dir` must lie in `process_cwd` after all links are followed, also when it does
    not exist yet: then its deepest existing ancestor decides.
    """
    root = os.path.realpath(process_cwd)
    asked = os.path.join(root, working_dir)
    if "\0" in asked:
        raise PolicyError(f"working_dir is {asked!r}", why="no path can hold a NUL")
    where = os.path.realpath(asked)
    if not covers(root, where) or _is_circle(asked):
        raise PathEscape(
            f"working_dir {os.fspath(working_dir)!r} leaves the session's root {root!r}",
            why=f"it leads to {where!r}",
            fix="choose a directory below it",
        )
    parse_globs(globs)


def _is_circle(path: str) -> bool:
    try:
        os.path.realpath(path, strict=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a loop of links, or an unreadable directory: nothing is known about it
    return False
