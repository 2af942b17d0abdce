"""The audit log: one JSON line for each command, result, refusal and change of state, as it happens.

    log = AuditLog.open("audit.jsonl", secrets)      a path, a stream or a function
    log.write("command", command="make", cwd="/workspace")
    log.close()

    {"log":"9f2c61d07a4be1c3","n":2,"at":1794795120410000000e-9,"what":"command","command":"make",…}

Every line has the random name of its log and a number, one more than that of the line before: a line
that is missing shows. The first line is "opened", the last one "closed". A line is written by one call,
and with it handed to the kernel: what was written is there when the program is killed the next moment.
Several programs may append to one file. Secrets that are known are taken out of every text.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from time import time, time_ns

from .._value import Value
from ..errors import AuditFailed, InvalidCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike
    from typing import IO, Any, NoReturn, Self

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

    def __init__(self, secrets: Secrets | None) -> None:
        """Called by `open`."""
        self.name = os.urandom(8).hex()
        self._put: Callable[[bytes], int] = _nowhere  # takes a line, and returns how much of it was written
        self._function: Callable[[dict[str, Any]], object] | None = None  # takes records in place of lines
        self._fd, self._path = -1, ""
        self._texts = None if secrets is None or not secrets.values else secrets.text
        self._spell = _speller(self._plain, is_simple=self._texts is None)
        self._lock = threading.RLock()  # a handler of a signal may write a line, too
        self._number = 0  # of the last line, whether it could be written or not
        #: The beginning of a line: its number, and nanoseconds since 1970. In whole numbers: to make the text
        #: of a float takes as long as to write the line.
        self._head = f'{{"log":"{self.name}","n":%d,"at":%de-9,"what":'
        self._line = f'{self._head}"%b"%b}}\n'.encode()
        self._is_closed = False

    @classmethod
    def open(
        cls, target: AuditTarget, secrets: Secrets | None = None, *, outside: Iterable[str] = ()
    ) -> Self:
        """Begin a log at `target`. A file must not lie in one of the directories `outside`.

        A sandbox can write those, or a commit may replace what is in them.
        """
        made = cls(secrets)
        if isinstance(target, str | os.PathLike):
            made._path = os.fspath(target)
            made._fd = _opened(made._path, outside)
            made._put = partial(os.write, made._fd)
        elif callable(target):
            made._function = target
        elif hasattr(target, "write"):
            made._path = str(getattr(target, "name", "the stream"))
            made._put = _to_stream(target)
        else:
            raise InvalidCall(
                f"audit is {target!r}",
                why="it is not a path, a stream or a function",
                fix='use audit="audit.jsonl", or give a function that takes a dict',
            )
        return made

    def write(self, what: str, **facts: object) -> None:
        """Write one line; a fact that is None is left out. AuditFailed when it cannot be written.

        An error of a function comes out here. The number of a line that was not written is missing.
        """
        if self._function is not None:
            plain = {name: self._plain(fact) for name, fact in facts.items() if fact is not None}
            self._pass({"log": self.name, "n": 0, "at": 0.0, "what": what, **plain})
            return
        fields = self._fields(facts)
        with self._lock:
            self._number = number = self._number + 1
            line = self._line % (number, time_ns(), what.encode(), fields)
            try:
                if self._put(line) != len(line):
                    self._tear()
            except OSError as error:
                raise self._failure(error) from error

    def try_write(self, what: str, **facts: object) -> None:
        """Write one line where no error can be raised. If it cannot be written, its number is missing."""
        try:
            self.write(what, **facts)
        except Exception:
            return

    def close(self, **facts: object) -> None:
        """Write the last line, and close the file. A second time does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self.write("closed", **facts)
            finally:
                self._put, self._function = _nowhere, None
                if self._fd >= 0:
                    os.close(self._fd)

    def _tear(self) -> NoReturn:
        """Half a line was written: the next one begins a new line."""
        self._put = self._write_after_half_a_line
        raise OSError(None, "there is no room")

    def _write_after_half_a_line(self, line: bytes) -> int:
        written = os.write(self._fd, b"\n" + line) - 1
        if written == len(line):
            self._put = partial(os.write, self._fd)
        return written

    def _failure(self, error: OSError) -> AuditFailed:
        return AuditFailed(
            f"a line of the audit log could not be written to {self._path!r}",
            why=error.strerror or str(error),
            fix="make room, or do without the log: nothing runs that it does not have",
        )

    def _pass(self, record: dict[str, object]) -> None:
        """Call the function with a record: what is read from a line. It has its number and time from here."""
        with self._lock:
            self._number = record["n"] = self._number + 1
            record["at"] = time()
            if self._function is not None:
                self._function(record)

    def _fields(self, facts: dict[str, object]) -> bytes:
        """Facts as JSON without the braces, each after a comma."""
        text = ""
        for name, value in facts.items():
            if value is not None:
                text += f',"{name}":{self._spell(value)}'
        return text.encode()

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
                f"the audit log {path!r} is in the workspace, or elsewhere where it can be written",
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


def _to_stream(stream: Any) -> Callable[[bytes], int]:
    import io

    is_text = isinstance(stream, io.TextIOBase) or "b" not in str(getattr(stream, "mode", ""))
    if isinstance(stream, io.RawIOBase | io.BufferedIOBase):
        is_text = False
    write, flush = stream.write, getattr(stream, "flush", None)

    def put(line: bytes) -> int:
        try:
            write(line.decode() if is_text else line)
            if flush is not None:
                flush()
        except ValueError as error:  # it is closed
            raise OSError(None, str(error)) from error
        return len(line)

    return put


def _nowhere(line: bytes) -> int:
    """Take a line that comes after the last one."""
    return len(line)


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
