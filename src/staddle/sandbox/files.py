"""`sb.files`: the files in a sandbox, as its own user sees them.

    sb.files.write("notes/todo.txt", "1. look\n", parents=True)
    sb.files.read("notes/todo.txt")
    sb.files.glob("**/*.py")

Everything is done inside, by a process with the rights and the view of any command: links lead
where they lead there, and what is denied to commands is denied here. Relative paths count from
where the session is; while a command runs, from where it was before.
"""

from __future__ import annotations

import errno
import os
import stat

from .._value import Value
from ..errors import InvalidCall
from ..ipc import file_messages
from .spawn import account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Literal, Protocol

    from .arguments import User
    from .file_client import FileClient
    from .open_sandbox import OpenSandbox

    AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    Kind = Literal["file", "directory", "symlink", "other"]

    class ByteSource(Protocol):
        """A binary file that is read from."""

        def read(self, size: int, /) -> bytes: ...

    Content = str | bytes | bytearray | memoryview | ByteSource
    Names = list[str]

    class Owner(Protocol):
        """The sandbox whose files these are."""

        def _now(self) -> OpenSandbox: ...


#: The largest file that is read into memory unless more is asked for: it may be a terabyte of holes.
MOST_READ = 64 << 20
_CHUNK = 1 << 20


class FileInfo(Value):
    """A file or directory: its name, kind, size in bytes, permissions, and when it was last changed."""

    name: str
    kind: Kind
    size: int
    mode: int
    modified: float

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"


class Files:
    """The files of one sandbox. File errors are Python's own; everything may be called from any thread."""

    def __init__(self, sandbox: Owner, user: User = None) -> None:
        self._sandbox, self._user = sandbox, user

    def as_user(self, user: User) -> Files:
        """The same files as another user sees them, by name or number; root has a root's rights."""
        self._client(self._sandbox._now(), user)  # refuses who is not there
        return Files(self._sandbox, user)

    # ------------------------------------------------------------ content

    def read(self, path: AnyPath, *, limit: int = MOST_READ) -> str:
        """The text of a file. Bytes that are not UTF-8 survive a read and a write (surrogateescape)."""
        return self.read_bytes(path, limit=limit).decode("utf-8", "surrogateescape")

    def read_bytes(self, path: AnyPath, *, limit: int = MOST_READ) -> bytes:
        """The content of a file of at most `limit` bytes."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InvalidCall(f"limit is {limit!r}", why="it is not a number of bytes")
        with self.open(path) as file:
            return within(file, limit, path)

    def open(self, path: AnyPath) -> IO[bytes]:
        """The file, to be read piece by piece, however large it is. Pipes and devices are refused."""
        inside, name = self._at(path)
        with named(path):
            return open(self._client(inside).open(file_messages.OPEN, name), "rb")

    def write(self, path: AnyPath, content: Content, *, parents: bool = False) -> None:
        """Put `content` (text, bytes, or a binary file that is read to its end) at `path`.

        It appears whole or not at all; its permissions are those of the file that was there, and
        other hard links of that keep the old content. A link there is followed. A file that is
        mounted by itself, or in a directory that cannot be written, is changed in place. With
        `parents`, directories above it are made.
        """
        inside, name = self._at(path)
        with named(path):
            put(self._client(inside), content, file_messages.WRITE, name, numbers=(int(parents),))
        inside.pass_over()

    # ------------------------------------------------------------ listing

    def list(self, path: AnyPath = ".") -> list[FileInfo]:
        """List a directory, sorted by name. Links are listed as links."""
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(file_messages.LIST, name).rows
        found = [_info(row) for row in rows if row[0] and b"/" not in row[0] and row[0] not in (b".", b"..")]
        return sorted(found, key=lambda each: each.name)

    def exists(self, path: AnyPath) -> bool:
        """Whether there is something, at the end of any links."""
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
        """Return the facts about a file."""
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(file_messages.STATUS, name, numbers=(int(follow_symlinks),)).rows
        if len(rows) != 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
        return _info((os.path.basename(name.rstrip(b"/")) or b"/", *rows[0][1:]))

    def glob(self, pattern: str) -> Names:
        """The files, directories and links that `pattern` names, sorted; no link is followed on the way.

        `*`, `?` and `[...]` are within one name, `**` is any number of directories. Relative
        patterns give relative paths.
        """
        if not isinstance(pattern, str):
            raise InvalidCall(f"the pattern is {pattern!r}", why="it is not text")
        absolute = pattern.startswith("/")
        inside, directory = self._at("/" if absolute else ".")
        with named(pattern):
            rows = (
                self._client(inside).ask(file_messages.GLOB, directory, os.fsencode(pattern.lstrip("/"))).rows
            )
        return checked_names(rows, "/" if absolute else "")

    # ------------------------------------------------------------ changes

    def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Make a directory; with `parents` also those above, and it may be there already."""
        inside, name = self._at(path)
        with named(path):
            self._client(inside).ask(file_messages.MAKE, name, numbers=(int(parents),))
        inside.pass_over()

    def rename(self, old: AnyPath, new: AnyPath, *, replace: bool = False) -> None:
        """Give it another name. What has that name already is only replaced when asked."""
        inside, name = self._at(old)
        _, other = self._at(new)
        with named(old):
            self._client(inside).ask(file_messages.RENAME, name, other, numbers=(int(replace),))
        inside.pass_over()

    def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Remove a file, or a link itself; with `recursive` also a directory with all that is in it."""
        inside, name = self._at(path)
        with named(path):
            self._client(inside).ask(file_messages.REMOVE, name, numbers=(int(recursive),))
        inside.pass_over()

    def __repr__(self) -> str:
        return f"<Files of {self._sandbox!r}>"

    def _client(self, inside: OpenSandbox, user: User = None) -> FileClient:
        """The client of the file server that has this user's rights."""
        return inside.client_of(account(inside, self._user if user is None else user))

    def _at(self, path: AnyPath) -> tuple[OpenSandbox, bytes]:
        """The sandbox as it is now, and `path` from its root."""
        inside = self._sandbox._now()
        name = encoded(path)
        return inside, name if name.startswith(b"/") else os.path.join(os.fsencode(directory(inside)), name)


