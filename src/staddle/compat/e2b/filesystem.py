"""`sandbox.files`: relative paths are below the home, as in E2B."""

from __future__ import annotations

import posixpath
import stat
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from ...adapters._common import READ_LIMIT
from .commands import HOME
from .errors import translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from staddle import Sandbox

    Entries = list["EntryInfo"]  # for where `list` is a method


class FileType(Enum):
    """The kind of an entry."""

    FILE = "file"
    DIR = "dir"


@dataclass
class WriteInfo:
    """A file that was written."""

    name: str
    type: FileType | None
    path: str


@dataclass
class EntryInfo(WriteInfo):
    """A file or directory."""

    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: datetime
    symlink_target: str | None = None


class FilesystemEventType(Enum):
    """What happened to an entry."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


@dataclass
class FilesystemEvent:
    """A change below a watched directory; `name` is relative to it."""

    name: str
    type: FilesystemEventType


class Filesystem:
    """The files of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def read(
        self, path: str, format: str = "text", user: str | None = None, request_timeout: float | None = None
    ) -> Any:
        """The content of a file: as `text`, as `bytes` (a bytearray), or as a `stream` of bytes."""
        with translated():
            files = self._files(user)
            if format == "stream":
                source = files.open(_at(path))
                return iter(lambda: source.read(65536), b"")
            data = files.read_bytes(_at(path), limit=READ_LIMIT)
        return bytearray(data) if format == "bytes" else data.decode("utf-8", "replace")

    def write(
        self, path: str, data: Any, user: str | None = None, request_timeout: float | None = None
    ) -> WriteInfo:
        """Write text, bytes or an open file; directories above it are made."""
        if hasattr(data, "read") and "b" not in getattr(data, "mode", "b"):
            data = data.read()
        with translated():
            self._files(user).write(_at(path), data, parents=True)
        return WriteInfo(posixpath.basename(path), FileType.FILE, _at(path))

    def write_files(
        self, files: list[dict[str, Any]], user: str | None = None, request_timeout: float | None = None
    ) -> list[WriteInfo]:
        """Write many files."""
        return [self.write(entry["path"], entry["data"], user) for entry in files]

    def list(
        self, path: str, depth: int = 1, user: str | None = None, request_timeout: float | None = None
    ) -> list[EntryInfo]:
        """List a directory, and `depth - 1` levels below it."""
        with translated():
            return self._listed(_at(path), depth, user)

    def _listed(self, path: str, depth: int, user: str | None) -> Entries:
        found = []
        for info in self._files(user).list(path):
            child = posixpath.join(path, info.name)
            found.append(self._entry(child, info, user))
            if info.is_dir and depth > 1:
                found += self._listed(child, depth - 1, user)
        return found

    def exists(self, path: str, user: str | None = None, request_timeout: float | None = None) -> bool:
        """Whether there is something."""
        with translated():
            return bool(self._files(user).exists(_at(path)))

    def get_info(self, path: str, user: str | None = None, request_timeout: float | None = None) -> EntryInfo:
        """The facts about a file."""
        with translated():
            info = self._files(user).stat(_at(path), follow_symlinks=False)
            return self._entry(_at(path), info, user)

    def remove(self, path: str, user: str | None = None, request_timeout: float | None = None) -> None:
        """Remove a file, or a directory with all that is in it."""
        with translated():
            self._files(user).remove(_at(path), recursive=True)

    def rename(
        self, old_path: str, new_path: str, user: str | None = None, request_timeout: float | None = None
    ) -> EntryInfo:
        """Give it another name."""
        with translated():
            self._files(user).rename(_at(old_path), _at(new_path), replace=True)
        return self.get_info(new_path, user)

    def make_dir(self, path: str, user: str | None = None, request_timeout: float | None = None) -> bool:
        """Make a directory and those above it; False if it exists."""
        with translated():
            files = self._files(user)
            if files.exists(_at(path)):
                return False
            files.mkdir(_at(path), parents=True)
            return True

    def watch_dir(
        self, path: str, user: str | None = None, request_timeout: float | None = None, **options: Any
    ) -> WatchHandle:
        """Watch a directory, and below it; `get_new_events()` and `stop()`."""
        with translated():
            self._files(user).list(_at(path))  # refuses what cannot be watched
        return WatchHandle(self._files(user), _at(path))

    def _files(self, user: str | None) -> Any:
        return self._sandbox.files.as_user(user) if user else self._sandbox.files

    def _entry(self, path: str, info: Any, user: str | None) -> EntryInfo:
        kind = FileType.DIR if info.is_dir else FileType.FILE if info.kind == "file" else None
        target = self._files(user).readlink(path) if info.kind == "symlink" else None
        letter = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}.get(info.kind, stat.S_IFREG)
        return EntryInfo(
            info.name,
            kind,
            path,
            size=info.size,
            mode=info.mode,
            permissions=stat.filemode(letter | info.mode),
            owner=info.owner or str(info.uid),
            group=str(info.gid),
            modified_time=datetime.fromtimestamp(info.modified, UTC),
            symlink_target=target,
        )


class WatchHandle:
    """Collects changes in a thread until `stop()`."""

    def __init__(self, files: Any, path: str) -> None:
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._events: list[FilesystemEvent] = []
        changes = files.watch(path, stop=self._stop)
        self._thread = threading.Thread(target=self._collect, args=(changes,), daemon=True)
        self._thread.start()

    def get_new_events(self) -> list[FilesystemEvent]:
        """What happened since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def stop(self, request_timeout: float | None = None) -> None:
        """Watch no longer."""
        self._stop.set()
        self._thread.join(10)

    def _collect(self, changes: Any) -> None:
        kinds: dict[str, FilesystemEventType] = {
            "added": FilesystemEventType.CREATE,
            "modified": FilesystemEventType.WRITE,
            "deleted": FilesystemEventType.REMOVE,
        }
        try:
            for change in changes:
                kind = kinds.get(str(change.kind), FilesystemEventType.WRITE)
                with self._lock:
                    self._events.append(FilesystemEvent(change.path, kind))
        except Exception:  # noqa: S110 - the sandbox has ended, and with it what is watched
            pass


def _at(path: str) -> str:
    return posixpath.join(HOME, path)
