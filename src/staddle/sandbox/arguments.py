"""Checks of the arguments of a command, for Sandbox and AsyncSandbox."""

from __future__ import annotations

from .. import check
from ..errors import InvalidCall, PolicyError
from ..policy.limits import LONGEST_TIMEOUT, parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from threading import Event
    from typing import IO, Any, TypedDict, TypeVar

    _Method = TypeVar("_Method", bound=Callable[..., Any])

    Heard = Callable[[str], object] | None
    #: For one command; None unsets a variable.
    CommandVariables = Mapping[str, str | None] | None
    #: A user of the sandbox, by name or number; None is the session's.
    User = str | int | None
    Stdin = bytes | str | IO[bytes] | None

    class StreamOptions(TypedDict, total=False):
        """The options of `stream`; see `Session.run`."""

        timeout: float | None
        cwd: str | PathLike[str] | None
        env: CommandVariables
        stdin: Stdin
        spill: str | PathLike[str] | None
        merge: bool
        output_limit: int | str | None

    class StartOptions(TypedDict, total=False):
        """Options of a process in the background; see `Sandbox.start`."""

        merge: bool
        timeout: float | None
        on_stdout: Heard
        on_stderr: Heard

    class RunOptions(StreamOptions, total=False):
        """The options of `run` and `exec`; see `Session.run`."""

        on_stdout: Heard
        on_stderr: Heard
        check: bool

    class WaitedRunOptions(RunOptions, total=False):
        """The options of `run` and `exec` of a thread that waits."""

        cancel: Event | None


#: The default of every `timeout`: what the policy says. None is no end.
FROM_POLICY: Any = type("_FromPolicy", (), {"__repr__": lambda _: "(the policy's)"})()


#: The options of commands, as `help()` shows them: annotation and default.
_SHOWN: dict[str, tuple[str, Any]] = {
    "timeout": ("float | None", FROM_POLICY),
    "cwd": ("str | PathLike[str] | None", None),
    "env": ("Mapping[str, str | None] | None", None),
    "stdin": ("bytes | str | IO[bytes] | None", None),
    "merge": ("bool", False),
    "output_limit": ("int | str | None", FROM_POLICY),
    "spill": ("str | PathLike[str] | None", None),
    "check": ("bool", False),
    "on_stdout": ("Callable[[str], object] | None", None),
    "on_stderr": ("Callable[[str], object] | None", None),
    "cancel": ("threading.Event | None", None),
}
_STREAM = ("timeout", "cwd", "env", "stdin", "merge", "output_limit", "spill")
#: Options by the name of the TypedDict that a method unpacks.
_OF = {
    "StreamOptions": _STREAM,
    "StartOptions": ("timeout", "merge", "on_stdout", "on_stderr"),
    "RunOptions": (*_STREAM, "check", "on_stdout", "on_stderr"),
    "WaitedRunOptions": (*_STREAM, "check", "on_stdout", "on_stderr", "cancel"),
}


