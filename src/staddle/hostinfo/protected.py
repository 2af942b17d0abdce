"""Protected names: the list, the walk that finds them below a directory, and the comparison of names.

The walk, the review of a commit and the file tools all compare names with `folded`.
"""

from __future__ import annotations

import os
import stat

from ..check import several
from ..errors import PolicyError
from ..paths import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Literal

    Kind = Literal["file", "directory", "link", "named"]

# The protected names: files through which a directory makes another program run a command. Data only.
#
# A sandbox that may write a directory could leave a command there for the next program that opens it: a git
# hook, a shell start file, an editor's task. `Policy(unprotect=...)` makes such a name writable.
#
# The list leaves out ordinary work that runs when the project is built or tested: Makefiles, Justfiles,
# tests, package scripts, `.github/workflows`. It also leaves out `.gitattributes` (which only selects drivers
# from a protected config) and AGENTS.md.


#: In every git directory: `.git`, of a submodule, of a worktree, a bare repository.
GIT = (
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/hooks",
    ".git/info/attributes",
    ".git/sl/config",
    ".git/rebase-merge",
    ".git/rebase-apply",
    ".git/sequencer",
)
#: Files about an operation in progress. Deleting them is harmless: the operation was finished.
UNFINISHED = frozenset((".git/rebase-merge", ".git/rebase-apply", ".git/sequencer"))

#: Protected as a file or a link, which leads to another repository, but not as a directory.
POINTERS = frozenset((".git", ".jj/repo"))

#: All configuration files that lefthook reads, and the directories of its scripts.
_LEFTHOOK = (
    ".lefthook",
    ".lefthook-local",
    *(
        f"{dot}lefthook{local}.{end}"
        for dot in (".", "")
        for local in ("", "-local")
        for end in ("yml", "yaml", "toml", "json", "jsonc")
    ),
)

