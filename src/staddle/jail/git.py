"""The only module that runs git on a tree that a sandbox could have touched.

Git runs commands that a repository names: hooks, a file system monitor, filters, pagers, editors, transports,
aliases, credential helpers. A list of settings to switch off is never complete. So git gets a git directory
of *our own* (`build`), which no sandbox can write. It has our config and our index, and no hooks, attributes
or logs. From the real repository it sees only data, by link: the objects, the refs, the patterns of
`info/exclude`. Git never reads the config that a sandbox left in the repository, under any of its names.

Three risks remain: attributes in the tree (they can only pick drivers from a config without drivers),
repositories nested in the tree (`COMMANDS` never look into them), and links in the object and ref directories
(`Git.check` refuses).
"""

from __future__ import annotations

import os
import stat

from ..errors import GitFailed, GitRefused
from ..hostinfo.gitconfig import parse, parse_subsections
from ..linux import fileio
from ..linux.programs import DIRECTORIES, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The commands that may run. Each reads or writes objects, refs and our index. With the options that `run`
#: adds, none starts another program or a git in a nested repository. `git add` and `git status` do start one
#: for submodules, in a clean environment that `-c` does not reach.
COMMANDS: dict[str, tuple[str, ...]] = {
    "cat-file": (),
    "check-ref-format": (),
    "checkout-index": (),
    "commit-tree": ("--no-gpg-sign",),
    "diff": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color"),
    "diff-files": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color"),
    "diff-tree": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color"),
    "fsck": ("--no-dangling", "--no-progress"),
    "log": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color", "--no-show-signature"),
    "ls-files": (),
    "ls-tree": (),
    "merge-base": (),
    "read-tree": ("--no-recurse-submodules",),
    "rev-list": (),
    "rev-parse": (),
    "show": (
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=all",
        "--no-color",
        "--no-show-signature",
    ),
    "status": ("--ignore-submodules=all", "--no-renames"),
    "update-index": (),
    "update-ref": ("--no-deref",),
    "write-tree": (),
}
#: Repeated on every command line, in case a config reaches git in another way.
PINNED = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.alternateRefsCommand=true",
    "core.askPass=true",
    "core.editor=true",
    "core.gitProxy=true",
    "core.pager=cat",
    "core.sshCommand=false",
    "commit.gpgSign=false",
    "credential.helper=",
    "diff.ignoreSubmodules=all",
    "gc.auto=0",
    "gpg.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
    "log.showSignature=false",
    "maintenance.auto=false",
    "protocol.allow=never",
    "protocol.ext.allow=never",
    "protocol.file.allow=never",
    "safe.bareRepository=explicit",
    "sequence.editor=true",
    "submodule.recurse=false",
    # A commit graph or a pack index could contradict the objects.
    "core.commitGraph=false",
    "core.multiPackIndex=false",
    "pack.useBitmaps=false",
)
ENVIRONMENT = {
    "PATH": ":".join(DIRECTORIES),
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ASKPASS": "true",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_EDITOR": "true",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS": "true",
}
#: Variables of the user that would make a push use another repository.
_REPOSITORY = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_SHALLOW_FILE"),
)
#: For a push, in addition to the user's own config, which has logins and transports.
_PUSHING = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.alternateRefsCommand=true"),
    *("gc.auto=0", "maintenance.auto=false", "push.followTags=false", "push.gpgSign=false"),
    *("push.recurseSubmodules=no", "submodule.recurse=false", "protocol.ext.allow=never"),
)
_ALTERNATES = "objects/info/alternates"
#: Seconds for one call: a hostile tree can be slow, but must not block us forever.
PATIENCE = 600.0
#: Keys of a repository's config that are only data, and their allowed values.
_SWITCH = ("true", "false")
_DATA = {
    "core.filemode": _SWITCH,
    "core.symlinks": _SWITCH,
    "core.ignorecase": _SWITCH,
    "core.precomposeunicode": _SWITCH,
    "core.autocrlf": (*_SWITCH, "input"),
    "core.eol": ("lf", "crlf", "native"),
    "extensions.objectformat": ("sha1", "sha256"),
}
#: Extensions that do not change how we read the repository.
_HARMLESS = ("objectformat", "worktreeconfig", "noop", "partialclone", "preciousobjects")


