"""Ways to make git run a command, or do harm, from inside a repository: planted one by one.

Each comes with the plain git command that falls for it. Everything stays in one throw-away
directory: what fires creates the file `fired` there and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ENV = {
    "PATH": "/usr/bin:/bin",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "TERM": "xterm",
}


class World:
    """A repository with two commits, where its agent works, and scripts that tell when they are run."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.repository = top / "repository"
        self.fired = top / "fired"
        self.script = self.executable(top / "planted.sh")
        # For a transport, which would wait for an answer.
        self.refuser = self.executable(top / "refuser.sh", "exit 1")
        self.init(self.repository)
        self.tree = self.repository  # where the agent works; a workspace's tree later
        self.admin = self.common = self.repository / ".git"

    def init(self, where: Path) -> None:
        where.mkdir(parents=True)
        self.git("init", "-q", "-b", "main", where=where)
        (where / "file.txt").write_text("one\n")
        (where / "other.txt").write_text("two\n")
        self.git("add", ".", where=where)
        self.git("commit", "-qm", "first", where=where)
        (where / "file.txt").write_text("one and more\n")
        self.git("commit", "-qam", "second", where=where)

    def executable(self, path: Path, then: str = "cat") -> Path:
        path.write_text(f"#!/bin/sh\n: > '{self.fired}'\n{then}\n")
        path.chmod(0o755)
        return path

    def config(self, *pairs: str, file: Path | None = None) -> None:
        for key, said in (pair.split("=", 1) for pair in pairs):
            place = str(file or self.common / "config")
            name, value = (
                text.replace("SCRIPT", str(self.script)).replace("REFUSER", str(self.refuser))
                for text in (key, said)
            )
            self.git("config", "--file", place, "--add", name, value)

    def attributes(self, text: str) -> None:
        (self.tree / ".gitattributes").write_text(text)

    def edit(self) -> None:
        (self.tree / "file.txt").write_text("edited\n")

    def git(self, *arguments: str, where: Path | None = None) -> bytes:
        return subprocess.run(
            ["/usr/bin/git", *arguments],
            cwd=where or self.top,
            env={**ENV, "HOME": str(self.top)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout

    def fall_for_it(self, *arguments: str, where: Path | None = None, data: bytes = b"") -> None:
        """Plain git, on a terminal, whatever it answers."""
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            ["/usr/bin/git", *arguments],
            cwd=where or self.tree,
            env={**ENV, "HOME": str(self.top)},
            stdin=subprocess.PIPE,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        try:
            process.communicate(data, timeout=30)
        finally:
            os.close(follower)
            os.close(leader)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, should any of it wait
            process.wait()


@dataclass(frozen=True)
class Plant:
    """`put` plants it; `commands` are plain git calls in the tree, one of which falls for it."""

    name: str
    put: Callable[[World], object]
    commands: tuple[tuple[str, ...], ...]
    data: bytes = field(default=b"")


def _hook(name: str) -> Callable[[World], object]:
    def put(world: World) -> None:
        world.edit()
        (world.common / "hooks").mkdir(exist_ok=True)
        world.executable(world.common / "hooks" / name)

    return put


def _config(*pairs: str, attributes: str = "") -> Callable[[World], object]:
    def put(world: World) -> None:
        world.edit()
        world.config(*pairs)
        if attributes:
            world.attributes(attributes)

    return put


def _info_attributes(world: World) -> None:
    world.edit()
    (world.common / "info").mkdir(exist_ok=True)
    (world.common / "info/attributes").write_text("*.txt filter=planted\n")
    world.config("filter.planted.clean=SCRIPT")


def _include(key: str) -> Callable[[World], object]:
    def put(world: World) -> None:
        world.config("core.fsmonitor=SCRIPT", file=world.top / "included")
        world.config(f"{key}={world.top / 'included'}")

    return put


def _hooks_path(world: World) -> None:
    world.edit()
    (world.tree / "tools").mkdir()
    world.executable(world.tree / "tools/pre-commit")
    world.config(f"core.hooksPath={world.tree / 'tools'}")


def _worktree_config(world: World) -> None:
    world.config("core.repositoryformatversion=1", "extensions.worktreeConfig=true")
    world.config("core.fsmonitor=SCRIPT", file=world.admin / "config.worktree")


def _evil(world: World, name: str) -> Path:
    place = world.top / name
    world.init(place)
    world.config("core.fsmonitor=SCRIPT", file=place / ".git/config")
    return place


def _nested(world: World) -> None:
    world.init(world.tree / "nested")
    world.config("core.fsmonitor=SCRIPT", file=world.tree / "nested/.git/config")


def _submodule(world: World) -> None:
    """A link to a commit in another repository, which git looks into for its status."""
    _nested(world)
    commit = world.git("rev-parse", "HEAD", where=world.tree / "nested").decode().strip()
    world.git("update-index", "--add", "--cacheinfo", f"160000,{commit},nested", where=world.tree)
    world.git("commit", "-qm", "with a submodule", where=world.tree)
    (world.tree / "nested/file.txt").write_text("changed within\n")


def _bare(world: World) -> None:
    place = world.tree / "bare"
    world.git("init", "-q", "--bare", str(place))
    world.git("config", "--file", str(place / "config"), "core.bare", "false")
    world.config(f"core.worktree={world.tree}", "core.fsmonitor=SCRIPT", file=place / "config")


def _pointer(world: World) -> None:
    evil = _evil(world, "elsewhere")
    git = world.tree / ".git"
    if git.is_dir():
        git.rename(world.top / "set-aside")
    git.unlink(missing_ok=True)
    git.write_text(f"gitdir: {evil / '.git'}\n")


def _common_directory(world: World) -> None:
    (world.admin / "commondir").write_text(f"{_evil(world, 'elsewhere')}/.git\n")


PROMISED = "1" * 40
PLANTS = [
    *(
        Plant(f"hooks/{name}", _hook(name), (("commit", "-qam", "x"), ("checkout", "-q", "-b", "new")))
        for name in (
            *("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-checkout"),
            *("reference-transaction", "post-index-change"),
        )
    ),
    Plant("core.hooksPath", _hooks_path, (("commit", "-qam", "x"),)),
    Plant("core.fsmonitor", _config("core.fsmonitor=SCRIPT"), (("status",),)),
    Plant("core.pager", _config("core.pager=SCRIPT"), (("log",),)),
    Plant("pager.log", _config("pager.log=SCRIPT"), (("log",),)),
    Plant("core.editor", _config("core.editor=SCRIPT"), (("commit", "-a"),)),
    Plant("sequence.editor", _config("sequence.editor=SCRIPT"), (("stash",), ("rebase", "-i", "HEAD~1"))),
    Plant("core.sshCommand", _config("core.sshCommand=REFUSER"), (("ls-remote", "ssh://localhost/x"),)),
    Plant("core.gitProxy", _config("core.gitProxy=REFUSER"), (("ls-remote", "git://localhost/x"),)),
    Plant(
        "an ext:: transport",
        _config("url.ext::REFUSER.insteadOf=innocent", "protocol.ext.allow=always"),
        (("ls-remote", "innocent"),),
    ),
    Plant(
        "remote.uploadpack",
        _config("remote.planted.url=.", "remote.planted.uploadpack=REFUSER"),
        (("fetch", "planted"),),
    ),
    Plant(
        "a promised object",
        _config(
            *(
                "core.repositoryformatversion=1",
                "extensions.partialClone=planted",
                "protocol.ext.allow=always",
            ),
            *("remote.planted.promisor=true", "remote.planted.url=ext::REFUSER"),
        ),
        (("cat-file", "-p", PROMISED),),
    ),
    Plant(
        "filter.clean",
        _config("filter.planted.clean=SCRIPT", attributes="*.txt filter=planted\n"),
        (("add", "."),),
    ),
    Plant(
        "filter.smudge",
        _config("filter.planted.smudge=SCRIPT", attributes="*.txt filter=planted\n"),
        (("checkout", "HEAD~1", "--", "file.txt"),),
    ),
    Plant(
        "filter.process",
        _config("filter.planted.process=SCRIPT", attributes="*.txt filter=planted\n"),
        (("add", "."),),
    ),
    Plant("a filter by info/attributes", _info_attributes, (("add", "."),)),
    Plant("diff.external", _config("diff.external=SCRIPT"), (("diff",),)),
    Plant(
        "diff.command",
        _config("diff.planted.command=SCRIPT", attributes="*.txt diff=planted\n"),
        (("diff",),),
    ),
    Plant(
        "diff.textconv",
        _config("diff.planted.textconv=SCRIPT", attributes="*.txt diff=planted\n"),
        (("diff", "HEAD~1", "HEAD"),),
    ),
    Plant(
        "merge.driver",
        _config("merge.planted.driver=SCRIPT", attributes="*.txt merge=planted\n"),
        (("stash",), ("revert", "--no-edit", "HEAD"), ("stash", "pop")),
    ),
    Plant("difftool", _config("diff.tool=planted", "difftool.planted.cmd=SCRIPT"), (("difftool", "-y"),)),
    Plant("an alias", _config("alias.st=!SCRIPT"), (("st",),)),
    Plant("include.path", _include("include.path"), (("status",),)),
    Plant("includeIf", _include("includeIf.gitdir:/**.path"), (("status",),)),
    Plant("config.worktree", _worktree_config, (("status",),)),
    Plant("a submodule", _submodule, (("status",),)),
    Plant("a nested repository", _nested, (("-C", "nested", "status"),)),
    Plant("a nested bare repository", _bare, (("-C", "bare", "status"),)),
    Plant("the worktree's pointer", _pointer, (("status",),)),
    Plant("commondir", _common_directory, (("status",),)),
    Plant(
        "credential.helper",
        _config("credential.helper=SCRIPT"),
        (("credential", "fill"),),
        b"protocol=https\nhost=localhost\n\n",
    ),
    Plant("gpg.program", _config("gpg.program=SCRIPT", "commit.gpgSign=true"), (("commit", "-qam", "x"),)),
    Plant(
        "trailer.command", _config("trailer.planted.command=SCRIPT"), (("interpret-trailers",),), b"text\n"
    ),
]
