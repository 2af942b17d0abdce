"""The walk that finds protected names below a directory, and the comparison with one name."""

from __future__ import annotations

import os
import stat

from ..errors import PolicyError
from .paths import covers, several, upward
from .plan import COPY
from .protected_names import NAMES, REASONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Literal

    from .plan import Plan

    Kind = Literal["file", "directory", "link", "named"]

#: More than this many entries below the write grants is refused, not half searched.
MOST_ENTRIES = 1_000_000

#: As they are compared: without case, see `_folded`.
_NAME_OF = {name.lower(): name for name in NAMES}
#: The ends of names that may begin in any way.
_ENDS = tuple(name[1:].lower() for name in NAMES if name[0] == "*")
_ALONE = {name.lower(): name for name in NAMES if "/" not in name and name != ".git"}
#: `.config` -> fish, autostart, ...; `.git` -> config, hooks, info/attributes, ...
_BELOW: dict[str, tuple[str, ...]] = {
    first: tuple(name[len(first) + 1 :] for name in NAMES if name.startswith(f"{first}/"))
    for first in {name.partition("/")[0] for name in NAMES if "/" in name}
}
#: Directories that are the beginning of a protected name: `.git`, `info`, `repo`, ...
_MIDDLES = frozenset(part for name in _NAME_OF for part in name.split("/")[:-1])
_PARTS = frozenset(part for name in _NAME_OF for part in name.split("/"))
#: `.config` -> .config/fish; `.jj/repo` -> .jj/repo/config.toml: a name that begins so.
_BEGINNINGS = {name[:at]: _NAME_OF[name] for name in _NAME_OF for at in range(len(name)) if name[at] == "/"}
#: Names worth a second look although they have no leading dot.
_DOTLESS = frozenset({"head", *(name for name in _ALONE if name[0] != ".")})
#: Inside a git directory there is nothing to find in these, and they are the large ones.
_GIT_DATA = frozenset({"objects", "refs", "logs", "lfs"})
#: Characters that HFS+ leaves out when it compares names.
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])


class ProtectedName:
    """One protected name that is there.

    A `link` cannot be held; `named` is where the git directory or hook `by` leads.
    """

    __slots__ = ("by", "kind", "name", "path")

    def __init__(self, path: str, kind: Kind, name: str, by: str = "") -> None:
        self.path, self.kind, self.name, self.by = path, kind, name, by


def checked_names(names: object) -> tuple[str, ...]:
    """The names of `unprotect`: known ones, sorted, each once."""
    found = set()
    for name in several(names, "unprotect"):
        if not isinstance(name, str) or name not in REASONS:
            raise PolicyError(
                f"unprotect contains {name!r}",
                why="it is not a protected name",
                fix="`staddle docs protected-names` lists them, such as '.git/hooks' or '.vscode'",
            )
        found.add(name)
    return tuple(sorted(found))


def protected_name(path: str) -> str | None:
    """The protected name that the end of the absolute `path` spells, if any; `.git` itself is none."""
    parts = _folded(path).rsplit("/", 3)[1:]
    for count in range(1, len(parts) + 1):
        name = _NAME_OF.get("/".join(parts[-count:]))
        if name is not None and name != ".git":
            return name
    return _with_end(parts[-1]) if parts else None


def begins_protected(path: str) -> str | None:
    """A protected name that the end of the absolute `path` begins: `.config` begins `.config/fish`."""
    parts = _folded(path).rsplit("/", 2)[1:]
    for count in range(1, len(parts) + 1):
        if name := _BEGINNINGS.get("/".join(parts[-count:])):
            return name
    return None


def is_alias(name: str) -> bool:
    """Whether a link of this name would give what it leads to a protected name, or the beginning of one."""
    folded = _folded(name)
    return folded in _ALONE or folded in _BELOW or _with_end(folded) is not None


def _with_end(folded: str) -> str | None:
    return f"*{next(end for end in _ENDS if folded.endswith(end))}" if folded.endswith(_ENDS) else None


