"""The git repository of a project that a coding agent works on: what it needs inside, and what it commits.

Inside, git works in the sandbox's layer. On the host, commits come out of a bundle, which git writes inside
and the host's git checks. Nothing of the sandbox's .git directory is used on the host, and no hook runs.
"""

from __future__ import annotations

import os
import re
import subprocess

from ..display import counted, shown
from ..errors import CommitRefused, LayerError, StaddleError
from ..files.remove_tree import remove as remove_tree
from ..hostinfo.gitconfig import parse, parse_subsections
from ..jail import git
from ..paths import WORKSPACE_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..sandbox.sandbox import Sandbox

GIT = ".git"
#: A bundle of commits inside, and its largest size.
_BUNDLE, _LARGEST_BUNDLE = "/tmp/.staddle-commits.bundle", 1 << 30
#: For git on the host: it starts no other program, and checks what it gets.
_SAFE = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "transfer.fsckObjects=true"),
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "submodule.recurse=false"),
    *("-c", "protocol.allow=never", "-c", "protocol.file.allow=always"),
)
_ID = re.compile("[0-9a-f]{40,64}")
_BRANCH = re.compile("refs/heads/[A-Za-z0-9][A-Za-z0-9._/-]{0,200}")
#: Sections of a repository's config that git needs inside, without programs and logins.
_SECTIONS = ("remote", "branch", "user", "extensions")
_CORE = ("repositoryformatversion", "filemode", "ignorecase", "autocrlf", "eol", "symlinks")
#: Most listed commits.
_MOST_ROWS = 1000
#: Most refs of the project whose commits are left out of the list.
_MOST_EXCLUDED = 500


def project_of(directory: str) -> str:
    """The root of the git repository or worktree around `directory`; else the directory itself."""
    above = directory
    while not os.path.lexists(f"{above}/{GIT}"):
        if above == os.path.dirname(above):
            return directory
        above = os.path.dirname(above)
    return above


def remote_hosts(project: str) -> list[str]:
    """The hosts of the repository's remotes. Its config is read as text."""
    found = []
    for section, key, value in parse(_config(project)):
        if section == "remote" and key == "url":
            host = re.match(r"(?:https?://|ssh://)?(?:[^@/]+@)?([A-Za-z0-9.-]+\.[A-Za-z]+)[:/]", value)
            found += [host[1]] if host else []
    return found


def _config(project: str) -> str:
    try:
        return git.text(f"{git.locate(project)[1]}/config")
    except StaddleError:
        return ""


def outer_objects(project: str) -> list[str]:
    """The object directories of a worktree's or submodule's repository, which is outside the project."""
    if not os.path.isfile(f"{project}/{GIT}"):
        return []
    try:
        objects = f"{git.locate(project)[1]}/objects"
    except StaddleError:
        return []
    more = [os.path.join(objects, line) for line in git.text(f"{objects}/info/alternates").splitlines()]
    return [place for place in (objects, *map(os.path.realpath, more)) if os.path.isdir(place)]


def make_repository(sandbox: Sandbox, project: str) -> None:
    """Give a worktree a repository of its own inside, which reads the objects of the real one."""
    at = f"{WORKSPACE_PATH}/{GIT}"
    if not outer_objects(project) or sandbox.files.stat(at).is_dir:
        return
    directory, common = git.locate(project)
    files: dict[str, str | bytes] = {
        "HEAD": git.text(f"{directory}/HEAD"),
        "config": _data_of(common),
        "packed-refs": _host(project, "for-each-ref", "--format=%(objectname) %(refname)") + "\n",
        "objects/info/alternates": "".join(f"{place}\n" for place in outer_objects(project)),
        "shallow": git.text(f"{common}/shallow"),
    }
    with open(f"{directory}/index", "rb") as index:
        files["index"] = index.read()
    sandbox.files.remove(at)
    sandbox.files.mkdir(f"{at}/refs/heads", parents=True)
    for name, content in files.items():
        if content:
            sandbox.files.write(f"{at}/{name}", content, parents=True)


def _data_of(common: str) -> str:
    rows = []
    for section, part, key, value in parse_subsections(git.text(f"{common}/config")):
        if section in _SECTIONS or (section == "core" and key in _CORE):
            rows.append(setting(section, part, key, value))
    return "".join(rows)


def setting(section: str, part: str, key: str, value: str) -> str:
    """A setting as text of a git config file."""
    quoted, below = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for text in (value, part)
    )
    named = f'{section} "{below}"' if part else section
    return f'[{named}]\n\t{key} = "{quoted}"\n'


