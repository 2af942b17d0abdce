"""A command, its output and its result. Memory is bounded, bytes are counted, all of it can go to disk."""

from __future__ import annotations

import codecs
import os
from functools import partial

from .. import check
from ..errors import InvalidCall
from ..interrupts import interruptible
from ..limits.usage import Usage
from ..linux.fileio import write_all
from ..observe.output import FLOOD, HeadTail, OutputFlood
from ..observe.redaction import Redactor
from ..shell.command import CommandSpec
from . import arguments
from .arguments import FROM_POLICY
from .result import Reason, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..events import Event
    from ..layers.changes import Change
    from ..observe.redaction import Secrets
    from ..policy.limits import Limits
    from ..shell.command import Outcome
    from .arguments import Heard
    from .open.as_root import Account

    SideEffects = Callable[[Callable[[], str]], tuple[tuple[Change, ...] | None, tuple[Event, ...]]]


_NO_END = float("inf")


class Capture:
    """Captures one stream: head and tail within `limit`; with a `spill`, the whole stream goes to a file.

    The file exists only if bytes were dropped from memory.
    """

    __slots__ = ("_is_taken", "_kept", "_limit", "_most", "_spill")

    def __init__(self, limit: int | None, spill: Spill | None = None, *, taken: bool = False) -> None:
        """Prepare to capture. With `taken`, a reader consumes the whole stream: its length is not bounded."""
        self._kept: HeadTail | None = None  # most commands print nothing to one of their streams
        self._limit, self._spill, self._is_taken = limit, spill, taken

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        if self._kept is None:
            self._kept = HeadTail(self._limit)
            is_bound = not self._is_taken and self._spill is None and self._limit is not None
            self._most = max(self._limit or 0, FLOOD) if is_bound else _NO_END
        kept = self._kept
        if self._spill is not None and self._limit is not None and kept.total + len(data) > self._limit:
            if not self._spill.begun:
                self._spill.write(kept.value())  # nothing was dropped so far: this is everything
            self._spill.write(data)
        kept.feed(data)
        if kept.total > self._most:
            raise OutputFlood

    @property
    def spill_failure(self) -> str:
        """Reason why the requested file with the whole output is missing; else empty."""
        return "" if self._spill is None else self._spill.failure

    def finish(self) -> tuple[bytes, int, int, str | None]:
        """Return the kept bytes, the number dropped, the position of the cut, and the spill file's path."""
        kept = self._kept
        spilled = None if self._spill is None else self._spill.finish()
        return (b"", 0, 0, spilled) if kept is None else (kept.value(), kept.dropped, kept.cut, spilled)


class Spill:
    """Host file for output that does not fit in memory.

    The first write creates it under a random name, readable by its owner only. If the disk is full, it is
    deleted: partial output would look complete.
    """

    def __init__(self, directory: str, stream: str) -> None:
        self._directory = directory
        self._stream = stream
        self._path: str | None = None
        self._fd = -1
        self.begun = False
        self.failure = ""  # why the file is missing

    def write(self, data: bytes) -> None:
        """Append to the file. A failed write is not an error of the command."""
        try:
            if not self.begun:
                self.begun = True
                self._path = os.path.join(self._directory, f"{self._stream}-{os.urandom(6).hex()}.txt")
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o600)
            if self._fd >= 0:
                write_all(self._fd, data)
        except OSError as error:
            self.failure = error.strerror or str(error)
            self._give_up()

    def finish(self) -> str | None:
        """Close the file. Returns its path if it holds the whole output."""
        if self._fd < 0:
            return None
        fd, self._fd = self._fd, -1
        os.close(fd)
        return self._path

    def _give_up(self) -> None:
        if self._fd >= 0 and self._path is not None:
            os.close(self._fd)
            os.unlink(self._path)
        self._fd, self._path = -1, None


def spills(directory: object) -> tuple[Spill, Spill] | tuple[None, None]:
    """Return spill files for stdout and stderr in an existing host `directory`, or (None, None)."""
    if directory is None:
        return None, None
    path = os.path.abspath(check.path("spill", directory, "name a directory"))
    if not os.path.isdir(path):
        raise InvalidCall(f"spill is {path!r}", why="there is no such directory", fix="make it first")
    return Spill(path, "stdout"), Spill(path, "stderr")