#: All protected names by reason. In a name of one part, a star stands for any text.
_BY_REASON: dict[str, tuple[str, ...]] = {
    # `.git` is the pointer file of a worktree or submodule. A rebase's list of steps can contain `exec`.
    "git runs what it names": (".git", *GIT, ".gitmodules", ".gitconfig", ".config/git"),
    "git runs it through a hook that is installed once": (
        ".husky",
        ".huskyrc",
        ".huskyrc.*",
        "husky.config.js",
        ".config/husky",
        ".githooks",
        ".git-hooks",
        ".pre-commit-config.yaml",
        ".pre-commit-config.yml",
        "prek.toml",
        *_LEFTHOOK,
        ".overcommit.yml",
        ".local-overcommit.yml",
    ),
    "another version control runs what it names": (
        ".hg/hgrc",
        ".hg/hgrc-not-shared",
        ".hg/sharedpath",
        ".hgrc",
        ".config/hg",
        ".sl/config",
        ".sl/sharedpath",
        ".config/sapling",
        ".jj/repo",
        ".jj/repo/config.toml",
        ".jj/repo/config-id",
        ".jj/workspace-config.toml",
        ".jj/workspace-config-id",
        ".jjconfig.toml",
        ".config/jj",
    ),
    "a shell runs it when it starts, or when the directory is entered": (
        ".bashrc",
        ".bash_profile",
        ".bash_login",
        ".bash_logout",
        ".bash_aliases",
        ".bash_completion",
        ".profile",
        ".zshrc",
        ".zshenv",
        ".zprofile",
        ".zlogin",
        ".zlogout",
        ".zshrc.zwc",
        ".zshenv.zwc",
        ".zprofile.zwc",
        ".zlogin.zwc",
        ".zlogout.zwc",
        ".config/zsh",
        ".oh-my-zsh",
        ".kshrc",
        ".cshrc",
        ".tcshrc",
        ".login",
        ".logout",
        ".inputrc",
        ".config/fish",
        ".config/nushell",
        ".config/starship.toml",
        ".envrc",
        ".direnvrc",
        ".config/direnv",
        ".rvmrc",
        ".nvm/nvm.sh",
        ".cargo/env",
        ".cargo/env.fish",
        ".cargo/env.nu",
        "mise.toml",
        "mise.*.toml",
        ".mise.toml",
        ".mise.*.toml",
        ".mise",
        "mise/config.toml",
        "mise/config.local.toml",
        ".config/mise",
        ".tool-versions",
        ".asdfrc",
    ),
    "a session of the desktop starts what it names": (
        ".xinitrc",
        ".xprofile",
        ".xsession",
        ".xsessionrc",
        ".pam_environment",
        ".config/autostart",
        ".config/environment.d",
        ".config/systemd",
        ".config/i3",
        ".config/sway",
        ".config/hypr",
        ".local/share/applications",
        ".local/share/systemd",
    ),
    "it is on the PATH of its owner": (".local/bin", ".cargo/bin"),
    "a terminal or a multiplexer starts what it names": (
        ".tmux.conf",
        ".config/tmux",
        ".screenrc",
        ".config/kitty",
        ".config/alacritty",
        ".config/wezterm",
        ".wezterm.lua",
    ),
    "a login elsewhere trusts it, or runs what it names": (
        ".ssh",
        ".netrc",
        ".gnupg",
        ".aws/config",
        ".aws/credentials",
        ".kube/config",
        ".docker/config.json",
        ".config/containers",
        ".config/gcloud",
        ".config/gh",
    ),
    "an editor runs what it names": (
        ".vscode",
        ".vscode-server",
        "*.code-workspace",
        ".config/Code",
        ".config/Cursor",
        ".config/VSCodium",
        ".idea",
        ".zed",
        ".config/zed",
        ".fleet",
        ".helix",
        ".config/helix",
        ".devcontainer",
        ".devcontainer.json",
        ".vim",
        ".vimrc",
        ".gvimrc",
        "_vimrc",
        "_gvimrc",
        ".config/vim",
        ".exrc",
        "_exrc",
        ".nvimrc",
        ".nvim.lua",
        ".config/nvim",
        ".emacs",
        ".emacs.el",
        ".emacs.elc",
        ".emacs.d",
        ".config/emacs",
        ".dir-locals.el",
        ".dir-locals-2.el",
    ),
    "a debugger, an interpreter or a client runs it when it starts": (
        ".gdbinit",
        ".gdbearlyinit",
        ".config/gdb",
        ".lldbinit",
        ".lldbinit-*",
        ".pdbrc",
        ".pdbrc.py",
        ".pythonrc",
        ".pythonrc.py",
        ".ipython",
        ".jupyter",
        ".irbrc",
        "_irbrc",
        "irb.rc",
        ".config/irb",
        ".pryrc",
        ".config/pry",
        ".Rprofile",
        ".Renviron",
        ".RData",
        ".ghci",
        ".psqlrc",
        ".psqlrc-*",
        ".sqliterc",
        ".config/sqlite3",
        ".my.cnf",
        ".terraformrc",
        ".tofurc",
    ),
    "a package manager or a download takes its programs from the place that it names": (
        ".npmrc",
        ".yarnrc",
        ".yarnrc.yml",
        ".yarn/plugins",
        ".yarn/releases",
        ".pnpmfile.cjs",
        ".pnpmfile.mjs",
        "bunfig.toml",
        ".bunfig.toml",
        ".cargo/config",
        ".cargo/config.toml",
        ".condarc",
        ".pypirc",
        ".pip",
        ".config/pip",
        "uv.toml",
        ".config/uv",
        ".gemrc",
        ".bundle/config",
        ".m2/settings.xml",
        ".gradle/init.gradle",
        ".gradle/init.gradle.kts",
        ".gradle/init.d",
        ".curlrc",
        "_curlrc",
        ".config/curlrc",
        ".wgetrc",
    ),
    "staddle reads it as the policy of the next run": ("staddle.toml",),
    "a coding agent starts what its settings name": (
        ".agents",
        ".aider.conf.yml",
        ".amazonq",
        ".augment",
        ".claude",
        ".claude.json",
        ".cline",
        ".clinerules",
        ".codex",
        ".config/crush",
        ".config/goose",
        ".config/opencode",
        ".continue",
        ".copilot",
        ".crush.json",
        ".cursor",
        ".cursorrules",
        ".factory",
        ".gemini",
        ".goosehints",
        ".junie",
        ".kilocode",
        ".kiro",
        ".mcp.json",
        ".opencode",
        ".qwen",
        ".roo",
        ".trae",
        ".windsurf",
        "crush.json",
        "opencode.json",
        "opencode.jsonc",
    ),
}
#: The reason why each name is protected.
REASONS = {name: reason for reason, names in _BY_REASON.items() for name in names}
NAMES = tuple(REASONS)