class GitCommits:
    """The commits of a sandbox that its project does not have, as they are now: a point in time."""

    def __init__(self, sandbox: Sandbox | None, project: str, name: str) -> None:
        self._project, self._name = project, name
        #: One line for each commit, newest first.
        self.rows: list[str] = []
        #: Whether the sandbox's .git directory has more that would be lost with it, such as a stash.
        self.has_more = False
        self._tips: dict[str, str] = {}
        self._base = _host(project, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True)
        self.is_repository = os.path.lexists(f"{project}/{GIT}")
        #: Whether the sandbox has a repository, and the project none.
        self.is_new = False
        if sandbox is not None:
            place = _inside(sandbox, "rev-parse", "--absolute-git-dir").strip()
            self.is_new = not self.is_repository and place == f"{WORKSPACE_PATH}/{GIT}"
        if sandbox is not None and (self.is_repository or self.is_new):
            known = set(self._of_project("for-each-ref", "--format=%(objectname)").split())
            self._head = _inside(sandbox, "symbolic-ref", "--quiet", "HEAD").strip()
            refs, others = _refs(sandbox)
            self._tips = {ref: tip for ref, tip in refs.items() if tip not in {*known, self._base}}
            if self._tips:
                old = [*filter(None, (self._base,)), *sorted(known)[:_MOST_EXCLUDED]]
                self._new = ["--ignore-missing", *self._tips.values(), "--not", *old, "--"]
                self.rows = _inside(sandbox, "log", "--format=%h %s", *self._new).splitlines()[:_MOST_ROWS]
            stash = _inside(sandbox, "rev-parse", "--verify", "--quiet", "refs/stash").split()
            is_lost = not {*others, *stash} <= known or not self._has_submodules_of(sandbox)
            self.has_more = is_lost or bool(self._tips and not self.rows)

    def _of_project(self, *words: str) -> str:
        return _host(self._project, *words, may_fail=True) if self.is_repository else ""

    def _has_submodules_of(self, sandbox: Sandbox) -> bool:
        """Whether no submodule inside is at a commit of its own."""
        if not sandbox.files.exists(f"{WORKSPACE_PATH}/.gitmodules"):
            return True
        each = ("submodule", "--quiet", "foreach", "--recursive", "git rev-parse HEAD")
        return {*_inside(sandbox, *each).split()} <= {*self._of_project(*each).split()}

    def patches(self, sandbox: Sandbox) -> str:
        """The patches of the commits, as text."""
        return _inside(sandbox, "log", "--patch", "--no-color", *self._new) if self.rows else ""

    def take_over(self, sandbox: Sandbox) -> str:
        """Fetch exactly these commits: into the project's branch if nothing else happened there, else into
        branches of their own. Returns a report. CommitRefused if they are others now.
        """
        now, _ = _refs(sandbox)
        if any(now.get(ref) != tip for ref, tip in self._tips.items()):
            raise CommitRefused(
                "the git commits changed since the review",
                why="another program has used the sandbox",
                fix=f"staddle review {self._name}",
            )
        if not self.is_new:
            return self._take_over(sandbox)
        is_named = _BRANCH.fullmatch(self._head) and ".." not in self._head
        branch = self._head.removeprefix("refs/heads/") if is_named else "main"
        form = "sha256" if any(len(tip) == 64 for tip in self._tips.values()) else "sha1"
        _host(self._project, "init", "--quiet", "--initial-branch", branch, "--object-format", form)
        try:
            return (
                "a new git repository; " + self._take_over(sandbox) if self._tips else "a new git repository"
            )
        except BaseException:
            remove_tree((os.fsencode(f"{self._project}/{GIT}"),))
            raise

    def _take_over(self, sandbox: Sandbox) -> str:
        import tempfile

        names = [self._branch_for(ref) for ref in self._tips]
        fetched = dict(zip(self._tips, names, strict=True))
        with tempfile.NamedTemporaryFile(prefix="staddle-", suffix=".bundle") as file:
            words = ("bundle", "create", _BUNDLE, "--ignore-missing", *self._tips, *self._without_base)
            made = sandbox.exec(["git", "-C", WORKSPACE_PATH, *words])
            if not made.ok:
                raise _failed("bundle", made.stderr, self._name)
            file.write(sandbox.files.read_bytes(_BUNDLE, limit=_LARGEST_BUNDLE))
            file.flush()
            sandbox.files.remove(_BUNDLE)
            fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--force", file.name)
            _host(self._project, *fetch, *(f"{ref}:refs/heads/{name}" for ref, name in fetched.items()))
        for ref, name in fetched.items():
            if _host(self._project, "rev-parse", f"refs/heads/{name}") != self._tips[ref]:
                for each in names:
                    _host(self._project, "update-ref", "-d", f"refs/heads/{each}")
                raise CommitRefused(
                    "the git commits changed since the review",
                    why=f"the bundle has others for {shown(ref)}",
                    fix=f"staddle review {self._name}",
                )
        said = counted(len(self.rows), "git commit")
        if not self._is_next(self._tips[self._first]):
            return f"{said} in {', '.join(names)}: git merge {fetched[self._first]}"
        _host(self._project, "reset", "--quiet", self._tips[self._first])
        _host(self._project, "update-ref", "-d", f"refs/heads/{fetched.pop(self._first)}")
        said += " added to your branch" + (f", and {', '.join(fetched.values())}" if fetched else "")
        return f"{said}; undo: git reset {self._base[:12]}" if self._base else said

    @property
    def _without_base(self) -> list[str]:
        return ["--not", self._base] if self._base else []

    def _branch_for(self, ref: str) -> str:
        more = "" if ref == self._first else "-" + ref.removeprefix("refs/heads/").replace("/", "-")
        return f"staddle/{self._name}{more}"

    @property
    def _first(self) -> str:
        return self._head if self._head in self._tips else next(iter(self._tips))

    def _is_next(self, tip: str) -> bool:
        """Whether the branch, the index and the files of the project are such that `tip` adds no surprise."""
        import tempfile

        def ask(*words: str) -> str:
            return _host(self._project, *words, may_fail=True)

        if ask("rev-parse", "--verify", "--quiet", "HEAD") != self._base or self._first != ask(
            "symbolic-ref", "--quiet", "HEAD"
        ):
            return False
        if self._base and ask("merge-base", self._base, tip) != self._base:
            return False  # it was rewritten
        if ask("diff", "--cached", "--name-only"):
            return False  # the user has staged something
        plain = ("diff", "--no-ext-diff", "--no-textconv", "--name-only", "-z")
        every = ("ls-tree", "-r", "--name-only", "-z", tip)
        touched = ask(*plain, self._base, tip) if self._base else ask(*every)
        with tempfile.TemporaryDirectory(prefix="staddle-") as place:
            index = {"GIT_INDEX_FILE": f"{place}/index"}
            _host(self._project, "read-tree", tip, variables=index)
            differing = _host(self._project, *plain, variables=index)
        return not {*touched.split("\0")} & ({*differing.split("\0")} - {""})


