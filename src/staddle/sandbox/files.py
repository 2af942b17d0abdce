"""`Sandbox.files`: the files in a sandbox, as its own user sees them.

    sb.files.write("notes/todo.txt", "1. look\\n", parents=True)
    sb.files.read("notes/todo.txt")
    sb.files.glob("**/*.py")

A process inside does all of it, with the rights and the view of any command: links resolve inside, and files
denied to commands are denied here. Relative paths start at the session's directory; while a command runs, at
the directory before it.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from functools import partial

from .. import check
from .._value import Value
from ..display import shown
from ..errors import ArchiveRefused, InvalidCall
from ..files.tar import END, Member, members, padding, write
from ..interrupts import interruptible, uninterrupted, unmistakable
from ..ipc import file_messages
from ..shell.command import CommandSpec
from .arguments import patience
from .execution import Execution, drive
from .spawn import account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO, Literal, Protocol

    from ..ipc.file_messages import FileRow
    from .arguments import User
    from .file_client import FileClient
    from .open_sandbox import OpenSandbox

    Kind = Literal["file", "directory", "symlink", "other"]
    Names = list[str]
    AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

    class ByteSource(Protocol):
        """Binary file opened for reading."""

        def read(self, size: int, /) -> bytes: ...

    Content = str | bytes | bytearray | memoryview | ByteSource

    class Owner(Protocol):
        """Sandbox that owns these files."""

        def _now(self) -> OpenSandbox: ...

# File tools composed of operations of Files: edit, search, watch, transfer.


_CHUNK = 1 << 20
#: The most bytes of grep's output that are read, and its time limit in seconds.
_MOST_FOUND, _SEARCHING = 16 << 20, 120.0
#: Seconds between two scans of a watched tree.
_LOOK_EVERY = 0.2


class Match(Value):
    """One line that grep found."""

    path: str
    line: int
    text: str


class FileEvent(Value):
    """One change seen by a watch; `path` is relative to the watched directory."""

    kind: Literal["added", "modified", "deleted"]
    path: str


@unmistakable()
class FileTools:
    """Tools of `Files` that combine several operations."""

    if TYPE_CHECKING:
        _sandbox: Owner
        _user: User

        def read_bytes(self, path: AnyPath) -> bytes: ...
        def write(self, path: AnyPath, content: Content, *, parents: bool = False) -> None: ...
        def open(self, path: AnyPath) -> IO[bytes]: ...
        def _at(self, path: AnyPath) -> tuple[OpenSandbox, bytes]: ...
        def _client(self, inside: OpenSandbox) -> FileClient: ...

    def edit(self, path: AnyPath, old: str, new: str, *, every: bool = False) -> int:
        """Replace `old` by `new`; returns the count. InvalidCall unless the file has it once, or `every`."""
        before, after = (text.encode("utf-8", "surrogateescape") for text in (old, new))
        if not before:
            raise InvalidCall(
                "the text to replace is empty", fix="use write() or append()", why="it is everywhere"
            )
        content = self.read_bytes(path)
        found = content.count(before)
        if not found or (found > 1 and not every):
            raise InvalidCall(
                f"{os.fsdecode(path)!r} has that text {'nowhere' if not found else f'{found} times'}",
                why="it is to be there exactly once" if not every else "",
                fix="give more of the lines around it" if found else "read the file again",
            )
        self.write(path, content.replace(before, after))
        return found

    def grep(
        self,
        pattern: str,
        path: AnyPath = ".",
        *,
        include: str | None = None,
        ignore_case: bool = False,
        fixed: bool = False,
        limit: int = 1000,
    ) -> list[Match]:
        """Find lines that match a POSIX extended pattern, or `fixed` text, in a file or below a directory.

        The sandbox's own grep runs. `include` is a glob for file names. Binary files are skipped.
        """
        if not isinstance(pattern, str) or not pattern or "\0" in pattern:
            raise InvalidCall(
                f"the pattern is {pattern!r}", why="it is not a text", fix="write a glob such as '**/*.py'"
            )
        inside, name = self._at(path)
        options = ["-F" if fixed else "-E", *(["-i"] if ignore_case else [])]
        if include is not None:
            options.append(f"--include={include}")
        argv = ["grep", "-rnHIZ", *options, f"-m{max(limit, 1)}", "-e", pattern, "--", os.fsdecode(name)]
        found, said = bytearray(), bytearray()

        def take(data: bytes) -> None:
            if len(found) < _MOST_FOUND:
                found.extend(data)

        spec = CommandSpec(b"", timeout=_SEARCHING, out=take, err=said.extend)
        other, env = account(inside, self._user), inside.main._exec_context.env
        running = Execution(
            inside.agent,
            spec,
            argv,
            {**env, "LC_ALL": "C.UTF-8"},
            "/",
            uid=inside.host_uid(other),
            known=inside.executions,
            who=None if other is None else other.who,
        )
        if drive(running).exit_code > 1 and not found:
            why = said.decode("utf-8", "replace").strip()[:500]
            raise OSError(errno.ENOENT, why or "grep failed", os.fsdecode(path))
        return _matches(bytes(found), os.fsdecode(name), os.fsdecode(path), limit)

    def watch(
        self, path: AnyPath = ".", *, timeout: float | None = None, stop: threading.Event | None = None
    ) -> Iterator[FileEvent]:
        """Iterate over changes below a directory; ends after `timeout` seconds or when `stop` is set.

        It reports changes since this call. It scans the tree a few times a second, by sizes and times: it
        misses files that come and go between two scans, and each scan of a large tree costs its size.
        """
        limit = patience(timeout)
        until = None if limit is None else time.monotonic() + limit
        return self._changes(path, self._seen(path), until, stop or threading.Event())

    def _changes(
        self, path: AnyPath, before: dict[str, tuple[int, ...]], until: float | None, stop: threading.Event
    ) -> Iterator[FileEvent]:
        while not stop.is_set() and (until is None or time.monotonic() < until):
            stop.wait(_LOOK_EVERY)
            now = self._seen(path)
            yield from _differences(before, now)
            before = now

    def _seen(self, path: AnyPath) -> dict[str, tuple[int, ...]]:
        inside, name = self._at(path)
        rows = self._client(inside).ask(file_messages.TREE, name).rows
        # A directory's time changes with its names, which are reported themselves.
        return {
            os.fsdecode(row[0]): row[1:2] if row[1] & 0o170000 == 0o040000 else row[1:4]
            for row in rows
            if row[0] and not row[0].startswith(b"/") and b".." not in row[0].split(b"/")
        }

    def upload(self, source: str | os.PathLike[str] | ByteSource, path: AnyPath) -> None:
        """Copy a host file, given as a path or opened for reading, to `path`. Creates parent directories."""
        if isinstance(source, str | os.PathLike):
            with open(source, "rb") as file:
                self.write(path, file, parents=True)
        else:
            self.write(path, source, parents=True)

    def download(self, path: AnyPath, target: str | os.PathLike[str] | IO[bytes]) -> int:
        """Copy a file of the sandbox to a host path or an open binary file. Returns the number of bytes.

        A file at the host path is replaced only when the copy is complete.
        """
        with self.open(path) as file:
            if not isinstance(target, str | os.PathLike):
                return _copied(file, target)
            whole = os.fspath(target)
            half = f"{whole}.{os.urandom(6).hex()}.part"
            try:
                with open(half, "xb") as writing:
                    size = _copied(file, writing)
                os.replace(half, whole)
            except BaseException:
                if os.path.exists(half):
                    os.unlink(half)
                raise
            return size


def _copied(source: IO[bytes], target: IO[bytes]) -> int:
    size = 0
    while data := source.read(_CHUNK):
        target.write(data)
        size += len(data)
    return size


def _matches(found: bytes, top: str, asked: str, limit: int) -> list[Match]:
    """Parse the output of grep -nZ: path, NUL, line number, colon, text."""
    matches = []
    for row in found.split(b"\n"):
        where, nul, rest = row.partition(b"\0")
        number, colon, text = rest.partition(b":")
        if nul and colon and number.isdigit() and len(number) < 12:
            path = os.fsdecode(where)
            if path == top or path.startswith(f"{top.rstrip('/')}/"):
                path = path.replace(top.rstrip("/"), asked.rstrip("/") or "/", 1)
            path = path.removeprefix("./")
            matches.append(Match(path, int(number), text.decode("utf-8", "replace")))
    return sorted(matches, key=lambda each: (each.path, each.line))[:limit]


def _differences(before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]]) -> list[FileEvent]:
    kinds: dict[str, Literal["added", "modified", "deleted"]] = {}
    for path in sorted({*before, *now}):
        if path not in now:
            kinds[path] = "deleted"
        elif path not in before:
            kinds[path] = "added"
        elif before[path] != now[path]:
            kinds[path] = "modified"
    return [FileEvent(kind, path) for path, kind in kinds.items()]


#: The largest file read into memory by default: a sparse file may claim a terabyte.
MOST_READ = 64 << 20


class FileInfo(Value):
    """A file or directory: its name, kind, size in bytes, permissions and modification time.

    `owner` is the name inside of the user `uid`; empty if there is no such account.
    """

    name: str
    kind: Kind
    size: int
    mode: int
    modified: float
    uid: int = 0
    gid: int = 0
    owner: str = ""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"


@unmistakable(
    own=(
        *(
            "append",
            "chmod",
            "copy",
            "exists",
            "glob",
            "list",
            "mkdir",
            "open",
            "read",
            "read_bytes",
            "readlink",
        ),
        *("realpath", "remove", "rename", "stat", "write", "write_many"),
    )
)
class Files(FileTools):
    """Files of one sandbox. Raises Python's own file errors. All methods are thread-safe."""

    def __init__(self, sandbox: Owner, user: User = None) -> None:
        self._sandbox, self._user = sandbox, user

    def as_user(self, user: User) -> Files:
        """Return the files as another user sees them, by name or uid; root has root's rights inside."""
        self._client(self._sandbox._now(), user)  # raises if there is no such user
        return Files(self._sandbox, user)

    # ------------------------------------------------------------ content

    def read(
        self, path: AnyPath, *, limit: int = MOST_READ, offset: int = 0, length: int | None = None
    ) -> str:
        """Return the text of a file. Bytes that are not UTF-8 survive a round trip (surrogateescape)."""
        data = self.read_bytes(path, limit=limit, offset=offset, length=length)
        return data.decode("utf-8", "surrogateescape")

    def read_bytes(
        self, path: AnyPath, *, limit: int = MOST_READ, offset: int = 0, length: int | None = None
    ) -> bytes:
        """Return a file of at most `limit` bytes, or `length` bytes of any file, from `offset` on."""
        for name, value in (("limit", limit), ("offset", offset), ("length", length)):
            if name != "length" or value is not None:
                check.count(name, value, 0, fix="give a number of bytes")
        with self.open(path) as file:
            if length is not None:
                return part(file, offset, min(length, limit))
            return within(file, limit, path, offset)

    def open(self, path: AnyPath) -> IO[bytes]:
        """Open a file of any size for reading. Pipes and devices are refused."""
        inside, name = self._at(path)
        with named(path):
            return open(self._client(inside).open(file_messages.OPEN, name), "rb")

    def write(
        self,
        path: AnyPath,
        content: Content,
        *,
        parents: bool = False,
        exclusive: bool = False,
        mode: int | None = None,
    ) -> None:
        """Write `content` (text, bytes, or a binary file that is read to its end) to `path`.

        The file appears whole or not at all. It keeps the permissions of the file that it replaces, whose
        other hard links keep the old content. A symlink at `path` is followed. A file that is a mount point,
        or in a directory that is not writable, is changed in place. `parents` creates the directories above
        it. `exclusive` raises FileExistsError if `path` exists. `mode` sets the permissions.
        """
        inside, name = self._at(path)
        permissions = None if mode is None else checked_mode(mode)
        operation = file_messages.CREATE if exclusive else file_messages.WRITE
        with named(path):
            put(self._client(inside), content, operation, name, numbers=(int(parents),))
            if permissions is not None:
                self._client(inside).ask(file_messages.CHMOD, name, numbers=(permissions,))
        inside.pass_over()

    def write_many(self, contents: Mapping[str, str | bytes], *, parents: bool = True) -> None:
        """Write many small files in a few requests, each file atomically.

        `contents` maps paths to content. If one file fails, the files before it are written.
        """
        inside, client = self._at(".")[0], self._client(self._sandbox._now())
        waiting: list[bytes] = []
        for path, content in contents.items():
            name, data = self._at(path)[1], as_bytes(content)
            if len(name) + len(data) > file_messages.INLINE:
                self.write(path, data, parents=parents)
                continue
            if sum(map(len, waiting)) + len(name) + len(data) > file_messages.INLINE or len(waiting) > 1000:
                client.ask(file_messages.WRITE_MANY, *waiting, numbers=(int(parents),))
                waiting = []
            waiting += (name, data)
        if waiting:
            client.ask(file_messages.WRITE_MANY, *waiting, numbers=(int(parents),))
        inside.pass_over()

    def append(self, path: AnyPath, content: str | bytes, *, parents: bool = False) -> None:
        """Append `content` to a file, which is created if missing."""
        inside, name = self._at(path)
        data = as_bytes(content)
        with named(path):
            for at in range(0, max(len(data), 1), file_messages.INLINE):
                piece = data[at : at + file_messages.INLINE]
                self._client(inside).ask(file_messages.APPEND, name, piece, numbers=(int(parents),))
        inside.pass_over()

    # ------------------------------------------------------------ listing

    def list(self, path: AnyPath = ".", *, follow_symlinks: bool = False) -> list[FileInfo]:
        """List a directory, sorted by name. Links are listed as links unless `follow_symlinks`."""
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(file_messages.LIST, name, numbers=(int(follow_symlinks),)).rows
        found = [_info(row) for row in rows if row[0] and b"/" not in row[0] and row[0] not in (b".", b"..")]
        return sorted(found, key=lambda each: each.name)

    def exists(self, path: AnyPath) -> bool:
        """Whether `path` exists; symlinks are followed."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno == errno.ELOOP:
                return False
            raise
        return True

    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileInfo:
        """Return the FileInfo of a path."""
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(file_messages.STATUS, name, numbers=(int(follow_symlinks),)).rows
        if len(rows) != 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
        return _info((os.path.basename(name.rstrip(b"/")) or b"/", *rows[0][1:]))

    def realpath(self, path: AnyPath) -> str:
        """Return the path without symlinks. Raises FileNotFoundError if it does not exist."""
        return self._one_name(file_messages.REALPATH, path)

    def readlink(self, path: AnyPath) -> str:
        """Return the target of a symlink."""
        return self._one_name(file_messages.READLINK, path)

    def _one_name(self, operation: bytes, path: AnyPath) -> str:
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(operation, name).rows
        if len(rows) != 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
        return os.fsdecode(rows[0][0])

    def glob(self, pattern: str) -> Names:
        """Return the sorted paths that match `pattern`. Symlinked directories are not entered.

        `*`, `?` and `[...]` match within one name, `**` any number of directories. A relative pattern returns
        relative paths.
        """
        if not isinstance(pattern, str):
            raise InvalidCall(
                f"the pattern is {pattern!r}", why="it is not text", fix="write a glob such as '**/*.py'"
            )
        absolute = pattern.startswith("/")
        inside, directory = self._at("/" if absolute else ".")
        with named(pattern):
            rows = (
                self._client(inside).ask(file_messages.GLOB, directory, os.fsencode(pattern.lstrip("/"))).rows
            )
        return checked_names(rows, "/" if absolute else "")

    # ------------------------------------------------------------ changes

    def chmod(self, path: AnyPath, mode: int) -> None:
        """Set the permissions of a file or directory; a symlink is followed."""
        inside, name = self._at(path)
        with named(path):
            self._client(inside).ask(file_messages.CHMOD, name, numbers=(checked_mode(mode),))
        inside.pass_over()

    def copy(self, source: AnyPath, target: AnyPath, *, replace: bool = False) -> None:
        """Copy a file, or a directory with its contents. Overwrites an existing file only with `replace`."""
        inside, name = self._at(source)
        _, other = self._at(target)
        with named(source):
            self._client(inside).ask(file_messages.COPY, name, other, numbers=(int(replace),))
        inside.pass_over()

    def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Create a directory. With `parents` create those above as well; it may then exist already."""
        inside, name = self._at(path)
        with named(path):
            self._client(inside).ask(file_messages.MAKE, name, numbers=(int(parents),))
        inside.pass_over()

    def rename(self, old: AnyPath, new: AnyPath, *, replace: bool = False) -> None:
        """Rename a file or directory. Overwrites an existing target only with `replace`."""
        inside, name = self._at(old)
        _, other = self._at(new)
        with named(old):
            self._client(inside).ask(file_messages.RENAME, name, other, numbers=(int(replace),))
        inside.pass_over()

    def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Remove a file, or a symlink itself; with `recursive` also a directory with its contents."""
        inside, name = self._at(path)
        with named(path):
            self._client(inside).ask(file_messages.REMOVE, name, numbers=(int(recursive),))
        inside.pass_over()

    def __repr__(self) -> str:
        return f"<Files of {self._sandbox!r}>"

    def _client(self, inside: OpenSandbox, user: User = None) -> FileClient:
        """Return the client of the file server that has this user's rights."""
        return inside.client_of(account(inside, self._user if user is None else user))

    def _at(self, path: AnyPath) -> tuple[OpenSandbox, bytes]:
        """Return the open sandbox, and `path` as an absolute path inside."""
        inside = self._sandbox._now()
        name = encoded(path)
        if name == b"~" or name.startswith(b"~/"):
            name = os.fsencode(self._home(inside)) + name[1:]
        return inside, name if name.startswith(b"/") else os.path.join(os.fsencode(directory(inside)), name)

    def _home(self, inside: OpenSandbox) -> str:
        """Home directory of the user whose rights are used."""
        other = account(inside, self._user)
        return inside.decided.environment.get("HOME") or "/" if other is None else other.home


