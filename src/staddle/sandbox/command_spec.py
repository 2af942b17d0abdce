"""What a caller asks for, checked, and on its way to a result. Both faces use it."""

from __future__ import annotations

from ..errors import InvalidCall, PolicyError
from ..limits.usage import Usage
from ..policy.limits import LONGEST_TIMEOUT
from .capture import Capture, Told, spills
from .result import Reason, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike
    from typing import Any, TypedDict

    from ..events import Event
    from ..layers.changes import Change
    from ..policy.limits import Limits
    from ..shell.outcome import Outcome

    Heard = Callable[[str], object] | None
    Aftermath = Callable[[Callable[[], str]], tuple[tuple[Change, ...] | None, tuple[Event, ...]]]

    class StreamOptions(TypedDict, total=False):
        """What `stream` takes; see `Session.run`."""

        timeout: float | None
        cwd: str | PathLike[str] | None
        env: Mapping[str, str] | None
        stdin: bytes | str | None
        spill: str | PathLike[str] | None

    class RunOptions(StreamOptions, total=False):
        """What `run` and `exec` take; see `Session.run`."""

        on_stdout: Heard
        on_stderr: Heard
        check: bool


#: The default of every `timeout`: what the policy says. None is no end.
FROM_POLICY: Any = type("_FromPolicy", (), {"__repr__": lambda _: "(the policy's)"})()


#: So much of a command is told with what it was refused.
_LONGEST = 200

#: Of a command that was not measured nothing is known but how long it took.
_UNKNOWN = (None,) * 6


class Call:
    """One command: its arguments, where its output goes, and in the end its result."""

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
        streamed: bool = False,
    ) -> None:
        self.command = command
        self.as_root = False  # of the sandbox
        #: What it changed and what it was refused, to be asked when it is over.
        self.side_effects: Aftermath | None = None
        self.timeout = limits.timeout if timeout is FROM_POLICY else seconds(timeout)
        self.stdin = None if stdin is None else input_bytes(stdin)
        self.env = None if env is None else variables(env)
        self.cwd = None if cwd is None else directory(cwd)
        out, err = (None, None) if spill is None else spills(spill)
        self._out = Capture(limits.output, out, taken=streamed or on_stdout is not None)
        self._err = Capture(limits.output, err, taken=streamed or on_stderr is not None)
        self._told: list[Told] = []
        self.out = self._sink(self._out, on_stdout, "on_stdout")
        self.err = self._sink(self._err, on_stderr, "on_stderr")

    def _sink(self, capture: Capture, callback: Heard, name: str) -> Callable[[bytes], None]:
        if callback is None:
            return capture.feed
        if not callable(callback):
            raise InvalidCall(f"{name} is {callback!r}", why="it cannot be called")
        told = Told(callback)
        self._told.append(told)

        def feed(data: bytes) -> None:
            capture.feed(data)
            told.feed(data)

        return feed

    def result(self, outcome: Outcome) -> Result:
        """Everything about it, now that it is over."""
        for told in self._told:
            told.finish()
        out, out_dropped, out_spill = self._out.finish()
        err, err_dropped, err_spill = self._err.finish()
        changes, violations = self.side_effects(self._shown) if self.side_effects else ((), ())
        return Result(
            self.command,
            outcome.exit_code,
            out,
            err,
            outcome.duration,
            Reason[outcome.reason],
            outcome.signal,
            outcome.shell_exited,
            outcome.cwd,
            outcome.usage or Usage(outcome.duration, *_UNKNOWN),
            changes,
            violations,
            out_dropped,
            err_dropped,
            out_spill,
            err_spill,
            outcome.why,
        )

    def _shown(self) -> str:
        """The command, for whoever reads what was refused to it."""
        words = self.command if isinstance(self.command, str) else " ".join(self.command)
        return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"

    def abandon(self) -> None:
        """There will be no result: let go of the files."""
        self._out.finish()
        self._err.finish()


def of(command: str | tuple[str, ...], limits: Limits, options: RunOptions) -> tuple[Call, bool]:
    """The call with these options, and whether it must succeed."""
    rest = dict(options)
    check = bool(rest.pop("check", False))
    return Call(command, limits, **rest), check  # type: ignore[arg-type]


def command_bytes(command: object) -> bytes:
    """The text of a command as a shell reads it."""
    if not isinstance(command, str):
        fix = "to run a list of arguments: sb.exec([...])" if isinstance(command, list | tuple) else ""
        raise InvalidCall(f"the command is {command!r}", why="it is not text", fix=fix)
    try:
        data = command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidCall("the command has characters that no byte stands for", fix="write UTF-8") from None
    if "\0" in command:
        raise InvalidCall("the command has a NUL in it", why="a shell would silently drop it")
    return data


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """A program and its arguments."""
    if isinstance(argv, str | bytes):
        raise InvalidCall(
            "a program and its arguments are a list, not one text",
            why="splitting it would be guessing",
            fix=f"wrong: sb.exec({argv!r})  right: sb.run({argv!r}), or a list",
        )
    try:
        words = tuple(argv)
    except TypeError:
        raise InvalidCall(f"the arguments are {argv!r}", why="that is not a list") from None
    if not words or words[0] == "":
        raise InvalidCall("there is no program to run", fix='write sb.exec(["git", "status"])')
    for word in words:
        if not isinstance(word, str):
            raise InvalidCall(f"the argument {word!r} is not text")
        _plain(word, f"the argument {word!r}")
    return words


def seconds(timeout: object) -> float | None:
    """A time that a command gets; None is no end."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidCall(f"timeout is {timeout!r}", why="it is not a number of seconds, nor None")
    if not timeout > 0:  # nor NaN
        raise InvalidCall(f"timeout is {timeout!r}", why="nothing could run in it", fix="use None for no end")
    if timeout > LONGEST_TIMEOUT:
        raise InvalidCall(f"timeout is {timeout!r}", why="it is too long", fix="use None for no end")
    return float(timeout)


def patience(timeout: object) -> float | None:
    """How long somebody is willing to wait; 0 is only a look."""
    return 0.0 if timeout == 0 and not isinstance(timeout, bool) else seconds(timeout)


def input_bytes(stdin: object) -> bytes:
    """What a command finds on its standard input."""
    if isinstance(stdin, str):
        try:
            return stdin.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidCall("stdin has characters that no byte stands for", fix="give bytes") from None
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    raise InvalidCall(f"stdin is {stdin!r}", why="it is neither bytes nor text")


def variables(env: object) -> dict[str, str]:
    """Variables for one command. Their names are such as a shell can set."""
    from ..policy.environment import checked

    try:
        pairs: Mapping[str, str] = checked(env)
    except PolicyError as error:
        raise InvalidCall(error.what, why=error.why, fix=error.fix) from None
    for name in pairs:
        if not (name.isascii() and name.isidentifier()):
            raise InvalidCall(f"env names a variable {name!r}", why="a shell cannot set one of that name")
    return dict(pairs)


def directory(cwd: object) -> str:
    """A directory inside, absolute or from where the session is."""
    import os

    if not isinstance(cwd, str | os.PathLike):
        raise InvalidCall(f"cwd is {cwd!r}", why="it is not a path")
    path = os.fsdecode(cwd)
    if not path:
        raise InvalidCall("cwd is empty", fix="name a directory inside, or leave it out")
    return _plain(path, "cwd")


def _plain(text: str, what: str) -> str:
    if "\0" in text:
        raise InvalidCall(f"{what} has a NUL in it", why="no program can be given one")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidCall(f"{what} has characters that no byte stands for") from None
    return text