#: Maximum number of entries below the write grants. More are refused, not searched in part.
MOST_ENTRIES = 1_000_000

#: Characters that HFS+ (see git's is_hfs_dotgit) or a case-folding ext4 ignores in names: Unicode's
#: Default_Ignorable_Code_Point. Two more letters equal "i" in some locales.
_IGNORED: dict[int, str | None] = dict.fromkeys(
    (
        *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0x200B, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2070),
        *range(0xFE00, 0xFE10),
        *range(0xFFF0, 0xFFF9),
        *range(0x1BCA0, 0x1BCA4),
        *range(0x1D173, 0x1D17B),
        *range(0xE0000, 0xE1000),
    )
) | {0x130: "i", 0x131: "i"}


def _short_names(part: str) -> tuple[str, ...]:
    """Return the short names that NTFS and FAT give a long name: `git~1` for `.git`."""
    base, _, end = part.lstrip(".").rpartition(".")
    base, end = (base, end) if base else (end, "")
    base = base.replace(".", "")
    if not part.startswith(".") and len(base) <= 8 and len(end) <= 3:
        return ()
    return tuple(f"{base[:6]}~{digit}{'.' if end else ''}{end[:3]}" for digit in range(1, 5))


#: Short names of all parts of protected names: `git~1` -> .git.
_SHORT = {
    short: part
    for name in NAMES
    for part in name.lower().split("/")
    if "*" not in part
    for short in _short_names(part)
} | {f"gi7eba~{digit}": ".gitmodules" for digit in range(1, 10)}  # after the fourth, by a hash


def folded(path: str) -> str:
    """Return a name or path as the least exact file systems compare it.

    They ignore case, invisible characters, a dot or space at the end, and a stream (`.git::$DATA`). A short
    name (`git~1`) becomes the long name.
    """
    low = path.lower() if path.isascii() else path.translate(_IGNORED).casefold() or path
    if low.endswith((" ", ".")) or ":" in low or "~" in low or " /" in low or "./" in low:
        return "/".join([_folded_part(part) for part in low.split("/")])
    return low


def _folded_part(part: str) -> str:
    part = part.partition(":")[0].rstrip(" .") or part
    return _SHORT.get(part, part)


#: By folded name.
_NAME_OF = {name.lower(): name for name in NAMES}
#: Names with a star, as (prefix, suffix, name).
_STARRED = tuple((*name.lower().split("*"), name) for name in NAMES if "*" in name)
_STAR_BEGINS = tuple(begin for begin, _, _ in _STARRED if begin)
_STAR_ENDS = tuple(end for begin, end, _ in _STARRED if not begin)
_ALONE = {name.lower(): name for name in NAMES if "/" not in name and name not in POINTERS}
#: `.config` -> fish, autostart, ...; `.git` -> config, hooks, info/attributes, ...
_BELOW: dict[str, tuple[str, ...]] = {
    first: tuple(name[len(first) + 1 :] for name in NAMES if name.startswith(f"{first}/"))
    for first in {name.partition("/")[0] for name in NAMES if "/" in name}
}
#: Directories in a protected name: `.git`, `info`, `repo`, ...
_MIDDLES = frozenset(part for name in _NAME_OF for part in name.split("/")[:-1])
_PARTS = frozenset(part for name in _NAME_OF for part in name.split("/"))
_LAST_PARTS = frozenset(name.rpartition("/")[2] for name in _NAME_OF)
#: Parents of protected names: `.config` -> .config/fish; `.jj/repo` -> .jj/repo/config.toml.
_BEGINNINGS = {name[:at]: _NAME_OF[name] for name in _NAME_OF for at in range(len(name)) if name[at] == "/"}
#: Names without a leading dot that the walk must check.
_DOTLESS = frozenset({"head", *(name for name in (*_ALONE, *_BELOW) if name[0] != ".")})
#: Directories inside a git directory that contain no protected name. They are the large ones.
_GIT_DATA = frozenset({"objects", "refs", "logs", "lfs"})


