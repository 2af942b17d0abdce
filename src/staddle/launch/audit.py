"""The audit log: one JSON line for each command, result, refusal and change of state, as it happens.

    log = AuditLog.open("audit.jsonl", secrets)      a path, a stream or a function
    log.write("command", command="make", cwd="/workspace")
    log.close()

    {"log":"9f2c61d07a4be1c3","n":2,"at":1794795120.41,"what":"command","command":"make",…}

Every line has the random name of its log and a number, one more than that of the line before: a line
that is missing shows. The first line is "opened", the last one "closed". A line is written by one call,
and with it handed to the kernel: what was written is there when the program is killed the next moment.
Several programs may append to one file. Secrets that are known are taken out of every text.
"""

from __future__ import annotations

import os
import threading
import time

from .._value import Value
from ..errors import AuditFailed, InvalidCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike
    from typing import IO, Any, Self

    from .redaction import Secrets

    #: Where the lines of a log go: a file, a stream of text or bytes, or a function of one record.
    AuditTarget = str | PathLike[str] | IO[str] | IO[bytes] | Callable[[dict[str, Any]], object]

#: What a line can be of.
KINDS = (
    *("opened", "command", "result", "failed", "refused", "network", "started", "terminal", "ended"),
    *("snapshot", "restored", "forked", "committed", "discarded", "paused", "resumed", "violation", "closed"),
)
#: A text longer than this is cut: a prompt or a script can be a book.
MOST_LETTERS = 10_000
#: Of a list, so many items are written, and how many there were.
MOST_ITEMS = 100
#: A line longer than this is none of ours.
_LONGEST = 4 << 20


