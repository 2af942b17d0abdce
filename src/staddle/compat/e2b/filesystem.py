"""`sandbox.files`: relative paths are below the home, as in E2B."""

from __future__ import annotations

import io
import json
import posixpath
import re
import stat
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TypedDict

from ...adapters._common import READ_LIMIT
from .commands import at
from .info import InvalidArgumentException, NotFoundException, translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from staddle import Sandbox

    Entries = list["EntryInfo"]  # for use where `list` is a method
    Words = list[str]

#: Seconds between two polls of a watched directory with a callback.
_LOOK_EVERY = 0.2
_PIECE = 64 << 10
#: Metadata is stored in extended attributes `user.e2b.KEY`. Keys and values must fit into HTTP headers.
_KEY, _VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[ -~]*")
_SET = """import os, sys
path, *pairs = sys.argv[1:]
for key, value in zip(pairs[::2], pairs[1::2]):
    os.setxattr(path, "user.e2b." + key, value.encode())"""
_GET = """import json, os, sys
found = {}
for path in json.load(sys.stdin):
    try:
        names = [name for name in os.listxattr(path) if name.startswith("user.e2b.")]
        found[path] = {name[9:]: os.getxattr(path, name).decode(errors="replace") for name in names}
    except OSError:
        pass
print(json.dumps(found))"""
#: Set when a file first gets metadata: before that, no program is started inside to read it.
_USED = threading.Event()