def directory(inside: OpenSandbox) -> str:
    """Return the session's directory; while a command runs, the directory before it."""
    return uninterrupted(inside.main._shell.directory_now) or inside.main._exec_context.cwd


def encoded(path: AnyPath) -> bytes:
    """Encode a path for the kernel. Raises InvalidCall if it is not a valid path."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise InvalidCall(f"the path is {path!r}", why="it is not a path", fix="give text or a pathlib path")
    try:
        name = os.fsencode(path)
    except UnicodeError:
        raise InvalidCall(
            f"{path!r} is not a valid path",
            why="it has a lone surrogate in it, and cannot be encoded as UTF-8",
            fix="pass bytes through os.fsdecode()",
        ) from None
    if b"\0" in name:
        raise InvalidCall(f"{path!r} is not a valid path", why="it has a NUL in it", fix="take it out")
    if not name:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "")
    return name


def put(
    client: FileClient,
    content: Content,
    operation: bytes,
    *words: bytes,
    numbers: tuple[int, ...] = (0,),
) -> None:
    """Send `content` to the file server: within the request if it is short, else through a pipe."""
    if isinstance(content, str):
        content = as_bytes(content)
    if not hasattr(content, "read"):
        try:
            whole = memoryview(content).cast("B")
        except TypeError:
            raise InvalidCall(
                f"the content is {type(content).__name__}",
                why="it is neither text, bytes nor a binary file",
                fix="encode it, or open the file with 'rb'",
            ) from None
        if whole.nbytes <= file_messages.INLINE:
            client.ask(operation, *words, whole.tobytes(), numbers=numbers)
            return
        pieces: Iterator[bytes | memoryview] = (
            whole[at : at + _CHUNK] for at in range(0, whole.nbytes, _CHUNK)
        )
    else:
        pieces = _pieces(content)
    with client.turn:
        sending = client.send(operation, *words, numbers=numbers)
        try:
            for piece in pieces:
                sending.write(piece)
            sending.finish()
        finally:
            sending.drop()


def as_bytes(content: object) -> bytes:
    """Convert text or bytes to bytes."""
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, str):
        raise InvalidCall(
            f"the content is {type(content).__name__}",
            why="it is neither text nor bytes",
            fix="encode it, or use json.dumps()",
        )
    return check.encoded("the content", content)


def checked_mode(mode: object) -> int:
    """Check permission bits."""
    return check.count("the mode", mode, 0, 0o7777, fix="give permissions such as 0o644")


def _pieces(source: ByteSource) -> Iterator[bytes | memoryview]:
    while data := interruptible(partial(source.read, _CHUNK)):
        if isinstance(data, str):
            raise InvalidCall("the content is a text file", fix='open it with "rb"', why="files are bytes")
        yield data


def part(file: IO[bytes], offset: int, length: int) -> bytes:
    """Read `length` bytes of a file from `offset` on, or fewer at its end."""
    file.seek(offset)
    data = bytearray()
    while len(data) < length and (piece := file.read(min(_CHUNK, length - len(data)))):
        data += piece
    return bytes(data)


def within(file: IO[bytes], limit: int, path: AnyPath, offset: int = 0) -> bytes:
    """Read a whole file of at most `limit` bytes. Raises before reading if its size is larger."""
    expected = os.fstat(file.fileno()).st_size - offset
    is_larger = expected > limit
    if offset:
        file.seek(offset)
    data = bytearray()
    if _CHUNK < expected <= limit:  # one read: appending would hold the GIL, and other threads would wait
        whole = file.read(expected + 1)
        if len(whole) <= expected:
            return whole
        data += whole
    while not is_larger and len(data) <= limit:
        piece = file.read(min(_CHUNK, limit + 1 - len(data)))
        if not piece:  # end, or a system file with nothing to read yet
            return bytes(data)
        data += piece
    raise OSError(errno.EFBIG, f"it has more than {limit} bytes", os.fsdecode(path))


def checked_names(rows: list[FileRow], before: str = "") -> list[str]:
    """Return the sorted paths that are relative and have no `.` or `..`; drop the others."""
    names = []
    for row in rows:
        parts = row[0].split(b"/")
        if b"" not in parts and b"." not in parts and b".." not in parts and b"\0" not in row[0]:
            names.append(before + os.fsdecode(row[0]))
    return sorted(set(names))


def _info(row: FileRow) -> FileInfo:
    name, mode, size, modified, uid, gid, owner = row
    kinds: dict[int, Kind] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
    }
    kind = kinds.get(stat.S_IFMT(mode & 0xFFFF), "other")
    facts = max(size, 0), mode & 0o7777, modified / 1e9
    return FileInfo(os.fsdecode(name), kind, *facts, uid, gid, shown(owner))


class named:  # noqa: N801 - reads like a function in `with`
    """Set the path that the caller gave on OSErrors raised in the block."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = os.fsdecode(self._path)


