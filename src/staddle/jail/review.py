"""Changes that are easy to read past in a diff, and files that make other programs run commands.

The former are modes, links and other repositories. The latter are read, never run. Our own git calls ignore
them (see `git`); the user's git, editor and shell would not. A finding is no proof of bad intent: a hook may
be the user's own.
"""

from __future__ import annotations

import os
import stat

from .._value import Value
from ..policy.gitconfig import parse
from ..policy.protected import find_protected
from .git import head, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .git import Git

#: (section, keys) whose values git runs or loads. "*" is any key of the section.
COMMANDS: dict[str, tuple[str, ...]] = {
    "alias": ("*",),
    "browser": ("*",),
    "core": (
        *("fsmonitor", "sshcommand", "pager", "editor", "hookspath", "askpass", "gitproxy", "worktree"),
        *("alternaterefscommand", "attributesfile", "excludesfile"),
    ),
    "credential": ("helper",),
    "diff": ("external", "command", "textconv"),
    "difftool": ("*",),
    "filter": ("clean", "smudge", "process"),
    "gpg": ("program",),
    "include": ("path",),
    "includeif": ("path",),
    "interactive": ("difffilter",),
    "merge": ("driver",),
    "mergetool": ("*",),
    "pager": ("*",),
    "protocol": ("allow",),
    "remote": ("uploadpack", "receivepack", "proxy", "vcs", "promisor"),
    "sequence": ("editor",),
    "submodule": ("update",),
    "trailer": ("command", "cmd"),
    "uploadpack": ("packobjectshook",),
    "url": ("insteadof", "pushinsteadof"),
}


class PlantedFile(Value):
    """One such file, and its effect."""

    path: str
    what: str


def find_planted(common: str, admin: str, tree: str, branch: str) -> tuple[PlantedFile, ...]:
    """All such files in the repository's git directory, the worktree's part of it, and the tree."""
    found = [
        *_configs(
            f"{common}/config", f"{common}/config.worktree", f"{admin}/config", f"{admin}/config.worktree"
        ),
        *_hooks(f"{common}/hooks"),
        *_hooks(f"{admin}/hooks"),
    ]
    for path, what in (
        (f"{common}/info/attributes", "chooses filters and diff drivers for files"),
        (f"{common}/objects/info/alternates", "takes objects from elsewhere"),
        (f"{common}/info/grafts", "makes history look different"),
        (f"{common}/refs/replace", "makes objects look different"),
        (f"{common}/commondir", "says that the repository is elsewhere"),
    ):
        if os.path.lexists(path):
            found.append(PlantedFile(path, what))
    if " refs/replace/" in text(f"{common}/packed-refs", 64 << 20):
        found.append(PlantedFile(f"{common}/packed-refs", "makes objects look different"))
    found += _modules(f"{common}/modules")
    if text(f"{tree}/.git") != f"gitdir: {admin}\n":
        found.append(PlantedFile(f"{tree}/.git", "the worktree's pointer leads elsewhere"))
    if text(f"{admin}/commondir").strip() != "../..":
        found.append(PlantedFile(f"{admin}/commondir", "says that the repository is elsewhere"))
    if head(admin) != f"ref: refs/heads/{branch}":
        found.append(PlantedFile(f"{admin}/HEAD", f"is not on the branch {branch}"))
    ours = {f"{tree}/.git"}
    for path in sorted(find_protected(tree) - ours):
        found.append(PlantedFile(path, "a protected name: another program may run what it says"))
    return tuple(found)


def _configs(*paths: str) -> list[PlantedFile]:
    found = []
    for path in paths:
        for section, key, value in parse(text(path)):
            keys = COMMANDS.get(section, ())
            if (key in keys or "*" in keys) and value.lower() not in ("", "false"):
                found.append(PlantedFile(path, f"{section}.{key} is {value!r}"))
    return found


def _hooks(directory: str) -> list[PlantedFile]:
    """Hooks that git would run; the samples it ships are none."""
    if os.path.islink(directory):
        return [PlantedFile(directory, "the hooks are elsewhere")]
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [
        PlantedFile(f"{directory}/{name}", "a hook")
        for name in names
        if not name.endswith(".sample") and _runs(f"{directory}/{name}")
    ]


def _runs(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISLNK(mode) or bool(stat.S_ISREG(mode) and mode & 0o111)


def _modules(directory: str) -> list[PlantedFile]:
    """The git directories of submodules, at any depth that is sane."""
    found: list[PlantedFile] = []
    pending = [(directory, 0)]
    while pending:
        place, depth = pending.pop()
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        if "HEAD" in names and "objects" in names:
            found += [*_configs(f"{place}/config"), *_hooks(f"{place}/hooks")]
            place, names = f"{place}/modules", []
            pending.append((place, depth + 1))
        if depth < 20:
            pending += [
                (f"{place}/{name}", depth + 1) for name in names if not os.path.islink(f"{place}/{name}")
            ]
    return found


#: Between two commits, or a commit and an index, a link to another repository is only a number:
#: git does not look into it. Where a tree is looked at it would, so there they stay left out.
WITH_REPOSITORIES = "--ignore-submodules=dirty"

_EXECUTABLE, _LINK, _REPOSITORY = b"100755", b"120000", b"160000"
#: More links than this are named, but it is not looked where they lead.
_MOST_LINKS = 200
_LONGEST_PATH = 4096


def worth_a_look(git: Git, base: str, tip: str) -> tuple[PlantedFile, ...]:
    """New executables, links out of the tree, and other repositories, from `base` to `tip`."""
    said = git.run("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", WITH_REPOSITORIES, base, tip)
    fields = said.split(b"\0")
    found = []
    links = 0
    for meta, name in zip(fields[0::2], fields[1::2], strict=False):
        before, mode, _, blob, _ = meta.removeprefix(b":").split(b" ")
        path = os.fsdecode(name)
        if mode == _EXECUTABLE and before != mode:
            found.append(PlantedFile(path, "can be run now"))
        elif mode == _REPOSITORY:
            found.append(PlantedFile(path, "is another repository, which git may fetch and enter"))
        elif mode == _LINK:
            links += 1
            target = _target(git, blob.decode()) if links <= _MOST_LINKS else None
            if target is None or _leads_out(path, target):
                found.append(PlantedFile(path, f"is a link out of the tree, to {target or 'somewhere'!r}"))
    return tuple(found)


def _target(git: Git, blob: str) -> str | None:
    if int(git.run("cat-file", "-s", blob)) > _LONGEST_PATH:
        return None
    return os.fsdecode(git.run("cat-file", "blob", blob))


def _leads_out(path: str, target: str) -> bool:
    """By its letters alone: another link on the way is a finding of its own."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target.startswith("/") or place == ".." or place.startswith("../")
