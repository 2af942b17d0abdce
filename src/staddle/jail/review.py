"""Our own git index of a workspace's tree (differences from the branch, the tree to commit), and its review.

staddle does not read the agent's own index: the agent could have written anything into it.

The review finds changes that are easy to miss in a diff (modes, links, other repositories), and files that
make other programs run commands. It reads these files and never runs them. Our own git calls ignore them (see
`git`); the user's git, editor and shell would not. A finding does not prove bad intent: a hook may be the
user's own.
"""

from __future__ import annotations

import os
import stat
import time

from .._value import Value
from ..hostinfo.gitconfig import parse
from ..hostinfo.protected import find_protected
from ..layers.differences import Difference
from ..layers.merged_view import Merged
from ..layers.review import Conflict, NeedsApproval, held_changes
from .git import head, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from ..layers.differences import Kind
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
    """A file that makes programs run commands, and its effect."""

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
        (f"{common}/commondir", "names a repository elsewhere"),
    ):
        if os.path.lexists(path):
            found.append(PlantedFile(path, what))
    if " refs/replace/" in text(f"{common}/packed-refs", 64 << 20):
        found.append(PlantedFile(f"{common}/packed-refs", "makes objects look different"))
    found += _modules(f"{common}/modules")
    if text(f"{tree}/.git") != f"gitdir: {admin}\n":
        found.append(PlantedFile(f"{tree}/.git", "the worktree's pointer names another repository"))
    if text(f"{admin}/commondir").strip() != "../..":
        found.append(PlantedFile(f"{admin}/commondir", "names a repository elsewhere"))
    if head(admin) != f"ref: refs/heads/{branch}":
        found.append(PlantedFile(f"{admin}/HEAD", f"is not on the branch {branch}"))
    ours = {f"{tree}/.git"}
    for path in sorted(find_protected(tree) - ours):
        found.append(PlantedFile(path, "a protected name: another program may run what it contains"))
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
    """Hooks that git would run, without git's samples."""
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
    """The git directories of submodules, down to a limited depth."""
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


#: Between two commits, or a commit and an index, git compares nested repositories by their commit only. In a
#: comparison with a working tree git would look into them, so they are left out there.
WITH_REPOSITORIES = "--ignore-submodules=dirty"

_EXECUTABLE, _LINK, _REPOSITORY = b"100755", b"120000", b"160000"
#: Further links are listed, but their targets are not checked.
_MOST_LINKS = 200
_LONGEST_PATH = 4096


def worth_a_look(git: Git, base: str, tip: str) -> tuple[PlantedFile, ...]:
    """New executables, links out of the tree, and other repositories, from `base` to `tip`."""
    found = []
    links = 0
    for before, mode, blob, path in _changed(git, base, tip):
        if mode == _EXECUTABLE and before != mode:
            found.append(PlantedFile(path, "can be run now"))
        elif mode == _REPOSITORY:
            found.append(PlantedFile(path, "is another repository, which git may fetch and enter"))
        elif mode == _LINK:
            links += 1
            target = _target(git, blob) if links <= _MOST_LINKS else None
            if target is None or _leads_out(path, target):
                found.append(PlantedFile(path, f"is a link out of the tree, to {target or 'somewhere'!r}"))
    return tuple(found)


class TreeChange(Value):
    """One path at which two trees differ; `kind` is one of those of `Change`."""

    kind: Kind
    path: str


class WorkspaceReview(Value):
    """The commit that `Workspace.commit_all` would make, as it was at one moment: a tree object of git.

    `tip` is the commit that it would follow, `tree` the tree object, `changed` the differences between them.
    `held` need approval. `digest` names both for `staddle jail commit --review`, and for git.
    """

    tip: str
    tree: str
    changed: tuple[TreeChange, ...]
    held: tuple[NeedsApproval, ...]

    @property
    def digest(self) -> str:
        """`TIP..TREE`. Two reviews that differ anywhere, even in content, have different ones."""
        return f"{self.tip}..{self.tree}"


