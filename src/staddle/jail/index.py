"""Our own git index of a workspace's tree: differences from the branch, and the tree to commit.

The agent's own index is not read: the agent could have written anything into it.
"""

from __future__ import annotations

import os
import time

from .review import WITH_REPOSITORIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from .git import Git

#: Age in seconds after which a copy is taken for a killed process's.
_STALE = 3600.0


class GitIndex:
    """`with GitIndex(git) as index:` a copy for one question, which replaces the kept one at a good end.

    A copy, because git locks the index by a file: two of us would fight for it, and one that is
    killed would leave its lock behind. The kept one only saves reading unchanged files again.

    With `only_looking` what is taken in goes to a place of our own, and with it: neither the
    repository nor the kept index knows of it afterwards.
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
            # Git takes a file for changed when it is not older than the index: a copy that looked
            # newer than the original would hide a change made in the same tick.
            os.utime(self.path, ns=(info.st_atime_ns, info.st_mtime_ns))
        except FileNotFoundError:
            pass  # the first question; git makes one
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
        """Let it be what `commit` holds, keeping what it knows about unchanged files."""
        from ..errors import GitFailed

        try:
            self._run("read-tree", "-m", commit)
        except GitFailed:
            self._run("read-tree", "--reset", commit)
        try:
            self._run("update-index", "-q", "--refresh")
        except GitFailed:
            pass  # says that files differ; that is what is asked next

    def differing(self) -> Iterator[str]:
        """Tracked files that changed or are gone, then what is new and not ignored. No other repository's."""
        links = {
            entry.partition(b"\t")[2]
            for entry in self._run("ls-files", "-s", "-z").split(b"\0")
            if entry.startswith(b"160000 ")
        }
        for path in set(self._run("ls-files", "-m", "-d", "-z").split(b"\0")):
            if path and path not in links:
                yield os.fsdecode(path)
        # A name that ends with a slash is another repository. It is not ours to open.
        for path in self._run("ls-files", "-o", "--exclude-standard", "-z").split(b"\0"):
            if path and not path.endswith(b"/"):
                yield os.fsdecode(path)

    def take(self, paths: Iterable[str]) -> None:
        """Take these in as they are in the tree, also that they are gone."""
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        if names:
            self._run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", data=names)

    def tree(self) -> str:
        """Everything in it, as one tree object."""
        return self._run("write-tree").decode().strip()

    def against(self, commit: str, *options: str) -> bytes:
        """The diff from `commit` to it, as `git diff` prints it."""
        return self._run("diff", "--no-renames", WITH_REPOSITORIES, *options, "--cached", commit)

    def check_out(self) -> None:
        """Write every file of it to the tree."""
        self._run("checkout-index", "--all", "--index")

    def _run(self, command: str, *arguments: str, data: bytes = b"") -> bytes:
        return self._git.run(command, *arguments, data=data, env=self._env)

    def _sweep(self) -> None:
        """Remove copies that a killed process has left."""
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
    """As git reads a list of paths: a colon in a name would end it."""
    spelled = "".join(
        f"\\{byte:03o}" if byte < 32 or byte > 126 or byte in b'"\\' else chr(byte)
        for byte in os.fsencode(path)
    )
    return f'"{spelled}"'