class TextCallback:
    """Passes a stream to a callback as text, as it arrives, without splitting characters."""

    def __init__(self, callback: Callable[[str], object]) -> None:
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        """Pass on the next bytes of the stream."""
        if text := self._decoder.decode(data):
            interruptible(partial(self._callback, text))

    def finish(self) -> None:
        """Pass on an incomplete character at the end of the stream."""
        if text := self._decoder.decode(b"", final=True):
            interruptible(partial(self._callback, text))


#: Characters of a command shown in events.
_LONGEST = 200

#: Usage of a command that was not measured, except its duration.
_UNKNOWN = (None,) * 6
_REASONS = dict(Reason.__members__)


class CapturedCommand(CommandSpec):
    """One command of a caller: its checked arguments, its captured output and its result."""

    __slots__ = (
        *("_err", "_out", "_redactors", "_sinks", "_told"),
        *("account", "command", "explain", "number", "side_effects"),
    )

    def __init__(
        self,
        command: str | tuple[str, ...],
        limits: Limits,
        *,
        timeout: object = FROM_POLICY,
        stdin: object = None,
        env: object = None,
        cwd: object = None,
        on_stdout: Heard = None,
        on_stderr: Heard = None,
        spill: object = None,
        merge: bool = False,
        output_limit: object = FROM_POLICY,
        streamed: bool = False,
        program: bool = False,
        secrets: Secrets | None = None,
        **unknown: object,
    ) -> None:
        """Check the arguments. With `program`, no shell runs it; `secrets` are redacted."""
        if unknown:
            arguments.refuse_unknown(unknown)
        self.command = command
        self.text = b"" if program else command_bytes(command)
        self.account: Account | None = None  # user, if not the session's
        #: Number in the sandbox for hooks and the audit log; 0 if they were not called.
        self.number = 0
        #: Returns the changes and refusals after the command has ended.
        self.side_effects: SideEffects | None = None
        #: Adds the known reason to the result of a failed command.
        self.explain: Callable[[Result], Result] | None = None
        self.timeout = limits.timeout if timeout is FROM_POLICY else arguments.seconds(timeout)
        self.stdin = None if stdin is None else arguments.input_bytes(stdin)
        self.env = None if env is None else arguments.command_variables(env, program=program)
        self.cwd = None if cwd is None else arguments.directory(cwd)
        self.merge = merge
        out, err = (None, None) if spill is None else spills(spill)
        most = limits.output if output_limit is FROM_POLICY else arguments.size(output_limit)
        self._out = Capture(most, out, taken=streamed or on_stdout is not None)
        self._err = Capture(most, err, taken=streamed or on_stderr is not None)
        self._told: list[TextCallback] = []
        self.out = self._out.feed if on_stdout is None else self._sink(self._out, on_stdout, "on_stdout")
        self.err = self._err.feed if on_stderr is None else self._sink(self._err, on_stderr, "on_stderr")
        self.secrets = None
        if secrets is not None:
            if self.env:
                secrets = secrets.with_variables(self.env)
            if secrets.values:
                self.secrets = secrets
                self._redactors = (Redactor(secrets.spelled), Redactor(secrets.spelled))
                self._sinks = (self.out, self.err)
                self._redact()

    def also(self, out: Callable[[bytes], None], err: Callable[[bytes], None]) -> None:
        """Pass its output to these sinks as well."""
        if self.secrets is None:
            self.out, self.err = partial(_feed, self.out, out), partial(_feed, self.err, err)
        else:
            first, second = self._sinks
            self._sinks = partial(_feed, first, out), partial(_feed, second, err)
            self._redact()

    def _redact(self) -> None:
        self.out, self.err = map(_redacted, self._redactors, self._sinks)

    def flush(self) -> None:
        """Pass on output that was held back because it could have been the start of a secret."""
        if self.secrets is not None:
            for redactor, sink in zip(self._redactors, self._sinks, strict=True):
                try:
                    if rest := redactor.finish():
                        sink(rest)
                except OutputFlood:
                    continue

    def _sink(
        self, capture: Capture, callback: Callable[[str], object], name: str
    ) -> Callable[[bytes], None]:
        check.function(name, callback, "give a function that takes a text")
        told = TextCallback(callback)
        self._told.append(told)

        def feed(data: bytes) -> None:
            capture.feed(data)
            told.feed(data)

        return feed

    def result(self, outcome: Outcome) -> Result:
        """Build the result, after the command has ended."""
        if self.secrets is not None:
            self.flush()
        for told in self._told:
            told.finish()
        out, out_dropped, out_cut, out_spill = self._out.finish()
        err, err_dropped, err_cut, err_spill = self._err.finish()
        changes, violations = self.side_effects(self._shown) if self.side_effects else ((), ())
        secrets, cwd = self.secrets, outcome.cwd
        if secrets is not None:
            cwd = secrets.text(cwd)
            changes = changes and tuple(_without_secrets(each, secrets) for each in changes)
        made = Result(
            self.command if secrets is None else secrets.command(self.command),
            outcome.exit_code,
            out,
            err,
            outcome.duration,
            _REASONS[outcome.reason],
            outcome.signal,
            outcome.shell_exited,
            cwd,
            outcome.usage or Usage(outcome.duration, *_UNKNOWN),
            changes,
            violations,
            out_dropped,
            err_dropped,
            out_spill,
            err_spill,
            self._why(outcome) if secrets is None else secrets.text(self._why(outcome)),
            outcome.errno,
            out_cut,
            err_cut,
        )
        return made if self.explain is None or not outcome.exit_code else self.explain(made)

    def _why(self, outcome: Outcome) -> str:
        """Return the result's explanation, including a timeout or a failed spill."""
        why = outcome.why
        if not why and outcome.reason == "timeout" and self.timeout is not None:
            why = f"it was ended after {self.timeout:g} seconds (timeout=, limits.timeout)"
        if failure := self._out.spill_failure or self._err.spill_failure:
            spilled = f"what it printed could not be spilled: {failure}"
            return f"{why}; {spilled}" if why else spilled
        return why

    def _shown(self) -> str:
        """Return the command, shortened, for events."""
        words = self.command if isinstance(self.command, str) else " ".join(self.command)
        return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"

    def abandon(self) -> None:
        """Close the spill files: there will be no result."""
        self._out.finish()
        self._err.finish()