# Directories of a sandbox as tar, in both directions, in pieces: never a whole archive in memory.
#
# The file server inside packs and unpacks, with the sandbox's rights. Its output is not trusted: the strict
# reader parses it and writes a new tar, without devices and without names that lead outside.


_GZIP = b"\x1f\x8b"
#: The most entries in one archive, as for unpacking.
_MOST_ENTRIES = 2_000_000


def upload(sandbox: Owner, file: ByteSource, path: AnyPath, user: User = None) -> None:
    """Unpack `file` into `path`, which is created if missing, as `user`."""
    if isinstance(file, str | bytes | os.PathLike) or not hasattr(file, "read"):
        raise InvalidCall(f"the tar is {file!r}", why="it is not a file", fix='give open("x.tar", "rb")')
    files = Files(sandbox, user)
    first = _piece(file, _CHUNK)
    source = _unzipped(_Again(first, file)) if first.startswith(_GZIP) else _Again(first, file)
    files.mkdir(path, parents=True)
    inside, name = files._at(path)
    client = files._client(inside)
    with client.turn:
        sending = client.send(file_messages.UNPACK, name)
        try:
            while data := source.read(_CHUNK):
                sending.write(data)
            sending.finish()
        finally:
            sending.drop()
    inside.pass_over()


def download(sandbox: Owner, file: IO[bytes], path: AnyPath, limit: int | None, user: User = None) -> None:
    """Write a tar of `path`, as `user` sees it, to `file`."""
    if not hasattr(file, "write"):
        raise InvalidCall(f"the tar is {file!r}", why="it is not a file", fix='give open("x.tar", "wb")')
    files = Files(sandbox, user)
    inside, name = files._at(path)
    client = files._client(inside)
    with client.turn:
        receiving = client.receive(file_messages.PACK, name)
        try:
            relay(receiving, _bounded(file.write, limit))
        finally:
            receiving.close()


