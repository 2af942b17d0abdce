"""Values as bytes between our own processes. Pure.

A value is one letter and its content: `i` and eight bytes; `b`, a length and that many bytes; `l`, a count
and that many values. A record is one list, in the order of its fields, after a line that identifies it. Bytes
that do not fit exactly are refused.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias, TypeVar

    from .._value import Value

    Record = TypeVar("Record")

    #: The shape of a field: a type, a list of one shape, or a row of shapes.
    Shape: TypeAlias = Any


class Malformed(ValueError):
    """These bytes, or these fields, are invalid."""


def encode(magic: bytes, fields: tuple[object, ...]) -> bytes:
    """Return the bytes of a record that begins with `magic`."""
    out = [magic]
    _write(fields, out)
    return b"".join(out)


def decode(magic: bytes, data: bytes, count: int) -> tuple[Any, ...]:
    """Return the `count` fields of the record in `data`, or raise Malformed.

    The caller checks their shapes.
    """
    if not data.startswith(magic):
        raise Malformed(f"they do not start with {magic!r}")
    try:
        fields, end = _read(data, len(magic), depth=0)
    except (struct.error, IndexError) as error:
        raise Malformed("they are cut short") from error
    if end != len(data):
        raise Malformed("something follows them")
    if not isinstance(fields, tuple) or len(fields) != count:
        raise Malformed("they have too few or too many fields")
    return fields


def shapes(kind: type[Value], **rows: Shape) -> dict[str, Shape]:
    """Return the shape of each field of a record, from its annotations.

    An annotation is `int`, `bytes`, the name of one of `rows`, a tuple of these, or `tuple[..., ...]` around
    one of them.
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts.update(base.__dict__.get("__annotations__", {}))  # noqa: RUF063 - inspect is heavy
    known = {"int": int, "bytes": bytes, **rows}
    return {name: _shape(texts[name], known) for name in kind._fields}


def _shape(text: str, known: Mapping[str, Shape]) -> Shape:
    if text in known:
        return known[text]
    inner = text[len("tuple[") : -1]
    if inner.endswith(", ..."):
        return [_shape(inner[: -len(", ...")], known)]
    return tuple(known[word] for word in inner.split(", "))


def pack(magic: bytes, record: object, shapes: Mapping[str, Shape]) -> bytes:
    """Return the bytes of a record; Malformed if `unpack` would refuse it."""
    check(record, shapes)
    return encode(magic, tuple(getattr(record, name) for name in shapes))


def unpack(magic: bytes, data: bytes, kind: Callable[..., Record], shapes: Mapping[str, Shape]) -> Record:
    """Return the record in `data`, each field with its shape, or raise Malformed."""
    record = kind(*decode(magic, data, len(shapes)))
    check(record, shapes)
    return record


def check(record: object, shapes: Mapping[str, Shape]) -> None:
    """Raise Malformed unless every field of `record` has its shape."""
    for name, shape in shapes.items():
        if not fits(getattr(record, name), shape):
            raise Malformed(f"{name} is not what it should be")


def fits(value: object, shape: Shape) -> bool:
    """Whether a value has this shape."""
    if isinstance(shape, list):
        return isinstance(value, tuple) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(shape)
            and all(fits(item, inner) for item, inner in zip(value, shape, strict=True))
        )
    return type(value) is shape or (shape is int and type(value) is bool)


def _write(value: object, out: list[bytes]) -> None:
    if isinstance(value, bytes):
        out.append(struct.pack("<cI", b"b", len(value)))
        out.append(value)
    elif isinstance(value, tuple):
        out.append(struct.pack("<cI", b"l", len(value)))
        for item in value:
            _write(item, out)
    else:
        out.append(struct.pack("<cq", b"i", value))


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    if kind == b"i":
        return struct.unpack_from("<q", data, at + 1)[0], at + 9
    (count,) = struct.unpack_from("<I", data, at + 1)
    at += 5
    if kind == b"b":
        if at + count > len(data):
            raise IndexError
        return data[at : at + count], at + count
    # The deepest valid nesting: a record, a field, its rows.
    if kind != b"l" or depth > 2:
        raise Malformed(f"there is no value of kind {kind!r} at {at - 5}")
    items = []
    for _ in range(count):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    return tuple(items), at
