"""The audit log: one JSON line for each command, result, refusal and change of state, as it happens.

    log = AuditLog.open("audit.jsonl", secrets)      a path, a stream or a function
    log.write("command", command="make", cwd="/workspace")
    log.close()

    {"log":"9f2c61d07a4be1c3","n":2,"at":1794795120410000000e-9,"after":"5d1c…","what":"command",…}

Every line has the random name of its log, a consecutive number, and the hash of the line of its log before
it. So a missing line is noticed, and so is a changed one. The first line is "opened", the last one "closed".
Each line is one write to the kernel, so it survives if the program is killed right afterwards. Several
programs may append to one file: each log is a chain of its own. Known secrets are removed from every text.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial
from itertools import count
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic, time, time_ns

from .._value import Value
from ..errors import AuditFailed, InvalidCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from os import PathLike
    from typing import IO, Any, NoReturn, Self

    from ..events import Event
    from ..policy.plan import Plan
    from .redaction import Secrets

    #: Target of a log: a file, a stream of text or bytes, or a function of one record.
    AuditTarget = str | PathLike[str] | IO[str] | IO[bytes] | Callable[[dict[str, Any]], object]

#: The kinds of lines.
KINDS = (
    *("opened", "command", "result", "failed", "refused", "network", "started", "terminal", "ended"),
    *("snapshot", "restored", "forked", "merged", "committed", "discarded", "paused", "resumed", "violation"),
    *("point", "stepped", "blame", "closed"),
)
#: Longer texts are cut, because a prompt or a script can be very long.
MOST_LETTERS = 10_000
#: Number of items written of a list; the total follows.
MOST_ITEMS = 100
#: A longer line is not ours.
_LONGEST = 4 << 20


class AuditLog:
    """An open log. Thread-safe; lines are in the order of their numbers."""

    def __init__(self, secrets: Secrets | None) -> None:
        """Use `open` instead."""
        self.name = os.urandom(8).hex()
        self._put: Callable[[bytes], int] = _nowhere  # writes a line, returns the written bytes
        self._function: Callable[[dict[str, Any]], object] | None = None  # receives records instead of lines
        self._fd, self._path = -1, ""
        self._texts = None if secrets is None or not secrets.values else secrets.text
        self._spell = _speller(self._plain, is_simple=self._texts is None)
        self._lock = threading.RLock()  # reentrant: a signal handler may write a line
        self._number = 0  # of the last line, even if writing it failed
        #: Hash of the last line that was written.
        self._last = b""
        #: The beginning of a line: its number, nanoseconds since 1970, the hash. Integers, because formatting
        #: a float takes as long as writing the line.
        self._head = f'{{"log":"{self.name}","n":%d,"at":%de-9,"after":"%b","what":'
        self._line = f'{self._head}"%b"%b}}\n'.encode()
        self._is_closed = False

    @classmethod
    def open(
        cls, target: AuditTarget, secrets: Secrets | None = None, *, outside: Iterable[str] = ()
    ) -> Self:
        """Begin a log at `target`. A file must not be in one of the directories `outside`.

        A sandbox can write there, or a commit may replace files there.
        """
        made = cls(secrets)
        if isinstance(target, str | os.PathLike):
            made._path = os.fspath(target)
            made._fd = _opened(made._path, outside)
            is_torn = _ends_within_a_line(made._path, made._fd)
            made._put = made._write_after_half_a_line if is_torn else partial(os.write, made._fd)
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
        """Write one line; facts that are None are left out. Raises AuditFailed if it cannot be written.

        An error of a function is raised here. The number of an unwritten line is missing in the log.
        """
        if self._function is not None:
            plain = {name: self._plain(fact) for name, fact in facts.items() if fact is not None}
            self._pass({"log": self.name, "n": 0, "at": 0.0, "what": what, **plain})
            return
        fields = self._fields(facts)
        with self._lock:
            self._number = number = self._number + 1
            line = self._line % (number, time_ns(), self._last, what.encode(), fields)
            try:
                if self._put(line) != len(line):
                    self._tear()
                self._last = line_hash(line)
            except OSError as error:
                raise self._failure(error) from error

    def try_write(self, what: str, **facts: object) -> None:
        """Write one line where no error may be raised. If that fails, its number is missing."""
        try:
            self.write(what, **facts)
        except Exception:
            return

    def close(self, **facts: object) -> None:
        """Write the last line, and close the file. Further calls do nothing."""
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
        """After a partial line, let the next one begin on a new line."""
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
        """Call the function with a record, which equals a parsed line, and add its number and time."""
        with self._lock:
            self._number = record["n"] = self._number + 1
            record["at"] = time()
            if self._function is not None:
                self._function(record)

    def _fields(self, facts: dict[str, object]) -> bytes:
        """Return facts as JSON without the braces, each after a comma."""
        text = ""
        for name, value in facts.items():
            if value is not None:
                text += f',"{name}":{self._spell(value)}'
        return text.encode()

    def _plain(self, value: object) -> object:
        """Return the value for JSON, without secrets, and cut if too long."""
        if isinstance(value, str):
            if self._texts is None and len(value) <= MOST_LETTERS:
                return value
            # Remove secrets before cutting, so that no part of one remains.
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


def _ends_within_a_line(path: str, fd: int) -> bool:
    """Whether a program that was killed has left a part of a line at the end of the file.

    `fd` may only write. A file that we may not read counts as whole.
    """
    try:
        other = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        looked = 0
        while (size := os.fstat(fd).st_size) != looked:
            if os.pread(other, 1, size - 1) in (b"\n", b""):
                return False
            looked = size
            with suppress(OSError):
                os.utime(fd)  # waits in the kernel until a write that another program has begun is done
        return size > 0
    except OSError:  # a device
        return False
    finally:
        os.close(other)


def line_hash(line: bytes) -> bytes:
    """Return the hash of a line with its newline: what `b2sum -l 256` prints for it."""
    from _blake2 import blake2b  # hashlib's, without importing the rest

    return blake2b(line, digest_size=32).hexdigest().encode()


def _speller(plain: Callable[[object], object], *, is_simple: bool) -> Callable[[object], str]:
    """Return a function that encodes a value as JSON. It is fast for short texts and numbers.

    `plain` converts a value for JSON. `is_simple`: no secret is known, so short texts need no conversion.
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
    """Discard a line that comes after the last one."""
    return len(line)