def reviewed(git: Git, tip: str, tree: str) -> WorkspaceReview:
    """The review of a commit of `tree` after `tip`. It reads git's objects only, never the working tree."""

    def entry(mode: bytes) -> Merged:
        status = os.stat_result((int(mode, 8), *(0,) * 9)) if mode.strip(b"0") else None
        return Merged(status, (), True)

    def kind(before: bytes, mode: bytes) -> Kind:
        if not mode.strip(b"0"):
            return "deleted"
        if not before.strip(b"0"):
            return "added"
        return "link" if mode == _LINK else "modified" if before[:3] == mode[:3] else "type"

    found = [
        Difference(kind(before, mode), path, entry(mode), entry(before))
        for before, mode, _, path in _changed(git, tip, tree)
    ]
    held = held_changes(GitTree(git, tree), found) if found else ()
    return WorkspaceReview(tip, tree, tuple(TreeChange(item.kind, item.path) for item in found), tuple(held))


def changed_between(git: Git, before: str, after: str) -> tuple[Conflict, ...]:
    """Every path at which two trees or commits differ, as the objection to a commit."""
    return tuple(
        Conflict(path, "modified", "it changed since the review")
        for _, _, _, path in _changed(git, before, after)
    )


class GitTree:
    """A tree object of git, in which names are looked up as in a layer (`Names`).

    An agent can change the working tree while staddle looks at it, so the answers come from git's objects.
    """

    def __init__(self, git: Git, tree: str) -> None:
        self._git = git
        self._modes: dict[str, int] = {"": stat.S_IFDIR}
        self._names: dict[str, list[str]] = {}
        self._blobs: dict[str, str] = {}
        self._targets: dict[str, str] | None = None
        for row in git.run("ls-tree", "-r", "-t", "-z", tree).split(b"\0")[:-1]:
            meta, _, name = row.partition(b"\t")
            mode, _, blob = meta.split(b" ")
            path = os.fsdecode(name)
            parent, _, last = path.rpartition("/")
            self._modes[path] = int(mode, 8)
            self._names.setdefault(parent, []).append(last)
            if mode == _LINK:
                self._blobs[path] = blob.decode()

    @property
    def layers(self) -> tuple[GitTree, ...]:
        """None: a tree object is complete."""
        return ()

    @property
    def bases(self) -> tuple[GitTree, ...]:
        """The tree itself."""
        return (self,)

    def status(self, path: str) -> os.stat_result | None:
        """The status of `path`, of which only the mode is set, or None."""
        mode = self._modes.get(path)
        return None if mode is None else os.stat_result((mode, *(0,) * 9))

    def names(self, path: str) -> list[str]:
        """The names in the directory at `path`; empty if there is no such directory."""
        return self._names.get(path, [])

    def link_target(self, path: str) -> str:
        """The target of the link at `path`; "/" if git does not have it, or no file system could have it."""
        if self._targets is None:
            self._targets = self._all_targets()
        return self._targets.get(path, "/")

    def _all_targets(self) -> dict[str, str]:
        """The target of every link, from two calls of git. A blob can be larger than any target."""
        ids = sorted(set(self._blobs.values()))
        sizes = self._git.run("cat-file", "--batch-check=%(objectsize)", data=_lines(ids)).splitlines()
        small = [
            blob
            for blob, size in zip(ids, sizes, strict=True)
            if size.isdigit() and int(size) <= _LONGEST_PATH
        ]
        said = self._git.run("cat-file", "--batch=%(objectsize)", data=_lines(small))
        content, at = {}, 0
        for blob in small:
            size, _, _ = said[at : at + 20].partition(b"\n")
            at += len(size) + 1
            content[blob] = os.fsdecode(said[at : at + int(size)])
            at += int(size) + 1
        return {path: content[blob] for path, blob in self._blobs.items() if blob in content}

    def give_back(self) -> None:
        """Do nothing: there are no rights to remove."""


def _lines(ids: Iterable[str]) -> bytes:
    return "".join(f"{each}\n" for each in ids).encode()


def _changed(git: Git, base: str, tip: str) -> Iterator[tuple[bytes, bytes, str, str]]:
    """(mode before, mode after, object after, path) of each file that differs."""
    said = git.run("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", WITH_REPOSITORIES, base, tip)
    fields = said.split(b"\0")
    for meta, name in zip(fields[0::2], fields[1::2], strict=False):
        before, mode, _, blob, _ = meta.removeprefix(b":").split(b" ")
        yield before, mode, blob.decode(), os.fsdecode(name)


def _target(git: Git, blob: str) -> str | None:
    if int(git.run("cat-file", "-s", blob)) > _LONGEST_PATH:
        return None
    return os.fsdecode(git.run("cat-file", "blob", blob))