def locate(repository: str) -> tuple[str, str]:
    """(git directory, common directory) of the repository or worktree at `repository`, links resolved."""
    top = os.path.realpath(repository)
    directory = os.path.join(top, ".git")
    if os.path.isfile(directory):
        said = text(directory)
        directory = os.path.join(top, said.removeprefix("gitdir:").strip()) if said[:7] == "gitdir:" else ""
    elif not os.path.isdir(directory):
        directory = top
    directory = os.path.realpath(directory)
    common = os.path.realpath(os.path.join(directory, text(f"{directory}/commondir").strip() or "."))
    if not all(os.path.isdir(f"{common}/{name}") for name in ("objects", "refs")) or not head(directory):
        raise GitRefused(
            f"{repository!r} is not a git repository",
            fix="name one that has a commit",
            why="it has no .git, or no commit",
        )
    return directory, common


def build(where: str, git_directory: str, common: str) -> Git:
    """Make our git directory at `where` (new), which gives access to the repository's data.

    `where` must be out of reach of every sandbox. HEAD is that of `git_directory`.
    """
    config = _config(common)
    os.makedirs(f"{where}/info", mode=0o700)
    for name in ("objects", "refs", "packed-refs", "shallow", "info/exclude"):
        os.symlink(f"{common}/{name}", f"{where}/{name}")
    _write(f"{where}/config", config)
    _write(f"{where}/alternates-then", text(f"{common}/{_ALTERNATES}"))
    _write(f"{where}/remotes-then", _remotes(common))
    git = Git(where, common)
    git.point_head(head(git_directory))
    return git