# ---------------------------------------------------------------- reading


class CommandAudit:
    """The audit log of `wrap`, `staddle run`, a jail and a LocalEnvironment.

    The lines are the same as for a sandbox (`sandbox.hooks`): "opened", then "command" before each command
    starts, "refused" for each refusal, "result" or "failed", and finally "closed". Raises AuditFailed if a
    line cannot be written.
    """

    def __init__(
        self,
        target: AuditTarget,
        secrets: Secrets | None,
        *,
        outside: Iterable[str] = (),
        **opened: object,
    ) -> None:
        """Begin the log with a line "opened". It must not be in a directory of `outside`."""
        self._log = AuditLog.open(target, secrets, outside=outside)
        self._numbers = count(1)
        self._log.write("opened", **opened)

    @classmethod
    def of(cls, target: AuditTarget, plan: Plan, secrets: Secrets | None, backend: str) -> Self:
        """Begin a log of commands with this plan. It must not be where they can write."""
        network = str(plan.network)
        return cls(
            target, secrets, outside=plan.written(), backend=backend, workspace=plan.cwd, network=network
        )

    def begin(self, command: Sequence[str], cwd: str | None = None) -> AuditedCommand:
        """Write that a command is about to start."""
        made = AuditedCommand(self._log, next(self._numbers))
        self._log.write("command", id=made.number, command=tuple(command), cwd=cwd)
        return made

    def close(self) -> None:
        """Write the last line. Further calls do nothing."""
        self._log.close()


class AuditedCommand:
    """A command that the log has begun. Call `end` or `failed` once."""

    def __init__(self, log: AuditLog, number: int) -> None:
        self._log, self.number = log, number
        self._began = monotonic()

    def end(
        self,
        exit_code: int,
        reason: str,
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        why: str = "",
        events: Iterable[Event] = (),
    ) -> None:
        """Write the refusals of a finished command, then its result. `stdout`, `stderr` are byte counts."""
        for event in events:
            kind = "refused" if event.kind == "refused" else "violation"
            self._log.write(kind, id=self.number, host=event.what, rule=event.rule, allow=event.allow or None)
        self._log.write(
            "result",
            id=self.number,
            ok=exit_code == 0 and reason == "exited",
            exit_code=exit_code,
            reason=reason,
            duration=round(monotonic() - self._began, 6),
            stdout=stdout,
            stderr=stderr,
            why=why or None,
        )

    def failed(self, error: BaseException) -> None:
        """Write that there is no result. Never raises, because the error is already being raised."""
        self._log.try_write("failed", id=self.number, error=f"{type(error).__name__}: {error}")


class AuditLine(Value):
    """One parsed line of a log: the log, its number, time, kind and facts, and its hash."""

    log: str
    number: int
    at: float
    what: str
    facts: dict[str, Any]
    hash: str = ""


class AuditProblem(Value):
    """An error in a file of audit lines: the line number, and a sentence."""

    line: int
    why: str


def read(file: Iterable[bytes]) -> Iterator[AuditLine | AuditProblem]:
    """Yield the lines of an audit file in order, and a problem where one is noticed.

    Missing numbers and changed lines are noticed at the next line of that log, a missing last line at the end
    of the file. A log whose first line has no hash of a line before is of an older version: it has numbers
    only.
    """
    import json

    last: dict[str, tuple[int, bool, str | None]] = {}
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
                line_hash(raw.rstrip(b"\n") + b"\n").decode(),
            )
            after = facts.pop("after", None)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            yield AuditProblem(at, "this is not a line of an audit log, or only a part of one")
            continue
        before, is_closed, expected = last.get(line.log, (0, False, None if after is None else ""))
        if line.number > before + 1:
            missing = f"{before + 1}" if line.number == before + 2 else f"{before + 1} to {line.number - 1}"
            yield AuditProblem(at, f"log {line.log}: missing before this line: {missing}")
        elif line.number <= before or is_closed:
            yield AuditProblem(at, f"log {line.log}: number {line.number} comes after {before}")
        elif after != expected:
            changed = f"{before} or {line.number}" if before else f"{line.number}"
            yield AuditProblem(at, f"log {line.log}: number {changed} was changed: the hash is another")
        if line.number > before:
            expected = None if expected is None else line.hash
        last[line.log] = max(before, line.number), is_closed or line.what == "closed", expected
        yield line
    for log, (number, is_closed, _) in last.items():
        if not is_closed:
            yield AuditProblem(
                at, f"log {log}: no end after number {number}: it is still open, or was killed"
            )
