"""Checks of the arguments of a command, for Sandbox and AsyncSandbox."""

from __future__ import annotations

from ..errors import InvalidCall, PolicyError
from ..policy.limits import LONGEST_TIMEOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike
    from typing import Any, TypedDict

    Heard = Callable[[str], object] | None

    class StreamOptions(TypedDict, total=False):
        """The options of `stream`; see `Session.run`."""

        timeout: float | None
        cwd: str | PathLike[str] | None
        env: Mapping[str, str] | None
        stdin: bytes | str | None
        spill: str | PathLike[str] | None

    class RunOptions(StreamOptions, total=False):
        """The options of `run` and `exec`; see `Session.run`."""

        on_stdout: Heard
        on_stderr: Heard
        check: bool


#: The default of every `timeout`: what the policy says. None is no end.
FROM_POLICY: Any = type("_FromPolicy", (), {"__repr__": lambda _: "(the policy's)"})()


def shown(command: object) -> str | tuple[str, ...]:
    """A command as hooks are told of it, whether it can be run or not."""
    return command if isinstance(command, str) else arguments(command)  # type: ignore[arg-type]


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
    """Check a time to wait; 0 only polls."""
    return 0.0 if timeout == 0 and not isinstance(timeout, bool) else seconds(timeout)


def input_bytes(stdin: object) -> bytes:
    """Check the standard input of a command, as bytes."""
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