class Git:
    """Git calls through a git directory that `build` made."""

    def __init__(self, directory: str, common: str, tree: str | None = None) -> None:
        self.directory, self.common, self.tree = directory, common, tree

    def run(
        self, command: str, *arguments: str, data: bytes = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        """Run `git command arguments`; return its output. GitFailed: git failed. GitRefused: not run."""
        if command not in COMMANDS:
            raise GitRefused(
                f"git {command} is not run on a tree that a sandbox could have touched",
                why="it may start other programs",
                fix=f"use one of {', '.join(COMMANDS)}",
            )
        self.check()
        settings = [word for pin in PINNED for word in ("-c", pin)]
        argv = (_program(), "--no-pager", *settings, command, *COMMANDS[command], *arguments)
        variables = {**(env or {}), **ENVIRONMENT, "GIT_DIR": self.directory}
        if self.tree is not None:
            variables["GIT_WORK_TREE"] = self.tree
        return self._complete(command, argv, variables, self.tree or "/", data)

    def _complete(
        self, command: str, argv: tuple[str, ...], variables: dict[str, str], where: str, data: bytes = b""
    ) -> bytes:
        import subprocess

        from ..launch.contract import Launch
        from ..launch.running import complete
        from ..policy.limits import Limits

        try:
            done = complete(
                Launch(argv, variables, where),
                Limits(timeout=PATIENCE, output=None),
                input=data,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            raise GitFailed(
                f"git {command} was killed",
                why=f"it took more than {PATIENCE:g} s",
                fix="see what keeps git busy there, and try again",
            ) from None
        if done.returncode:
            said = done.stderr[-2000:].decode("utf-8", "backslashreplace").strip()
            raise GitFailed(
                f"git {command} ended with {done.returncode}",
                why=repr(said),
                status=done.returncode,
                fix="run git there without staddle, and read its message",
            )
        output: bytes = done.stdout
        return output

    def remote_url(self, remote: str, repository: str) -> str:
        """The URL of `remote`: the repository's remote when the workspace was made, or `remote` itself."""
        named = {
            name: url for name, _, url in (row.partition("\0") for row in _remotes(self.common).split("\n"))
        }
        if remote not in named:
            if any(letter in remote for letter in "/:") and remote[0] != "-" and remote.isprintable():
                return os.path.abspath(remote) if is_local(remote) else remote
            raise GitRefused(
                f"there is no remote {remote!r}",
                why=f"the repository has {', '.join(filter(None, named)) or 'none'}",
                fix="name one of them, or an address",
            )
        then = text(f"{self.directory}/remotes-then").split("\n")
        if f"{remote}\0{named[remote]}" not in then:
            raise GitRefused(
                f"the remote {remote!r} has changed since the workspace was made",
                why=f"it points to {named[remote]!r} now",
                fix="if that is right, name the address itself",
            )
        url = named[remote]
        return os.path.normpath(os.path.join(repository, url)) if is_local(url) else url

    def push(self, url: str, branch: str, commit: str) -> None:
        """Push `commit` to the branch at `url`, never by force.

        Runs no hook, and reads no config of the repository.
        Only this call uses the user's own variables and config, because they have the keys. No sandbox could
        write them. It cannot ask for a password: there is no terminal.
        """
        self.check()
        settings = [word for pin in _PUSHING for word in ("-c", pin)]
        ref = f"refs/heads/{branch}"
        argv = (
            _program(),
            "--no-pager",
            *settings,
            "push",
            "--quiet",
            "--no-verify",
            "--",
            url,
            f"{commit}:{ref}",
        )
        theirs = {name: value for name, value in os.environ.items() if name not in _REPOSITORY}
        ours = ("GIT_NO_LAZY_FETCH", "GIT_NO_REPLACE_OBJECTS", "GIT_TERMINAL_PROMPT", "LC_ALL")
        variables = {**theirs, **{name: ENVIRONMENT[name] for name in ours}, "GIT_DIR": self.directory}
        self._complete("push", argv, variables, "/")

    def check(self) -> None:
        """Refuse a repository with links in its data: git would write to their targets with our rights."""
        for path in self._places():
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise GitRefused(
                    f"{path!r} is neither a directory nor a file",
                    why="git would follow it out of the repository, and a sandbox could have put it there",
                    fix="inspect it, and put the real thing back",
                )

        if text(f"{self.common}/{_ALTERNATES}") != text(f"{self.directory}/alternates-then"):
            raise GitRefused(
                f"'{self.common}/{_ALTERNATES}' has changed",
                why="git would take objects from the directory that it names",
                fix="put back what it was, or remove the workspace and make a new one",
            )

    def _places(self) -> Iterator[str]:
        """The paths that git writes, or reads as a whole, for us."""
        common = self.common
        yield from (
            f"{common}/{name}"
            for name in ("packed-refs", "shallow", "info", "info/exclude", "logs", "worktrees")
        )
        for name in ("objects", "refs"):
            yield f"{common}/{name}"
            with os.scandir(f"{common}/{name}") as entries:
                yield from (entry.path for entry in entries)
        yield f"{common}/{_ALTERNATES}"
        pending = [f"{common}/refs/heads"]
        while pending:  # only branches: we write no other refs
            try:
                with os.scandir(pending.pop()) as entries:
                    for entry in entries:
                        yield entry.path
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
            except OSError:
                continue

    def point_head(self, target: str) -> None:
        """Set our own HEAD to `target`: `ref: refs/heads/name`, or an object name."""
        _write(f"{self.directory}/HEAD", target + "\n")


def head(git_directory: str) -> str:
    """The content of HEAD: `ref: refs/...`, an object name, or "" for anything else. Runs nothing."""
    said = text(f"{git_directory}/HEAD").strip()
    if said.startswith("ref:"):
        name = said.removeprefix("ref:").strip()
        return f"ref: {name}" if name.startswith("refs/") and ".." not in name and name.isprintable() else ""
    return said if is_object_name(said) else ""


def is_object_name(text: str) -> bool:
    """Whether it is the full name of an object."""
    return len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text)


def _config(common: str) -> str:
    """Our config: from the repository's config, only data about how to read files."""
    kept = {}
    for section, key, value in parse(text(f"{common}/config")):
        name, said = f"{section}.{key}", value.lower()
        if section == "extensions" and key not in _HARMLESS:
            raise GitRefused(
                f"the repository uses the git extension {key!r}",
                why="staddle does not know how to read it safely",
                fix="use a repository without it",
            )
        if name in _DATA and said in _DATA[name]:
            kept[name] = said
    version = 1 if "extensions.objectformat" in kept else 0
    lines = [f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n\tlogAllRefUpdates = false\n"]
    for name, said in kept.items():
        section, _, key = name.partition(".")
        lines.append(f"[{section}]\n\t{key} = {said}\n")
    return "".join(lines)


def _remotes(common: str) -> str:
    """One line per remote of the repository: its name, NUL, its push URL."""
    found: dict[str, str] = {}
    for section, name, key, value in parse_subsections(text(f"{common}/config")):
        shown = section == "remote" and name.isprintable() and value.isprintable()
        if shown and (key == "pushurl" or (key == "url" and name not in found)):
            found[name] = value
    return "\n".join(f"{name}\0{url}" for name, url in found.items())


def without_login(url: str) -> str:
    """The URL without a user name or token before the host, for display."""
    scheme, found, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}" if found else url


def is_local(url: str) -> bool:
    """Whether git would treat it as a path: no scheme, and no colon before the first slash."""
    return "://" not in url and ":" not in url.partition("/")[0]


def _program() -> str:
    program = find("git")
    if program is None or program.problem:
        raise GitRefused(
            "git cannot be used",
            why=program.problem if program else f"it is in none of {', '.join(DIRECTORIES)}",
            fix="install the system's git",
        )
    return program.path


def text(path: str, most: int = 1 << 20) -> str:
    """The text of a small regular file that a sandbox may have written; "" for anything else."""
    return fileio.read_text(path, most, os.O_NOFOLLOW)


def _write(path: str, text: str) -> None:
    """Write the file atomically."""
    with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