class AuditLog:
    """A log that is open. Safe to use from any thread; lines are in the order of their numbers."""

    def __init__(
        self,
        put: Callable[[str], object] | None,
        secrets: Secrets | None,
        fd: int = -1,
        path: str = "",
    ) -> None:
        """Called by `open`. `put` takes one line; None: it goes to `fd`, the log's own file at `path`."""
        self.name = os.urandom(8).hex()
        self._put, self._fd, self._path = put, fd, path
        self._is_torn = False  # half a line is the last one
        self._texts = None if secrets is None or not secrets.values else secrets.text
        #: A value as JSON has it, without secrets, and not too long.
        self.spell = _speller(self._plain, is_simple=self._texts is None)
        #: Whether a text of up to MOST_LETTERS is only to be quoted: no secret is known.
        self.is_simple = self._texts is None
        self._lock = threading.RLock()  # a handler of a signal may write a line, too
        self._number = 0
        self._head = f'{{"log":"{self.name}","n":'
        self._next = f'{self._head}1,"at":'  # the next line up to its time
        self._closed = False

    @classmethod
    def open(
        cls, target: AuditTarget, secrets: Secrets | None = None, *, outside: Iterable[str] = ()
    ) -> Self:
        """Begin a log at `target`. A file must not lie in one of the directories `outside`.

        A sandbox can write those, or a commit may replace what is in them.
        """
        if isinstance(target, str | os.PathLike):
            path = os.fspath(target)
            return cls(None, secrets, _opened(path, outside), path)
        if callable(target):
            return cls(_to_function(target), secrets)
        if hasattr(target, "write"):
            return cls(_to_stream(target), secrets)
        raise InvalidCall(
            f"audit is {target!r}",
            why="it is not a path, a stream or a function",
            fix='use audit="audit.jsonl", or give a function that takes a dict',
        )

    def write(self, what: str, **facts: object) -> None:
        """Write one line; a fact that is None is left out. AuditFailed when it cannot be written.

        An error of a function comes out here.
        """
        fields = f'"what":"{what}"'
        for name, value in facts.items():
            if value is not None:
                fields += f',"{name}":{self.spell(value)}'
        self.append(fields)

    def append(self, fields: str) -> None:
        """Write one line with these fields: JSON without its braces, "what" first, each value by `spell`."""
        with self._lock:
            if self._closed:
                return
            # On every command's path, just after a wait, when code is slow: few steps, and no number but
            # whole ones. (To write a float takes as long as to write the line.)
            now = f"{time.time_ns()}"
            line = f"{self._next}{now[:-9]}.{now[-9:-3]},{fields}}}\n"
            if self._put is not None:
                self._put(line)
            else:
                data = line.encode() if not self._is_torn else f"\n{line}".encode()
                try:
                    self._is_torn = os.write(self._fd, data) < len(data)
                except OSError as error:
                    raise _not_written(self._path, error.strerror or str(error)) from error
                if self._is_torn:
                    raise _not_written(self._path, "there is no room")
            self._number = number = self._number + 1
            self._next = f'{self._head}{number + 1},"at":'

    def try_write(self, what: str, **facts: object) -> None:
        """Write one line where no error can be raised. If it cannot be written, its number is missing."""
        with self._lock:
            number = self._number
            try:
                self.write(what, **facts)
            except Exception:
                self._number = number + 1
                self._next = f'{self._head}{number + 2},"at":'

    def close(self, **facts: object) -> None:
        """Write the last line, and close the file. A second time does nothing."""
        with self._lock:
            try:
                self.write("closed", **facts)
            finally:
                self._closed = True
                fd, self._fd = self._fd, -1
                if fd >= 0:
                    os.close(fd)

    def _plain(self, value: object) -> object:
        """The value as JSON has it, without secrets, and not too long."""
        if isinstance(value, str):
            if self._texts is None and len(value) <= MOST_LETTERS:
                return value
            # Without the secrets first: a cut must not leave half of one.
            text = value if self._texts is None else self._texts(value)
            return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, dict):
            return {str(self._plain(str(name))): self._plain(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self._plain(item) for item in value[:MOST_ITEMS]]
            return items if len(value) <= MOST_ITEMS else [*items, f"… {len(value)} in all"]
        if isinstance(value, Value):
            return self._plain(value.as_dict())
        return self._plain(str(value))


def _opened(path: str, outside: Iterable[str]) -> int:
    directory = os.path.realpath(os.path.dirname(path) or ".")
    for place in outside:
        real = os.path.realpath(place)
        if directory == real or directory.startswith(real.rstrip("/") + "/"):
            raise InvalidCall(
                f"the audit log {path!r} is in the workspace",
                why="what is audited could change it",
                fix="choose a file elsewhere",
            )
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise AuditFailed(
            f"the audit log {path!r} cannot be opened",
            why=error.strerror or str(error),
            fix="name a file in a directory that is there and can be written",
        ) from error


def _speller(plain: Callable[[object], object], *, is_simple: bool) -> Callable[[object], str]:
    """A function that makes JSON of a value. Most are short texts and numbers.

    `plain` makes a value fit for JSON; `is_simple`: a short text is already, as no secret is known.
    """
    import json
    from json.encoder import encode_basestring_ascii as quoted

    other = json.JSONEncoder(separators=(",", ":")).encode
    longest = MOST_LETTERS if is_simple else -1

    def spell(value: object) -> str:
        kind = type(value)
        if kind is str and len(value) <= longest:  # type: ignore[arg-type]
            return quoted(value)  # type: ignore[arg-type]
        if kind is int:
            return f"{value}"
        if kind is float:
            return f"{value:.6f}"
        return other(plain(value))

    return spell


def _to_function(function: Callable[[dict[str, Any]], object]) -> Callable[[str], object]:
    from json import JSONDecoder

    # The line is ours: there is nothing to skip, before it or after it.
    scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder().scan_once  # type: ignore[attr-defined]
    return lambda line: function(scan(line, 0)[0])


def _to_stream(stream: Any) -> Callable[[str], object]:
    import io

    is_text = isinstance(stream, io.TextIOBase) or "b" not in str(getattr(stream, "mode", ""))
    if isinstance(stream, io.RawIOBase | io.BufferedIOBase):
        is_text = False

    def put(line: str) -> None:
        try:
            stream.write(line if is_text else line.encode())
            if hasattr(stream, "flush"):
                stream.flush()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            raise _not_written(str(getattr(stream, "name", "the stream")), str(error)) from error

    return put


def _not_written(where: str, why: str) -> AuditFailed:
    return AuditFailed(
        f"a line of the audit log could not be written to {where!r}",
        why=why,
        fix="make room, or do without the log: nothing runs that it does not have",
    )


# ---------------------------------------------------------------- reading


class AuditLine(Value):
    """One line of a log that was read: which log, its number, when, what, and the facts."""

    log: str
    number: int
    at: float
    what: str
    facts: dict[str, Any]


class AuditProblem(Value):
    """A thing that is wrong with a file of audit lines: the line of the file, and a sentence."""

    line: int
    why: str


def read(file: Iterable[bytes]) -> Iterator[AuditLine | AuditProblem]:
    """The lines of a file of audit lines in their order, and what is wrong with them, where it shows.

    Numbers that are missing show at the next line of that log; a log without its last line at the end.
    """
    import json

    last: dict[str, tuple[int, bool]] = {}
    at = 0
    for at, raw in enumerate(file, 1):
        if not raw.strip():
            continue
        try:
            if len(raw) > _LONGEST:
                raise ValueError
            facts = json.loads(raw)
            line = AuditLine(
                str(facts.pop("log")),
                int(facts.pop("n")),
                float(facts.pop("at")),
                str(facts.pop("what")),
                facts,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            yield AuditProblem(at, "this is not a line of an audit log, or only a part of one")
            continue
        before, is_closed = last.get(line.log, (0, False))
        if line.number > before + 1:
            missing = f"{before + 1}" if line.number == before + 2 else f"{before + 1} to {line.number - 1}"
            yield AuditProblem(at, f"log {line.log}: missing before this line: {missing}")
        elif line.number <= before or is_closed:
            yield AuditProblem(at, f"log {line.log}: number {line.number} comes after {before}")
        last[line.log] = max(before, line.number), is_closed or line.what == "closed"
        yield line
    for log, (number, is_closed) in last.items():
        if not is_closed:
            yield AuditProblem(
                at, f"log {log}: no end after number {number}: it is still open, or was killed"
            )
