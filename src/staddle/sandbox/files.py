"""`Sandbox.files`: the files in a sandbox, as its own user sees them.

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
from functools import partial

from .. import check
from .._value import Value
from ..display import shown
from ..errors import InvalidCall
from ..interrupts import interruptible, uninterrupted, unmistakable
from ..ipc import file_messages
from .file_tools import FileTools
from .spawn import account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO, Literal

    from ..ipc.file_messages import FileRow
    from .arguments import User
    from .file_client import FileClient
    from .file_tools import AnyPath, ByteSource, Content, Owner
    from .open_sandbox import OpenSandbox

    Kind = Literal["file", "directory", "symlink", "other"]
    Names = list[str]


#: The largest file that is read into memory unless more is asked for: it may be a terabyte of holes.
MOST_READ = 64 << 20
_CHUNK = 1 << 20


class FileInfo(Value):
    """A file or directory: its name, kind, size in bytes, permissions, and when it was last changed.

    `owner` is the name inside of the user with the number `uid`; empty if there is no such account.
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
    """The files of one sandbox. File errors are Python's own; everything may be called from any thread."""

    def __init__(self, sandbox: Owner, user: User = None) -> None:
        self._sandbox, self._user = sandbox, user

    def as_user(self, user: User) -> Files:
        """The same files as another user sees them, by name or number; root has a root's rights."""
        self._client(self._sandbox._now(), user)  # refuses who is not there
        return Files(self._sandbox, user)

    # ------------------------------------------------------------ content

    def read(
        self, path: AnyPath, *, limit: int = MOST_READ, offset: int = 0, length: int | None = None
    ) -> str:
        """The text of a file. Bytes that are not UTF-8 survive a read and a write (surrogateescape)."""
        data = self.read_bytes(path, limit=limit, offset=offset, length=length)
        return data.decode("utf-8", "surrogateescape")

    def read_bytes(
        self, path: AnyPath, *, limit: int = MOST_READ, offset: int = 0, length: int | None = None
    ) -> bytes:
        """The content of a file of at most `limit` bytes; or `length` bytes of any file, from `offset` on."""
        for name, value in (("limit", limit), ("offset", offset), ("length", length)):
            if name != "length" or value is not None:
                check.count(name, value, 0, fix="give a number of bytes")
        with self.open(path) as file:
            if length is not None:
                return part(file, offset, min(length, limit))
            return within(file, limit, path, offset)

    def open(self, path: AnyPath) -> IO[bytes]:
        """The file, to be read piece by piece, however large it is. Pipes and devices are refused."""
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
        """Put `content` (text, bytes, or a binary file that is read to its end) at `path`.

        It appears whole or not at all; its permissions are those of the file that was there, and
        other hard links of that keep the old content. A link there is followed. A file that is
        mounted by itself, or in a directory that cannot be written, is changed in place. With
        `parents`, directories above it are made; with `exclusive`, FileExistsError if something is there.
        `mode` are its permissions from then on.
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
        """Write many small files at once, each by itself whole: a thousand take the time of a few.

        `contents` are by path. If one cannot be written, those before it are.
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
        """Add `content` to the end of a file, which is made if it is not there."""
        inside, name = self._at(path)
        data = as_bytes(content)
        with named(path):
            for at in range(0, max(len(data), 1), file_messages.INLINE):
                piece = data[at : at + file_messages.INLINE]
                self._client(inside).ask(file_messages.APPEND, name, piece, numbers=(int(parents),))
        inside.pass_over()

    # ------------------------------------------------------------ listing

    def list(self, path: AnyPath = ".", *, follow_symlinks: bool = False) -> list[FileInfo]:
        """List a directory, sorted by name. Links are listed as links, or as what they lead to."""
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(file_messages.LIST, name, numbers=(int(follow_symlinks),)).rows
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

    def realpath(self, path: AnyPath) -> str:
        """Its path without links; FileNotFoundError if there is nothing."""
        return self._one_name(file_messages.REALPATH, path)

    def readlink(self, path: AnyPath) -> str:
        """The path that a link has in it."""
        return self._one_name(file_messages.READLINK, path)

    def _one_name(self, operation: bytes, path: AnyPath) -> str:
        inside, name = self._at(path)
        with named(path):
            rows = self._client(inside).ask(operation, name).rows
        if len(rows) != 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
        return os.fsdecode(rows[0][0])

    def glob(self, pattern: str) -> Names:
        """The files, directories and links that `pattern` names, sorted; no link is followed on the way.

        `*`, `?` and `[...]` are within one name, `**` is any number of directories. Relative
        patterns give relative paths.
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
        """Set the permissions of a file or directory; a link is followed."""
        inside, name = self._at(path)
        with named(path):
            self._client(inside).ask(file_messages.CHMOD, name, numbers=(checked_mode(mode),))
        inside.pass_over()

    def copy(self, source: AnyPath, target: AnyPath, *, replace: bool = False) -> None:
        """Copy a file, or a directory with all that is in it. A file there is only replaced when asked."""
        inside, name = self._at(source)
        _, other = self._at(target)
        with named(source):
            self._client(inside).ask(file_messages.COPY, name, other, numbers=(int(replace),))
        inside.pass_over()

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
        if name == b"~" or name.startswith(b"~/"):
            name = os.fsencode(self._home(inside)) + name[1:]
        return inside, name if name.startswith(b"/") else os.path.join(os.fsencode(directory(inside)), name)

    def _home(self, inside: OpenSandbox) -> str:
        """The home of the user whose rights these are."""
        other = account(inside, self._user)
        return inside.decided.environment.get("HOME") or "/" if other is None else other.home


def directory(inside: OpenSandbox) -> str:
    """Directory of the session; while a command runs, the one before it."""
    return uninterrupted(inside.main._shell.directory_now) or inside.main._exec_context.cwd


def encoded(path: AnyPath) -> bytes:
    """A path as the kernel takes it."""
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
    """Have the file_client write `content`: in the question itself when it is short, else by a pipe."""
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
    """Text or bytes, as bytes."""
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
    """Permissions, as bits."""
    return check.count("the mode", mode, 0, 0o7777, fix="give permissions such as 0o644")


def _pieces(source: ByteSource) -> Iterator[bytes | memoryview]:
    while data := interruptible(partial(source.read, _CHUNK)):
        if isinstance(data, str):
            raise InvalidCall("the content is a text file", fix='open it with "rb"', why="files are bytes")
        yield data


def part(file: IO[bytes], offset: int, length: int) -> bytes:
    """Read `length` bytes of a file from `offset` on, or as many as there are."""
    file.seek(offset)
    data = bytearray()
    while len(data) < length and (piece := file.read(min(_CHUNK, length - len(data)))):
        data += piece
    return bytes(data)


def within(file: IO[bytes], limit: int, path: AnyPath, offset: int = 0) -> bytes:
    """Read all of a file, of no more than `limit` bytes. Nothing is read of one that says it is larger."""
    expected = os.fstat(file.fileno()).st_size - offset
    is_larger = expected > limit
    if offset:
        file.seek(offset)
    data = bytearray()
    if _CHUNK < expected <= limit:  # in one piece: appending and copying keeps other threads waiting
        whole = file.read(expected + 1)
        if len(whole) <= expected:
            return whole
        data += whole
    while not is_larger and len(data) <= limit:
        piece = file.read(min(_CHUNK, limit + 1 - len(data)))
        if not piece:  # nothing, or nothing yet: a file of the system that waits is not waited for
            return bytes(data)
        data += piece
    raise OSError(errno.EFBIG, f"it has more than {limit} bytes", os.fsdecode(path))


def checked_names(rows: list[FileRow], before: str = "") -> list[str]:
    """Relative paths from inside that lead nowhere else, sorted."""
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


class named:  # noqa: N801 - reads as what it does
    """Errors of the kernel name the path that was asked for, not the one that it became."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = os.fsdecode(self._path)
