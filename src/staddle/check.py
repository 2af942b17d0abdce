"""Checks of arguments. Each returns the value, or raises an error that tells what, why and how to fix it.

`name` is the argument as the caller wrote it, and `error` the class to raise for invalid values.
"""

from __future__ import annotations

import os

from .errors import InvalidCall, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from .errors import StaddleError

    _Kind = TypeVar("_Kind")
    _Error = type[StaddleError]


def flag(name: str, value: object, error: _Error = InvalidCall) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise error(f"{name} is {value!r}", why="it is neither True nor False", fix="use True or False")
    return value


def count(
    name: str,
    value: object,
    least: int = 1,
    most: int | None = None,
    *,
    fix: str = "choose one in that range",
    error: _Error = InvalidCall,
) -> int:
    """Check for a whole number from `least` to `most`."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        numbers = f"from {least} on" if most is None else f"from {least} to {most}"
        raise error(f"{name} is {value!r}", why=f"it is not a whole number {numbers}", fix=fix)
    return value  # type: ignore[return-value]


def seconds(  # noqa: PLR0917 - the bounds belong together
    name: str,
    value: object,
    least: float | None = None,
    most: float | None = None,
    fix: str = "give a number such as 60",
    error: _Error = InvalidCall,
) -> float:
    """Check for seconds from `least` to `most` (default: above 0). NaN is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"{name} is {value!r}", why="it is not a number of seconds", fix=fix)
    if not (value > 0 if least is None else value >= least):
        bound = "above 0" if least is None else f"of at least {least:g}"
        raise error(f"{name} is {value!r}", why=f"it is not a number of seconds {bound}", fix=fix)
    if most is not None and value > most:
        raise error(f"{name} is {value!r}", why=f"it is more than {most:.0f} seconds", fix=fix)
    return value


def one_of(name: str, value: object, choices: Iterable[str], error: _Error = InvalidCall) -> str:
    """Check for one of `choices`."""
    known = tuple(choices)
    if value not in known:
        *others, last = map(repr, known)
        fix = f"use {', '.join(others)} or {last}"
        raise error(f"{name} is {value!r}", why="there is no such choice", fix=fix)
    return value


def instance(name: str, value: object, kind: type[_Kind], fix: str, error: _Error = InvalidCall) -> _Kind:
    """Check for an object of class `kind`."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise error(f"{name} is {value!r}", why=f"it is not {article} {kind.__name__}", fix=fix)
    return value


def path(name: str, value: object, fix: str, error: _Error = InvalidCall) -> str:
    """Check for a path, and return it as text that is not empty."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise error(f"{name} is {value!r}", why="it is not a path", fix=fix)
    return os.fsdecode(value)


def encoded(name: str, text: str, fix: str = "give bytes") -> bytes:
    """Encode `text` in UTF-8. Bytes that `os.fsdecode` could not decode are restored."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        why = "it has a lone surrogate in it"
        raise InvalidCall(f"{name} cannot be encoded as UTF-8", why=why, fix=fix) from None


def function(name: str, value: object, fix: str, error: _Error = InvalidCall) -> Callable[..., Any]:
    """Check for a callable object."""
    if not callable(value):
        raise error(f"{name} is {value!r}", why="it cannot be called", fix=fix)
    return value


def several(items: object, field: str) -> Iterable[object]:
    """Return `items` if it is a collection, and not a string or path that could be mistaken for one."""
    if isinstance(items, str | bytes | os.PathLike):
        raise PolicyError(
            f"{field} is {items!r}, not a list",
            why="one string would be read letter by letter",
            fix=f"write {field}=[{items!r}]",
        )
    if not hasattr(items, "__iter__") or isinstance(items, dict):
        raise PolicyError(
            f"{field} is {items!r}, not a list", fix=f"write {field}=[...]", why="it is one thing, or a dict"
        )
    iterable: Iterable[object] = items
    return iterable