class ProtectedName:
    """One existing protected name.

    A `link` cannot be guarded. `named` is a path to which the git directory or hook `by` leads.
    """

    __slots__ = ("by", "kind", "name", "path")

    def __init__(self, path: str, kind: Kind, name: str, by: str = "") -> None:
        self.path, self.kind, self.name, self.by = path, kind, name, by


def checked_names(names: object) -> tuple[str, ...]:
    """Return the names of `unprotect`: checked, sorted, without duplicates."""
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
    """Return the protected name at the end of the absolute `path`, if any; not a pointer."""
    parts = folded(path).rsplit("/", 3)[1:]
    for count in range(1, len(parts) + 1):
        name = _NAME_OF.get("/".join(parts[-count:]))
        if name is not None and name not in POINTERS:
            return name
    return _with_star(parts[-1]) if parts else None


def pointer_name(path: str) -> str | None:
    """Return the pointer name at the end of `path`: it is protected unless it is a directory."""
    low = folded(path)
    return next((name for name in POINTERS if low == name or low.endswith(f"/{name}")), None)


def can_be_protected(low: str) -> bool:
    """Whether a path with this folded last part can be a protected name or an alias. Most cannot."""
    return low in _LAST_PARTS or low in _BELOW or _with_star(low) is not None


def begins_protected(path: str) -> str | None:
    """Return a protected name that starts at the end of `path`: for `.config`, `.config/fish`."""
    parts = folded(path).rsplit("/", 2)[1:]
    for count in range(1, len(parts) + 1):
        if name := _BEGINNINGS.get("/".join(parts[-count:])):
            return name
    return None


def is_alias(name: str) -> bool:
    """Whether a link with this name would turn its target into a protected name, or its parent."""
    low = folded(name)
    return low in _ALONE or low in _BELOW or _with_star(low) is not None


def _with_star(low: str) -> str | None:
    if not low.startswith(_STAR_BEGINS) and not low.endswith(_STAR_ENDS):
        return None
    for begin, end, name in _STARRED:
        if low.startswith(begin) and low.endswith(end) and len(low) > len(begin) + len(end):
            return name
    return None


def find_protected(root: str, unprotect: Iterable[str] = ()) -> set[str]:
    """Return all protected names below `root`, to compare before and after a run. Never raises.

    Leaves out unreadable directories, and everything beyond the limit of the walk.
    """
    found: set[str] = set()
    try:
        for finding in walk([root], unprotect=unprotect, strict=False):
            if finding.kind != "named" or (covers(root, finding.path) and os.path.lexists(finding.path)):
                found.add(finding.path)
    except PolicyError:
        pass
    return found


def walk(
    roots: Iterable[str],
    *,
    unprotect: Iterable[str] = (),
    skip: Collection[str] = (),
    strict: bool = True,
) -> Iterator[ProtectedName]:
    """Yield the protected names below `roots`, with the rights of the caller. Follows no link.

    A root that is itself a protected name was granted on purpose, so nothing below it is guarded. `skip` are
    paths that are not visible inside. Other file systems below a root are searched, too, because a bind mount
    of the root includes them, writable.
    """
    names = frozenset(NAMES).difference(unprotect)
    left = MOST_ENTRIES
    done = set(skip)
    for root in roots:
        if folded(root[root.rfind("/") + 1 :]) in _PARTS:
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
            is_git = folded(directory[directory.rfind("/") + 1 :]) == ".git"
            for entry in entries:
                name = folded(entry.name)
                if name[0] == "." or name in _DOTLESS or _with_star(name):
                    is_git = is_git or (name == "head" and _is_git_directory(directory))
                    yield from _new(_protected(entry, name, names), done)
                if entry.is_dir(follow_symlinks=False) and not (is_git and name in _GIT_DATA):
                    todo.append(entry.path)
            if is_git:
                yield from _new(_git_directory(directory, names), done)


