"""Frozen values, declared like dataclasses but without their import.

`import dataclasses` pulls in `inspect`, `ast` and `re`: 14 ms on a machine where the bare interpreter starts
in 10. Every `staddle run` would pay that before its command starts, so the few needed features are here. Type
checkers see an ordinary frozen dataclass (PEP 681).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Value:
    """A value: fields from the annotations, compared and hashed by content, immutable.

    Subclasses may define `__post_init__` to validate. It may normalise a field with `self._set(name, value)`,
    which nothing else may call.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}
    _can_be_wrong: ClassVar[bool] = False
    #: Whether its repr omits fields that have their default.
    _is_shown_short: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("__annotations__", {})  # noqa: RUF063 - this module avoids inspect
        names = [name for name in own if not name.startswith("_")]
        cls._fields = (*cls._fields, *(name for name in names if name not in cls._fields))
        cls._can_be_wrong = cls.__post_init__ is not Value.__post_init__
        cls._defaults = {**cls._defaults, **{n: cls.__dict__[n] for n in names if n in cls.__dict__}}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = self._fields
        if len(args) == len(fields) and not kwargs:  # a large plan has thousands of these
            self.__dict__.update(zip(fields, args))  # noqa: B905 - equal lengths
            if self._can_be_wrong:
                self.__post_init__()
            return
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, not {len(args)}")
        given = dict(zip(fields, args, strict=False))
        for name in kwargs:
            if name in given or name not in fields:
                problem = "given twice" if name in given else "unknown"
                raise TypeError(f"{type(self).__name__}: {problem} field {name!r}")
        values = {**self._defaults, **given, **kwargs}
        missing = [name for name in fields if name not in values]
        if missing:
            raise TypeError(f"{type(self).__name__} needs {', '.join(missing)}")
        self.__dict__.update(values)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validate the fields; subclasses override it."""

    def _set(self, name: str, value: object) -> None:
        self.__dict__[name] = value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __iter_fields(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.__dict__[name]) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        for name in self._fields:  # no generator: a comparison is on every command's path
            if mine[name] is not theirs[name] and mine[name] != theirs[name]:
                return False
        return True

    def __hash__(self) -> int:
        # Cached: a plan has thousands of fields, and is looked up for every sandbox.
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = hash((type(self), *(value for _, value in self.__iter_fields())))
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the cached hash: another process hashes strings differently."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __repr__(self) -> str:
        given = self._defaults if self._is_shown_short else {}
        fields = [pair for pair in self.__iter_fields() if pair[0] not in given or given[pair[0]] != pair[1]]
        shown = ", ".join(f"{name}={value!r}" for name, value in fields)
        return f"{type(self).__name__}({shown})"

    def replace(self, **changes: Any) -> Self:
        """Return the same value with some fields changed, validated again."""
        kind, known = type(self), self.__dict__
        if kind.__init__ is not Value.__init__ or len(known) != len(kind._fields) or changes.keys() - known:
            return kind(**{**dict(self.__iter_fields()), **changes})
        made = kind.__new__(kind)  # it has only fields: on every command's path
        made.__dict__.update(known)
        made.__dict__.update(changes)
        made.__post_init__()
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON; bytes and unusual names are left to the caller."""
        return {name: _plain(value) for name, value in self.__iter_fields()}


def _plain(value: object) -> object:
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