class _ShownSignature:
    """The signature of a method, with the options that it takes as `**options`. Computed when it is read."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    @property
    def __signature__(self) -> Any:
        import inspect

        method = self._method
        plain = inspect.signature(method, follow_wrapped=False)
        *own, rest = plain.parameters.values()
        names = _OF[rest.annotation.removeprefix("Unpack[").removesuffix("]")]
        only = inspect.Parameter.KEYWORD_ONLY
        shown = dict(_SHOWN)
        if "StartOptions" in rest.annotation:
            shown["timeout"] = ("float | None", None)  # a process in the background has none by default
        options = [
            inspect.Parameter(name, only, default=shown[name][1], annotation=shown[name][0]) for name in names
        ]
        return plain.replace(parameters=[*own, *options])


def with_options_shown(method: _Method) -> _Method:
    """Have `help()` show the options of a method that takes them as `**options: Unpack[...]`."""
    method.__wrapped__ = _ShownSignature(method)  # type: ignore[attr-defined]  # inspect.signature() looks there
    return method


def refuse_unknown(given: Iterable[str]) -> None:
    """TypeError for an option that no command has, with the one that was meant or where it belongs."""
    for name in given:
        from .open.settings import unknown_command_option

        raise TypeError(unknown_command_option(name))


def shown(command: object) -> str | tuple[str, ...]:
    """A command as hooks are told of it, whether it can be run or not."""
    return command if isinstance(command, str) else arguments(command)  # type: ignore[arg-type]


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """A program and its arguments."""
    if isinstance(argv, str | bytes):
        raise InvalidCall(
            "a program and its arguments are a list, not one text",
            why="splitting it would be guessing",
            fix=f'give a list; a line for a shell is sb.run({argv!r}), or ["bash", "-c", {argv!r}]',
        )
    try:
        words = tuple(argv)
    except TypeError:
        raise InvalidCall(
            f"the arguments are {argv!r}", why="that is not a list", fix='write sb.exec(["git", "status"])'
        ) from None
    if not words or words[0] == "":
        raise InvalidCall(
            "there is no program to run", fix='write sb.exec(["git", "status"])', why="the list is empty"
        )
    for word in words:
        if not isinstance(word, str):
            raise InvalidCall(
                f"the argument {word!r} is not text", why="a program gets texts", fix="write str(…) around it"
            )
        _plain(word, f"the argument {word!r}")
    return words


def seconds(timeout: object) -> float | None:
    """A time that a command gets; None is no end."""
    if timeout is None:
        return None
    fix = "give a number such as 60, or None for no end"
    return float(check.seconds("timeout", timeout, None, LONGEST_TIMEOUT, fix))


def patience(timeout: object) -> float | None:
    """Check a time to wait; 0 only polls."""
    return 0.0 if timeout == 0 and not isinstance(timeout, bool) else seconds(timeout)


def input_bytes(stdin: object) -> bytes:
    """Check the standard input of a command, as bytes."""
    if isinstance(stdin, str):
        return check.encoded("stdin", stdin)
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    if hasattr(stdin, "read"):  # its content, and never its descriptor: inside it could be opened anew
        data = stdin.read()
        if isinstance(data, bytes | str):
            return input_bytes(data)
    raise InvalidCall(
        f"stdin is {stdin!r}",
        why="it is neither bytes, text nor a file",
        fix="give bytes, text, or a file that is open for reading",
    )


def size(limit: object) -> int | None:
    """A number of bytes, as an int or as text such as "64K"; None is no limit."""
    if limit is None:
        return None
    try:
        number = parse_size(limit) if isinstance(limit, str) else limit
    except PolicyError as error:
        raise InvalidCall(f"output_limit is {limit!r}", why=error.why, fix=error.fix) from None
    return check.count("output_limit", number, fix="give a number of bytes, or None for no limit")


def command_variables(env: object, *, program: bool) -> dict[str, str | None]:
    """Variables for one command; None unsets one. Where there is no shell, a name may be anything."""
    from collections.abc import Mapping

    if not isinstance(env, Mapping):
        return {**variables(env)}
    unset: dict[str, str | None] = {name: None for name, value in env.items() if value is None}
    checked_names = variables(dict.fromkeys(unset, ""), program=program)
    given = variables({name: env[name] for name in env if name not in checked_names}, program=program)
    return {**given, **unset}


def with_variables(env: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The variables of `env` with these changes; those that are None are not in it."""
    merged: dict[str, str | None] = {**env, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def variables(env: object, *, program: bool = False) -> dict[str, str]:
    """Variables for one command. Their names are such as a shell can set, unless it is a `program`."""
    from ..policy.environment import checked

    try:
        pairs: Mapping[str, str] = checked(env)
    except PolicyError as error:
        raise InvalidCall(error.what, why=error.why, fix=error.fix) from None
    for name in () if program else pairs:
        if not (name.isascii() and name.isidentifier()):
            raise InvalidCall(
                f"env names a variable {name!r}",
                why="a shell cannot set one of that name",
                fix="use letters, digits and underscores",
            )
    return dict(pairs)


def directory(cwd: object) -> str:
    """A directory inside, absolute or from where the session is."""
    return _plain(check.path("cwd", cwd, "name a directory inside, or leave it out"), "cwd")


def _plain(text: str, what: str) -> str:
    if "\0" in text:
        raise InvalidCall(f"{what} has a NUL in it", why="no program can be given one", fix="take it out")
    check.encoded(what, text, "encode it as UTF-8, or pass bytes through os.fsdecode()")
    return text
