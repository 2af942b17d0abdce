"""Checks of a command's arguments, for Sandbox and AsyncSandbox."""

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
    #: Variables for one command; None unsets a variable.
    CommandVariables = Mapping[str, str | None] | None
    #: User of the sandbox, by name or uid; None is the session's.
    User = str | int | None
    Stdin = bytes | str | IO[bytes] | None

    class StreamOptions(TypedDict, total=False):
        """Options of `stream`; see `Session.run`."""

        timeout: float | None
        cwd: str | PathLike[str] | None
        env: CommandVariables
        stdin: Stdin
        spill: str | PathLike[str] | None
        merge: bool
        output_limit: int | str | None

    class StartOptions(TypedDict, total=False):
        """Options of a background process; see `Sandbox.start`."""

        merge: bool
        timeout: float | None
        on_stdout: Heard
        on_stderr: Heard

    class RunOptions(StreamOptions, total=False):
        """Options of `run` and `exec`; see `Session.run`."""

        on_stdout: Heard
        on_stderr: Heard
        check: bool

    class WaitedRunOptions(RunOptions, total=False):
        """Options of `run` and `exec` for a thread that waits."""

        cancel: Event | None


#: Default of every `timeout`: the policy's value. None means no limit.
FROM_POLICY: Any = type("_FromPolicy", (), {"__repr__": lambda _: "(the policy's)"})()


#: Options of commands, as `help()` shows them: annotation and default.
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
    """Signature of a method that expands its `**options`. Computed when it is read."""

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
            shown["timeout"] = ("float | None", None)  # background processes have no timeout by default
        options = [
            inspect.Parameter(name, only, default=shown[name][1], annotation=shown[name][0]) for name in names
        ]
        return plain.replace(parameters=[*own, *options])


def with_options_shown(method: _Method) -> _Method:
    """Make `help()` show the options of a method that takes them as `**options: Unpack[...]`."""
    method.__wrapped__ = _ShownSignature(method)  # type: ignore[attr-defined]  # inspect.signature() looks there
    return method


def refuse_unknown(given: Iterable[str]) -> None:
    """Raise TypeError for an unknown option, with a suggestion."""
    for name in given:
        from .open.settings import unknown_command_option

        raise TypeError(unknown_command_option(name))


def shown(command: object) -> str | tuple[str, ...]:
    """Return the command in the form that hooks receive."""
    return command if isinstance(command, str) else arguments(command)  # type: ignore[arg-type]


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """Check a program and its arguments."""
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
    """Check a command's timeout; None means no limit."""
    if timeout is None:
        return None
    fix = "give a number such as 60, or None for no end"
    return float(check.seconds("timeout", timeout, None, LONGEST_TIMEOUT, fix))


def patience(timeout: object) -> float | None:
    """Check a time to wait; 0 only polls."""
    return 0.0 if timeout == 0 and not isinstance(timeout, bool) else seconds(timeout)


def input_bytes(stdin: object) -> bytes:
    """Convert the standard input of a command to bytes."""
    if isinstance(stdin, str):
        return check.encoded("stdin", stdin)
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    if hasattr(stdin, "read"):  # pass its content, never its descriptor, which programs inside could reopen
        data = stdin.read()
        if isinstance(data, bytes | str):
            return input_bytes(data)
    raise InvalidCall(
        f"stdin is {stdin!r}",
        why="it is neither bytes, text nor a file",
        fix="give bytes, text, or a file that is open for reading",
    )


def size(limit: object) -> int | None:
    """Check a number of bytes, an int or text such as "64K"; None means no limit."""
    if limit is None:
        return None
    try:
        number = parse_size(limit) if isinstance(limit, str) else limit
    except PolicyError as error:
        raise InvalidCall(f"output_limit is {limit!r}", why=error.why, fix=error.fix) from None
    return check.count("output_limit", number, fix="give a number of bytes, or None for no limit")


def command_variables(env: object, *, program: bool) -> dict[str, str | None]:
    """Check the variables of one command; None unsets one. A `program` (no shell) allows any name."""
    from collections.abc import Mapping

    if not isinstance(env, Mapping):
        return {**variables(env)}
    unset: dict[str, str | None] = {name: None for name, value in env.items() if value is None}
    checked_names = variables(dict.fromkeys(unset, ""), program=program)
    given = variables({name: env[name] for name in env if name not in checked_names}, program=program)
    return {**given, **unset}


def with_variables(env: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Apply `changes` to `env`; a value of None removes the variable."""
    merged: dict[str, str | None] = {**env, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def variables(env: object, *, program: bool = False) -> dict[str, str]:
    """Check the variables of one command. Names must suit a shell unless it is a `program`."""
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
    """Check a directory inside, absolute or relative to the session's."""
    return _plain(check.path("cwd", cwd, "name a directory inside, or leave it out"), "cwd")


def _plain(text: str, what: str) -> str:
    if "\0" in text:
        raise InvalidCall(f"{what} has a NUL in it", why="no program can be given one", fix="take it out")
    check.encoded(what, text, "encode it as UTF-8, or pass bytes through os.fsdecode()")
    return text
