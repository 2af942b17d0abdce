"""File tools made of several operations: edit, search, watch, fetch.

A part of `Sandbox.files`: everything here is made of what Files can do.
"""

from __future__ import annotations

import errno
import os
import threading
import time

from .._value import Value
from ..errors import InvalidCall
from ..interrupts import unmistakable
from ..ipc import file_messages
from ..shell.command import CommandSpec
from .arguments import patience
from .execution import Execution, drive
from .spawn import account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Literal, Protocol

    from .arguments import User
    from .file_client import FileClient
    from .open_sandbox import OpenSandbox

    AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

    class ByteSource(Protocol):
        """A binary file that is read from."""

        def read(self, size: int, /) -> bytes: ...

    Content = str | bytes | bytearray | memoryview | ByteSource

    class Owner(Protocol):
        """The sandbox whose files these are."""

        def _now(self) -> OpenSandbox: ...


_CHUNK = 1 << 20
#: How much of what grep finds is read, and how long it may take, in seconds.
_MOST_FOUND, _SEARCHING = 16 << 20, 120.0
#: Seconds between two looks at a tree that is watched.
_LOOK_EVERY = 0.2


class Match(Value):
    """A line that was found."""

    path: str
    line: int
    text: str


class FileEvent(Value):
    """A change that a watch has seen. The path is relative to what is watched."""

    kind: Literal["added", "modified", "deleted"]
    path: str


@unmistakable()
class FileTools:
    """The larger tools of `Files`."""

    if TYPE_CHECKING:
        _sandbox: Owner
        _user: User

        def read_bytes(self, path: AnyPath) -> bytes: ...
        def write(self, path: AnyPath, content: Content, *, parents: bool = False) -> None: ...
        def open(self, path: AnyPath) -> IO[bytes]: ...
        def _at(self, path: AnyPath) -> tuple[OpenSandbox, bytes]: ...
        def _client(self, inside: OpenSandbox) -> FileClient: ...

    def edit(self, path: AnyPath, old: str, new: str, *, every: bool = False) -> int:
        """Replace `old` by `new` in a file; how often. InvalidCall unless `old` is there once, or `every`."""
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
        """Lines that match a pattern (POSIX extended, or `fixed` text) in a file, or below a directory.

        Done by the sandbox's own grep. `include` is a glob for names; binary files are left out.
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
        """Iterate over changes below a directory, as they come; ends after `timeout` seconds or at `stop`.

        It begins with this call: what is there now is no change. The tree is looked through a few times a
        second, by sizes and times: what comes and goes in between is not seen, and large trees cost as much
        each time.
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
        # Of a directory the time is that of the names in it, each of which is seen by itself.
        return {
            os.fsdecode(row[0]): row[1:2] if row[1] & 0o170000 == 0o040000 else row[1:4]
            for row in rows
            if row[0] and not row[0].startswith(b"/") and b".." not in row[0].split(b"/")
        }

    def upload(self, source: str | os.PathLike[str] | ByteSource, path: AnyPath) -> None:
        """Put a file of the host, by its path or opened for reading, at `path`; directories are made."""
        if isinstance(source, str | os.PathLike):
            with open(source, "rb") as file:
                self.write(path, file, parents=True)
        else:
            self.write(path, source, parents=True)

    def download(self, path: AnyPath, target: str | os.PathLike[str] | IO[bytes]) -> int:
        """Write a file of the sandbox to one of the host, by its path or opened for writing; how many bytes.

        A file at that path is replaced when all of it is there.
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
    """The lines of grep -nZ: a path, NUL, a number, a colon, the text."""
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