def _refs(sandbox: Sandbox) -> tuple[dict[str, str], set[str]]:
    """Return the branches inside, with the commit of a detached HEAD as one, and the commits of other names.

    What git prints there is checked.
    """
    found, others = {}, set()
    named = ("refs/heads", "refs/tags", "refs/notes")
    told = _inside(sandbox, "for-each-ref", "--format=%(refname) %(objectname)", *named)
    for line in told.splitlines():
        ref, _, tip = line.partition(" ")
        if _BRANCH.fullmatch(ref) and ".." not in ref and _ID.fullmatch(tip):
            found[ref] = tip
        else:
            others.add(line.rpartition(" ")[2])
    if not _inside(sandbox, "symbolic-ref", "--quiet", "HEAD"):
        tip = _inside(sandbox, "rev-parse", "--verify", "--quiet", "HEAD").strip()
        if _ID.fullmatch(tip) and tip not in found.values():
            found["HEAD"] = tip
    return found, others


def _inside(sandbox: Sandbox, *words: str) -> str:
    """Run git inside, which reads files that the agent could write. Returns its output; empty if it fails."""
    told = sandbox.exec(["git", "-C", WORKSPACE_PATH, "--no-pager", *words])
    more = f"\n({told.stdout_bytes_dropped} bytes are not shown)\n" if told.stdout_truncated else ""
    return told.stdout + more if told.ok else ""


def _host(
    project: str, *words: str, may_fail: bool = False, variables: Mapping[str, str] | None = None
) -> str:
    """Run git on the project itself, with the user's settings but no hooks. Returns its output."""
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *_SAFE, "-C", project, *words],
            capture_output=True,
            env={**os.environ, **quiet, **(variables or {})},
            check=False,
        )
    except OSError:
        return ""  # without git there are no commits
    if done.returncode and not may_fail:
        raise _failed(words[0], done.stderr.decode("utf-8", "replace"), "")
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def _failed(command: str, said: str, name: str) -> LayerError:
    return LayerError(
        f"git {command} failed",
        why=shown(said.strip()[-500:]),
        fix=f"the commits stay in the kept sandbox {name}".rstrip(),
    )