def directory(inside: OpenSandbox) -> str:
    """Where the session is; while a command runs, where it was before."""
    shell = inside.main._shell
    held = shell.lock()
    if held.acquire(blocking=False):
        try:
            return shell.directory()
        finally:
            held.release()
    return inside.main._exec_context.cwd


def encoded(path: AnyPath) -> bytes:
    """A path as the kernel takes it."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise InvalidCall(f"the path is {path!r}", why="it is not a path")
    try:
        name = os.fsencode(path)
    except UnicodeError:
        raise InvalidCall(f"{path!r} is no path", why="it has half a character in it") from None
    if b"\0" in name:
        raise InvalidCall(f"{path!r} is no path", why="it has a NUL in it")
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
    """Have the file_client write `content`: in the question itself when it is short, else by a pipe."""
    if isinstance(content, str):
        try:
            content = content.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidCall("the content has half a character in it", fix="give bytes") from None
    if not hasattr(content, "read"):
        try:
            whole = memoryview(content).cast("B")
        except TypeError:
            raise InvalidCall(
                f"the content is {type(content).__name__}", why="it is neither text, bytes nor a binary file"
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


def _pieces(source: ByteSource) -> Iterator[bytes | memoryview]:
    while data := source.read(_CHUNK):
        if isinstance(data, str):
            raise InvalidCall("the content is a text file", fix='open it with "rb"')
        yield data


def within(file: IO[bytes], limit: int, path: AnyPath) -> bytes:
    """Read all of a file, of no more than `limit` bytes. Nothing is read of one that says it is larger."""
    data = bytearray()
    is_larger = os.fstat(file.fileno()).st_size > limit
    while not is_larger and len(data) <= limit:
        piece = file.read(min(_CHUNK, limit + 1 - len(data)))
        if not piece:  # nothing, or nothing yet: a file of the system that waits is not waited for
            return bytes(data)
        data += piece
    raise OSError(errno.EFBIG, f"it has more than {limit} bytes", os.fsdecode(path))


def checked_names(rows: list[tuple[bytes, int, int, int]], before: str = "") -> list[str]:
    """Relative paths from inside that lead nowhere else, sorted."""
    names = []
    for row in rows:
        parts = row[0].split(b"/")
        if b"" not in parts and b"." not in parts and b".." not in parts and b"\0" not in row[0]:
            names.append(before + os.fsdecode(row[0]))
    return sorted(set(names))


def _info(row: tuple[bytes, int, int, int]) -> FileInfo:
    name, mode, size, modified = row
    kinds: dict[int, Kind] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
    }
    kind = kinds.get(stat.S_IFMT(mode & 0xFFFF), "other")
    return FileInfo(os.fsdecode(name), kind, max(size, 0), mode & 0o7777, modified / 1e9)


class named:  # noqa: N801 - reads as what it does
    """Errors of the kernel name the path that was asked for, not the one that it became."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = os.fsdecode(self._path)