def find_protected(root: str, unprotect: Iterable[str] = ()) -> set[str]:
    """Every protected name below `root`, to be compared before and after a run. Never raises.

    What cannot be looked into is not in it, nor what lies beyond the limit of the walk.
    """
    found: set[str] = set()
    try:
        for finding in walk([root], unprotect=unprotect, strict=False):
            if finding.kind != "named" or (covers(root, finding.path) and os.path.lexists(finding.path)):
                found.add(finding.path)
    except PolicyError:
        pass
    return found


def appeared(plan: Plan) -> set[str]:
    """Protected names that lie below the plan's write grants now and did not when it was made."""
    writable = {grant.path for grant in plan.grants if grant.access == "write"}
    held = {guard.path for guard in plan.guards} | {item.path for item in plan.hidden}
    covered = [scratch.path for scratch in plan.scratch]
    found: set[str] = set()
    for grant in plan.grants:
        if grant.access == "write" and grant.directory and grant.origin != COPY:
            unseen = [path for path in covered if covers(grant.path, path)]
            for path in find_protected(grant.path, plan.unprotect):
                if not any(covers(item, path) for item in unseen):
                    found.add(path)
    return {path for path in found if path not in writable and held.isdisjoint(_below_grant(path, writable))}


def walk(
    roots: Iterable[str],
    *,
    unprotect: Iterable[str] = (),
    skip: Collection[str] = (),
    strict: bool = True,
) -> Iterator[ProtectedName]:
    """Protected names below `roots`, found with the rights of the caller. Follows no link.

    A root that is a protected name itself was named on purpose: nothing below it is held.
    `skip` are paths that are not visible inside. Other file systems below a root are
    searched like the rest: a bind of the root brings them along, writable.
    """
    names = frozenset(NAMES).difference(unprotect)
    left = MOST_ENTRIES
    done = set(skip)
    for root in roots:
        if _folded(root[root.rfind("/") + 1 :]) in _PARTS:
            if protected_name(root):
                continue
            yield from _new(_beginning(root, names), done)
        todo = [root]
        while todo:
            directory = todo.pop()
            if directory in done and directory != root:
                continue
            entries = _entries(directory, strict)
            left -= len(entries)
            if left < 0:
                raise PolicyError(
                    f"{root!r} cannot be searched for protected names",
                    why=f"more than {MOST_ENTRIES:,} files lie below what may be written",
                    fix="grant only the directories that are needed",
                )
            is_git = _folded(directory[-4:]) == ".git" and directory[-5:-4] == "/"
            for entry in entries:
                name = _folded(entry.name)
                if name[0] == "." or name in _DOTLESS or name.endswith(_ENDS):
                    is_git = is_git or (name == "head" and _is_git_directory(directory))
                    yield from _new(_protected(entry, name, names), done)
                if entry.is_dir(follow_symlinks=False) and not (is_git and name in _GIT_DATA):
                    todo.append(entry.path)
            if is_git:
                yield from _new(_git_directory(directory, names), done)


def _new(findings: Iterable[ProtectedName], done: set[str]) -> Iterator[ProtectedName]:
    """Findings at paths that were not searched yet. Nothing below a finding is searched any more."""
    for finding in findings:
        if finding.path not in done:
            done.add(finding.path)
            yield finding


def _protected(entry: os.DirEntry[str], name: str, names: frozenset[str]) -> Iterator[ProtectedName]:
    """The findings at one entry of an ordinary directory."""
    if alone := _ALONE.get(name) or _with_end(name):
        if alone in names:
            yield ProtectedName(entry.path, _kind(entry.stat(follow_symlinks=False).st_mode), alone)
    elif name == ".git":
        if entry.is_dir(follow_symlinks=False) or name not in names:
            return  # a directory is looked at when the walk comes to it
        yield ProtectedName(entry.path, "link" if entry.is_symlink() else "file", name)
        if entry.is_file(follow_symlinks=False):
            yield from _sent_on_to(entry.path, names)
    elif name in _BELOW:
        if not entry.is_symlink():
            yield from _at(entry.path, [(rest, f"{name}/{rest}") for rest in _BELOW[name]], names)
        else:
            for rest in _BELOW[name]:
                if f"{name}/{rest}" in names and os.path.lexists(f"{entry.path}/{rest}"):
                    yield ProtectedName(entry.path, "link", f"{name}/{rest}")