def _leads_out(path: str, target: str) -> bool:
    """Judged by the path alone: another link on the way is a finding of its own."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target.startswith("/") or place == ".." or place.startswith("../")


#: Seconds after which a copy is assumed to come from a killed process.
_STALE = 3600.0


class GitIndex:
    """`with GitIndex(git) as index:` a copy of the stored index, which replaces it after success.

    A copy, because git locks the index with a file: two processes would conflict, and a killed one would
    leave its lock behind. The stored index only avoids reading unchanged files again.

    With `only_looking`, new objects go to a temporary directory that is deleted with the copy: the repository
    and the stored index stay unchanged.
    """

    def __init__(self, git: Git, *, only_looking: bool = False) -> None:
        import secrets

        self._git = git
        self._kept = f"{git.directory}/index"
        self.path = f"{self._kept}.{secrets.token_hex(8)}"
        self._aside = f"{self.path}.objects" if only_looking else ""
        self._env = {"GIT_INDEX_FILE": self.path}
        if only_looking:
            self._env["GIT_OBJECT_DIRECTORY"] = self._aside
            self._env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(f"{git.common}/objects")

    def __enter__(self) -> Self:
        self._sweep()
        if self._aside:
            os.mkdir(self._aside, 0o700)
        try:
            with open(self._kept, "rb") as kept, open(self.path, "xb") as copy:
                info = os.fstat(kept.fileno())
                copy.write(kept.read())
            # Git rereads a file that is not older than the index. A copy with a newer time would hide a
            # change made in the same tick.
            os.utime(self.path, ns=(info.st_atime_ns, info.st_mtime_ns))
        except FileNotFoundError:
            pass  # first use: git makes one
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._aside:
            _remove(self._aside)
        elif error is None and os.path.exists(self.path):
            os.replace(self.path, self._kept)
        for path in (self.path, f"{self.path}.lock"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue

    def read(self, commit: str) -> None:
        """Load `commit` into the index, keeping the cached facts about unchanged files."""
        from ..errors import GitFailed

        try:
            self._run("read-tree", "-m", commit)
        except GitFailed:
            self._run("read-tree", "--reset", commit)
        try:
            self._run("update-index", "-q", "--refresh")
        except GitFailed:
            pass  # reports that files differ, which `differing` lists

    def differing(self) -> Iterator[str]:
        """Changed or deleted tracked files, then new, unignored files. None of nested repositories."""
        links = {
            entry.partition(b"\t")[2]
            for entry in self._run("ls-files", "-s", "-z").split(b"\0")
            if entry.startswith(b"160000 ")
        }
        for path in set(self._run("ls-files", "-m", "-d", "-z").split(b"\0")):
            if path and path not in links:
                yield os.fsdecode(path)
        # A name with a trailing slash is another repository, which we must not open.
        for path in self._run("ls-files", "-o", "--exclude-standard", "-z").split(b"\0"):
            if path and not path.endswith(b"/"):
                yield os.fsdecode(path)

    def take(self, paths: Iterable[str]) -> None:
        """Add these files from the tree to the index; missing ones are removed."""
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        if names:
            self._run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", data=names)

    def tree(self) -> str:
        """The id of a tree object with its whole content."""
        return self._run("write-tree").decode().strip()

    def against(self, commit: str, *options: str) -> bytes:
        """The diff from `commit` to the index, in the format of `git diff`."""
        return self._run("diff", "--no-renames", WITH_REPOSITORIES, *options, "--cached", commit)

    def check_out(self) -> None:
        """Write all its files to the tree."""
        self._run("checkout-index", "--all", "--index")

    def _run(self, command: str, *arguments: str, data: bytes = b"") -> bytes:
        return self._git.run(command, *arguments, data=data, env=self._env)

    def _sweep(self) -> None:
        """Remove copies left by a killed process."""
        before = time.time() - _STALE
        with os.scandir(self._git.directory) as entries:
            for entry in entries:
                if entry.name.startswith("index."):
                    try:
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            _remove(entry.path) if entry.is_dir() else os.unlink(entry.path)
                    except OSError:
                        continue  # another process removed it first


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _quoted(path: str) -> str:
    """Quote a path for a list that git reads: a colon in a name would end it."""
    spelled = "".join(
        f"\\{byte:03o}" if byte < 32 or byte > 126 or byte in b'"\\' else chr(byte)
        for byte in os.fsencode(path)
    )
    return f'"{spelled}"'