class FileType(Enum):
    """The kind of an entry."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"


class WriteEntry(TypedDict):
    """A file for `write_files`: its path and content."""

    path: str
    data: Any


@dataclass
class WriteInfo:
    """A file that was written."""

    name: str
    type: FileType | None
    path: str
    metadata: dict[str, str] | None = field(default=None, kw_only=True)


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
    """Kind of a change to an entry."""

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
    entry: EntryInfo | None = None


class FileStream:
    """The content of a file, piece by piece; closed at its end, by `close()`, or at the end of `with`."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece: bytes = b"" if self._source.closed else self._source.read(_PIECE)
        if not piece:
            self.close()
            raise StopIteration
        return piece

    def close(self) -> None:
        """Stop reading."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Filesystem:
    """The files of one sandbox."""

    #: Whether another process may have given metadata to files.
    _may_have_metadata = False

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._groups: dict[int, str] | None = None

    def _opened(self, path: str, user: str | None) -> Any:
        return self._files(user).open(path)

    def read(
        self,
        path: str,
        format: str = "text",
        user: str | None = None,
        request_timeout: float | None = None,
        gzip: bool = False,
    ) -> Any:
        """The content of a file: as `text`, as `bytes` (a bytearray), or as a `stream` of bytes.

        `gzip` is ignored: nothing is transferred here.
        """
        with translated():
            if format == "stream":
                return FileStream(self._opened(at(path), user))
            data = self._files(user).read_bytes(at(path), limit=READ_LIMIT)
        return bytearray(data) if format == "bytes" else data.decode("utf-8", "replace")

    def write(
        self,
        path: str,
        data: Any,
        user: str | None = None,
        request_timeout: float | None = None,
        gzip: bool = False,
        use_octet_stream: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> WriteInfo:
        """Write text, bytes or an open file with this metadata; missing directories are made."""
        for key, value in (metadata or {}).items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise InvalidArgumentException(f"{key!r}: {value!r} cannot be metadata of a file")
        if isinstance(data, io.TextIOBase):
            data = data.read()
        with translated():
            self._files(user).write(at(path), data, parents=True)
            if metadata:
                _USED.set()
                pairs = [word for pair in metadata.items() for word in pair]
                self._python(_SET, [at(path), *pairs], user)
        return WriteInfo(posixpath.basename(path), FileType.FILE, at(path), metadata=metadata or None)

    def write_files(
        self,
        files: list[WriteEntry],
        user: str | None = None,
        request_timeout: float | None = None,
        gzip: bool = False,
        use_octet_stream: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> list[WriteInfo]:
        """Write many files, each with this metadata."""
        return [self.write(entry["path"], entry["data"], user, metadata=metadata) for entry in files]

    def list(
        self, path: str, depth: int | None = 1, user: str | None = None, request_timeout: float | None = None
    ) -> list[EntryInfo]:
        """List a directory, and `depth - 1` levels below it."""
        depth = 1 if depth is None else depth
        if depth < 1:
            raise InvalidArgumentException(f"depth should be at least 1, and is {depth}")
        with translated():
            return self._described(self._listed(at(path), depth, user), user)

    def _listed(self, path: str, depth: int, user: str | None) -> Entries:
        found = []
        for info in self._files(user).list(path):
            child = posixpath.join(path, info.name)
            found.append(self._entry(child, info, user))
            if info.is_dir and depth > 1:
                found += self._listed(child, depth - 1, user)
        return found

    def exists(self, path: str, user: str | None = None, request_timeout: float | None = None) -> bool:
        """Whether the path exists."""
        with translated():
            return bool(self._files(user).exists(at(path)))

    def get_info(self, path: str, user: str | None = None, request_timeout: float | None = None) -> EntryInfo:
        """Information about a file."""
        with translated():
            info = self._files(user).stat(at(path), follow_symlinks=False)
            return self._described([self._entry(at(path), info, user)], user)[0]

    def remove(self, path: str, user: str | None = None, request_timeout: float | None = None) -> None:
        """Remove a file, or a directory with its content. A missing path is no error."""
        with translated():
            try:
                self._files(user).remove(at(path), recursive=True)
            except FileNotFoundError:
                pass

    def rename(
        self, old_path: str, new_path: str, user: str | None = None, request_timeout: float | None = None
    ) -> EntryInfo:
        """Rename it."""
        with translated():
            self._files(user).rename(at(old_path), at(new_path), replace=True)
        return self.get_info(new_path, user)

    def make_dir(self, path: str, user: str | None = None, request_timeout: float | None = None) -> bool:
        """Make a directory and its missing parents; False if it exists."""
        with translated():
            files = self._files(user)
            if files.exists(at(path)):
                return False
            files.mkdir(at(path), parents=True)
            return True

    def watch_dir(
        self,
        path: str,
        on_event: Callable[[FilesystemEvent], Any] | None = None,
        user: str | None = None,
        request_timeout: float | None = None,
        recursive: bool = False,
        include_entry: bool = False,
        allow_network_mounts: bool = False,
    ) -> WatchHandle:
        """Watch a directory (`recursive`: and below): `get_new_events()`, or `on_event`; `stop()`."""

        def look() -> dict[str, EntryInfo]:
            return {entry.path: entry for entry in self._listed(at(path), 64 if recursive else 1, user)}

        with translated():
            return WatchHandle(look, at(path), on_event, include_entry)

    def _described(self, entries: Entries, user: str | None) -> Entries:
        """The entries with their metadata."""
        if (_USED.is_set() or self._may_have_metadata) and entries:
            paths = json.dumps([entry.path for entry in entries])
            found = json.loads(self._python(_GET, [], user, paths))
            for entry in entries:
                entry.metadata = found.get(entry.path) or None
        return entries

    def _python(self, code: str, words: Words, user: str | None, stdin: str = "") -> str:
        """The output of a short program inside."""
        argv = ["python3", "-I", "-S", "-c", code, *words]
        output: str = self._sandbox.exec(argv, user=user, stdin=stdin, check=True).stdout
        return output

    def _files(self, user: str | None) -> Any:
        return self._sandbox.files.as_user(user) if user else self._sandbox.files

    def _entry(self, path: str, info: Any, user: str | None) -> EntryInfo:
        target = None
        kinds = {"directory": FileType.DIR, "file": FileType.FILE}
        kind = kinds.get(info.kind)
        if info.kind == "symlink":  # use the kind of its target
            target = self._files(user).realpath(path)
            try:
                kind = kinds.get(self._files(user).stat(path).kind)
            except OSError:
                kind = FileType.SYMLINK
        letter = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}.get(info.kind, stat.S_IFREG)
        return EntryInfo(
            info.name,
            kind,
            path,
            size=info.size,
            mode=info.mode,
            permissions=stat.filemode(letter | info.mode),
            owner=info.owner or str(info.uid),
            group=self._group(info.gid),
            modified_time=datetime.fromtimestamp(info.modified, UTC),
            symlink_target=target,
        )

    def _group(self, gid: int) -> str:
        """The name of a group inside, from /etc/group."""
        if self._groups is None:
            lines = self._sandbox.files.read("/etc/group").splitlines()
            rows = [line.split(":") for line in lines if line.count(":") >= 3]
            self._groups = {int(row[2]): row[0] for row in rows if row[2].isdecimal()}
        return self._groups.get(gid, str(gid))


class WatchHandle:
    """Changes of a directory, found by comparing it with its state at the last poll."""

    def __init__(
        self,
        look: Callable[[], dict[str, EntryInfo]],
        top: str,
        on_event: Callable[[FilesystemEvent], Any] | None,
        include_entry: bool,
    ) -> None:
        self._look, self._top, self._include = look, top, include_entry
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._known = look()
        self._thread: threading.Thread | None = None
        if on_event is not None:
            self._thread = threading.Thread(target=self._tell, args=(on_event,), daemon=True)
            self._thread.start()

    def get_new_events(self, request_timeout: float | None = None) -> list[FilesystemEvent]:
        """Changes since the last call."""
        if self._stop.is_set():
            raise NotFoundException("this watch was stopped")
        with translated(), self._lock:
            before, self._known = self._known, self._look()
        events: list[FilesystemEvent] = []
        for path, entry in self._known.items():
            old = before.get(path)
            if old is None:
                events.append(self._event(path, FilesystemEventType.CREATE, entry))
            if entry.type is FileType.DIR:
                continue
            if old is None or (old.size, old.modified_time) != (entry.size, entry.modified_time):
                events.append(self._event(path, FilesystemEventType.WRITE, entry))
            elif old.mode != entry.mode:
                events.append(self._event(path, FilesystemEventType.CHMOD, entry))
        gone = (path for path in before if path not in self._known)
        return events + [self._event(path, FilesystemEventType.REMOVE, None) for path in gone]

    def _event(self, path: str, kind: FilesystemEventType, entry: EntryInfo | None) -> FilesystemEvent:
        return FilesystemEvent(posixpath.relpath(path, self._top), kind, entry if self._include else None)

    def stop(self, request_timeout: float | None = None) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)

    def _tell(self, on_event: Callable[[FilesystemEvent], Any]) -> None:
        while not self._stop.wait(_LOOK_EVERY):
            try:
                events = self.get_new_events()
            except Exception:
                return  # the sandbox has ended, or the directory is gone
            for event in events:
                on_event(event)