def relay(source: ByteSource, write_out: Callable[[bytes], object]) -> None:
    """Copy a tar member by member. Raises ArchiveRefused unless it has the form that our packer writes."""
    for count, (member, content) in enumerate(members(source)):
        if count >= _MOST_ENTRIES:
            raise _refused(f"it contains more than {_MOST_ENTRIES:,} entries")
        names = (member.path, member.target) if member.kind == "link" else (member.path,)
        if member.kind == "whiteout" or not all(map(_is_plain, names)):
            raise _refused(f"{member.path!r} is not a file that can be exported")
        known = Member(
            member.kind, member.path, member.mode & 0o777, member.mtime, member.size, member.target
        )
        write(known, write_out)
        while data := content.read(_CHUNK):
            write_out(data)
        if member.size:
            write_out(padding(member.size))
    write_out(END)
    if source.read(1):
        raise _refused("there are bytes after the end")


def _is_plain(name: str) -> bool:
    return not any(part in ("", ".", "..") or "\0" in part for part in name.split("/"))


def _bounded(write_out: Callable[[bytes], object], limit: int | None) -> Callable[[bytes], None]:
    written = 0

    def bounded(data: bytes) -> None:
        nonlocal written
        written += len(data)
        if limit is not None and written > limit:
            raise OSError(errno.EFBIG, f"it becomes more than {limit:,} bytes")
        write_out(data)

    return bounded


class _Again:
    """File whose first bytes were read already."""

    def __init__(self, first: bytes, file: ByteSource) -> None:
        self._first, self._file = first, file

    def read(self, size: int, /) -> bytes:
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
            return data
        return _piece(self._file, size)


class _Unzipped:
    def __init__(self, source: ByteSource) -> None:
        import gzip

        self._file = gzip.GzipFile(fileobj=source, mode="rb")  # type: ignore[call-overload]

    def read(self, size: int, /) -> bytes:
        import zlib

        try:
            data: bytes = self._file.read(size)
        except (EOFError, zlib.error, OSError) as error:
            raise _refused(f"it is damaged: {error}") from None
        return data


def _unzipped(source: ByteSource) -> ByteSource:
    return _Unzipped(source)


def _piece(file: ByteSource, size: int) -> bytes:
    data = file.read(size)
    if not isinstance(data, bytes):
        raise InvalidCall("the tar is a text file", fix='open it with "rb"', why="a tar is bytes")
    return data


def _refused(why: str) -> ArchiveRefused:
    return ArchiveRefused("the archive is refused", why=why, fix="nothing was changed; make it again")