def _new(findings: Iterable[ProtectedName], done: set[str]) -> Iterator[ProtectedName]:
    """Yield findings at new paths. The walk does not descend into a finding."""
    for finding in findings:
        if finding.path not in done:
            done.add(finding.path)
            yield finding


def _protected(entry: os.DirEntry[str], name: str, names: frozenset[str]) -> Iterator[ProtectedName]:
    """Yield the findings at one entry of an ordinary directory."""
    if alone := _ALONE.get(name) or _with_star(name):
        if alone in names:
            yield ProtectedName(entry.path, _kind(entry.stat(follow_symlinks=False).st_mode), alone)
    elif name == ".git":
        if entry.is_dir(follow_symlinks=False) or name not in names:
            return  # the walk visits the directory later
        yield ProtectedName(entry.path, "link" if entry.is_symlink() else "file", name)
        if entry.is_file(follow_symlinks=False):
            yield from _sent_on_to(entry.path, names)
    elif name in _BELOW:
        if not entry.is_symlink():
            yield from _at(entry.path, [(rest, f"{name}/{rest}") for rest in _BELOW[name]], names)
        else:
            for rest in _BELOW[name]:
                path, full = f"{entry.path}/{rest}", f"{name}/{rest}"
                if full in names and os.path.lexists(path) and not (full in POINTERS and os.path.isdir(path)):
                    yield ProtectedName(entry.path, "link", full)


def _git_directory(directory: str, names: frozenset[str]) -> Iterator[ProtectedName]:
    """Yield protected names in `.git`, a bare repository, or the directory of a worktree or submodule."""
    for finding in _at(directory, [(rest, f".git/{rest}") for rest in _BELOW[".git"]], names):
        yield finding
        if finding.kind == "directory":
            # A hook may be a link to a file of the working tree; then that file is the hook.
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
    """Yield names for a root inside such a directory: `.git/info` may contain the `attributes` of `.git`."""
    low = folded(root)
    if low.rpartition("/")[2] not in _MIDDLES or low.endswith("/.git"):
        return
    for first, rests in _BELOW.items():
        for rest in rests:
            parts = f"{first}/{rest}".split("/")
            for count in range(1, len(parts)):
                if low.endswith("/" + "/".join(parts[:count])):
                    yield from _at(root, [("/".join(parts[count:]), f"{first}/{rest}")], names)


def _at(directory: str, places: Iterable[tuple[str, str]], names: frozenset[str]) -> Iterator[ProtectedName]:
    """Yield the existing `places` (path below `directory`, name), in any spelling, and links on the way."""
    listed: dict[str, dict[str, list[os.DirEntry[str]]]] = {}
    for rest, name in places:
        if name in names:
            yield from _spelled(directory, rest.lower().split("/"), name, listed)


def _spelled(
    directory: str, parts: list[str], name: str, listed: dict[str, dict[str, list[os.DirEntry[str]]]]
) -> Iterator[ProtectedName]:
    if directory not in listed:
        listed[directory] = {}
        for entry in _entries(directory, strict=False):
            listed[directory].setdefault(folded(entry.name), []).append(entry)
    for entry in listed[directory].get(parts[0], ()):
        try:
            kind = _kind(entry.stat(follow_symlinks=False).st_mode)
        except OSError:
            continue  # deleted meanwhile
        if kind == "directory" and len(parts) > 1:
            yield from _spelled(entry.path, parts[1:], name, listed)
        elif kind == "link" or (len(parts) == 1 and not (kind == "directory" and name in POINTERS)):
            yield ProtectedName(entry.path, kind, name)


def _kind(mode: int) -> Kind:
    return "link" if stat.S_ISLNK(mode) else "directory" if stat.S_ISDIR(mode) else "file"


def _is_git_directory(directory: str) -> bool:
    """Whether git treats a directory as a repository (git also checks the content of HEAD; we do not)."""
    there = {name for name in ("objects", "refs", "commondir") if os.path.lexists(f"{directory}/{name}")}
    return "commondir" in there or {"objects", "refs"} <= there


def _entries(directory: str, strict: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []  # deleted meanwhile
    except OSError as error:
        if not strict or (isinstance(error, PermissionError) and not _is_ours(directory)):
            return []  # the sandbox cannot open a directory that we neither own nor can open
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