def _git_directory(directory: str, names: frozenset[str]) -> Iterator[ProtectedName]:
    """Protected names in `.git`, in a bare repository, and in the directory of a worktree or submodule."""
    for finding in _at(directory, [(rest, f".git/{rest}") for rest in _BELOW[".git"]], names):
        yield finding
        if finding.kind == "directory":
            # A hook may be a link to a file of the working tree; that file is the hook then.
            for entry in _entries(finding.path, strict=False):
                if entry.is_symlink():
                    yield ProtectedName(os.path.realpath(entry.path), "named", finding.name, entry.path)
    yield from _sent_on_to(directory, names)


def _sent_on_to(git: str, names: frozenset[str]) -> Iterator[ProtectedName]:
    from .gitconfig import leads_to

    for path, name in leads_to(git):
        if name in names:
            yield ProtectedName(path, "named", name, git)


def _beginning(root: str, names: frozenset[str]) -> Iterator[ProtectedName]:
    """The same for a root inside such a directory: `.git/info` may hold the `attributes` of `.git`."""
    folded = _folded(root)
    if folded.rpartition("/")[2] not in _MIDDLES or folded.endswith("/.git"):
        return
    for first, rests in _BELOW.items():
        for rest in rests:
            parts = f"{first}/{rest}".split("/")
            for count in range(1, len(parts)):
                if folded.endswith("/" + "/".join(parts[:count])):
                    yield from _at(root, [("/".join(parts[count:]), f"{first}/{rest}")], names)


def _at(directory: str, places: Iterable[tuple[str, str]], names: frozenset[str]) -> Iterator[ProtectedName]:
    """Entries of (path below `directory`, protected name) that exist; a link on the way is the finding."""
    for rest, name in places:
        if name not in names:
            continue
        path = directory
        kind: Kind | None = None
        for part in rest.split("/"):
            path = f"{path}/{part}"
            try:
                kind = _kind(os.lstat(path).st_mode)
            except OSError:
                kind = None
            if kind != "directory":
                break
        if kind is not None and (kind == "link" or path.endswith(f"/{rest}")):
            yield ProtectedName(path, kind, name)


def _kind(mode: int) -> Kind:
    return "link" if stat.S_ISLNK(mode) else "directory" if stat.S_ISDIR(mode) else "file"


def _is_git_directory(directory: str) -> bool:
    """Whether git takes a directory for a repository (git also checks the content of HEAD; we do not)."""
    there = {name for name in ("objects", "refs", "commondir") if os.path.lexists(f"{directory}/{name}")}
    return "commondir" in there or {"objects", "refs"} <= there


def _entries(directory: str, strict: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone meanwhile
    except OSError as error:
        if not strict or (isinstance(error, PermissionError) and not _is_ours(directory)):
            return []  # what we cannot open, and do not own, the sandbox cannot open either
        raise PolicyError(
            f"{directory!r} cannot be searched for protected names",
            why=f"it may be written, but reading it fails: {error.strerror}",
            fix="make it readable, or deny it",
        ) from None


def _is_ours(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return True


def _folded(name: str) -> str:
    """A name as a file system that does not tell case compares it."""
    return name.lower() if name.isascii() else name.translate(_IGNORED).lower() or name


def _below_grant(path: str, writable: set[str]) -> Iterator[str]:
    """`path` and what is above it, up to the write grant it lies in."""
    for place in upward(path):
        if place in writable:
            return
        yield place
