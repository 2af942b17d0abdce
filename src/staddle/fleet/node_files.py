"""The files of a keeper on its node: received workspaces and snapshots, each once, by digest.

  <temporary directory>/staddle-fleet-<uid>/<random>/lock       locked by the keeper that uses the rest
                                                    /<digest>   a received directory
                                                    /file-…     a snapshot

The keeper removes them when it ends. After SIGKILL a shell that waits for the end of a pipe removes them. If
that was killed as well, the next keeper on the machine does.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable

from staddle.errors import TransferFailed
from staddle.places import user

from . import content

#: This shell is not our child, because Ray kills the children of a worker that it ends. It waits in `read`.
_REMOVER = """exec 3<&0
(read -r _ <&3; chmod -R u+rwx -- "$1"; rm -rf -- "$1"; exec rmdir -- "${1%/*}") >/dev/null 2>&1 &"""


class NodeFiles:
    """The directory of one keeper."""

    def __init__(self, place: str | None = None) -> None:
        home = os.path.join(place or tempfile.gettempdir(), f"staddle-fleet-{user()}")
        # Root's sandboxes read a workspace as another user, who must be able to traverse this directory.
        mode = 0o711 if os.getuid() == 0 else 0o700
        self.path = os.path.join(home, secrets.token_hex(8))  # can be neither listed nor guessed
        reader, self._alive = os.pipe()
        try:
            # Start the remover before creating anything: this process may be killed at any moment.
            subprocess.run(
                ["/bin/sh", "-c", _REMOVER, "staddle-fleet-files", self.path],
                stdin=reader,
                check=True,
                start_new_session=True,
            )
        finally:
            os.close(reader)
        make_below(home, self.path, mode)
        self._claim = os.open(f"{self.path}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._claim, fcntl.LOCK_EX)
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.fetched = 0

    def tree(self, digest: str, manifest: Callable[[], bytes], packs: Callable[[str], bytes]) -> str:
        """The directory with that digest: made and verified on first use."""
        path = f"{self.path}/{digest}"
        with self._lock:
            lock = self._locks.setdefault(digest, threading.Lock())
        with lock:
            if not os.path.isdir(path):
                found = content.decoded(manifest(), digest)
                made = tempfile.mkdtemp(dir=self.path)
                try:
                    content.write_tree(found, packs, made)
                    os.chmod(made, 0o755)  # noqa: S103 - as a checkout; nobody can reach it by its name
                    os.rename(made, path)
                except BaseException:
                    remove(made)
                    raise
                self.fetched += found.size
        return path

    def file(self) -> str:
        """The path of a new file in it, which the caller writes and removes."""
        fd, path = tempfile.mkstemp(prefix="file-", dir=self.path)
        os.close(fd)
        return path

    def close(self) -> None:
        """Remove everything. A second call does nothing."""
        remove(self.path)
        try:
            os.rmdir(os.path.dirname(self.path))
        except OSError:
            pass  # another keeper of this machine uses it
        alive, self._alive = self._alive, -1
        if alive >= 0:
            os.close(alive)
            os.close(self._claim)


def make_below(home: str, path: str, mode: int) -> None:
    """Make `home`, which another ending keeper may remove at any moment, and the directory `path` in it."""
    while True:
        os.makedirs(home, mode=mode, exist_ok=True)
        try:
            status = os.lstat(home)
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise TransferFailed(
                    f"{home} cannot be used",
                    why="it belongs to, or can be written by, another user",
                    fix="remove it",
                )
            remove_stale(home)
            os.mkdir(path, mode)
        except FileNotFoundError:
            continue
        else:
            return


def remove(path: str) -> None:
    """Remove a tree, even if it contains read-only directories."""

    def again(function: Callable[..., object], failed: str, _: object) -> None:
        try:
            os.chmod(os.path.dirname(failed), 0o700)
            os.chmod(failed, 0o700, follow_symlinks=os.chmod not in os.supports_follow_symlinks)
        except OSError:
            pass
        try:
            if os.path.isdir(failed) and not os.path.islink(failed):
                shutil.rmtree(failed, ignore_errors=True)
            else:
                os.unlink(failed)
        except OSError:
            pass

    shutil.rmtree(path, onerror=again)


def remove_stale(home: str) -> None:
    """Remove the directories of killed keepers whose remover shell was killed, too."""
    for name in os.listdir(home):
        path = f"{home}/{name}"
        try:
            claim = os.open(f"{path}/lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # being made or removed
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # in use
        else:
            remove(path)
        finally:
            os.close(claim)