def captured(
    command: str | tuple[str, ...],
    limits: Limits,
    options: Mapping[str, Any],
    *,
    program: bool = False,
    secrets: Secrets | None = None,
) -> tuple[CapturedCommand, bool]:
    """Return the command with these options, and whether it must succeed."""
    rest = dict(options)
    check = bool(rest.pop("check", False))
    return CapturedCommand(command, limits, program=program, secrets=secrets, **rest), check


def _feed(one: Callable[[bytes], None], other: Callable[[bytes], None], data: bytes) -> None:
    one(data)
    other(data)


def _without_secrets(change: Change, secrets: Secrets) -> Change:
    """Redact the paths of a change. Only results are redacted; a review shows real paths."""
    names = (change.path, change.target, change.old_path, change.old_target)
    hidden = [name if name is None else secrets.text(name) for name in names]
    if (*hidden,) == names:
        return change
    path, target, old_path, old_target = hidden
    return change.replace(path=path, target=target, old_path=old_path, old_target=old_target)


def _redacted(redactor: Redactor, sink: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def feed(data: bytes) -> None:
        if certain := redactor.feed(data):
            sink(certain)

    return feed


def command_bytes(command: object) -> bytes:
    """Encode a command for the shell. Raises InvalidCall unless it is text without NUL."""
    if not isinstance(command, str):
        fix = "to run a list of arguments: sb.exec([...])" if isinstance(command, list | tuple) else ""
        raise InvalidCall(f"the command is {command!r}", why="it is not text", fix=fix)
    data = check.encoded("the command", command, "write UTF-8")
    if "\0" in command:
        raise InvalidCall(
            "the command has a NUL in it",
            why="a shell would silently drop it",
            fix="take it out, or pass it by stdin=",
        )
    return data
