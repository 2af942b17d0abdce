"""Finds the row of a request, and checks its parameters by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .http import HttpRequest, Refused
from .operations import types_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .operations import Field, Route


class RouteTable:
    """Finds the row of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._rows: dict[tuple[str, int], list[tuple[tuple[str, ...], Route]]] = {}
        for row in routes:
            segments = row.segments
            self._rows.setdefault((row.method, len(segments)), []).append((segments, row))

    def find(self, method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]]:
        """Return the row, and the named parts of the path. A literal part wins over a named one."""
        for patterns, row in self._rows.get((method, len(segments)), ()):
            found: dict[str, str] = {}
            for pattern, given in zip(patterns, segments, strict=True):
                if pattern[:1] == "{":
                    found[pattern[1:-1]] = given
                elif pattern != given:
                    break
            else:
                return row, found
        for (other, size), rows in self._rows.items():
            if size == len(segments) and any(_matches(patterns, segments) for patterns, _ in rows):
                raise Refused(405, f"{method} is not possible here", fix=f"use {other}")
        raise Refused(404, "there is no such path", fix="see /v1/openapi.json")


def _matches(patterns: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return all(
        pattern[:1] == "{" or pattern == given for pattern, given in zip(patterns, segments, strict=True)
    )


def checked_query(row: Route, request: HttpRequest) -> dict[str, Any]:
    """Return the parameters of a query, as their types. An unknown one is refused."""
    found: dict[str, Any] = {}
    for name, text in request.query.items():
        field = row.query.get(name)
        if field is None:
            known = ", ".join(row.query) or "none"
            raise Refused(400, f"there is no parameter {name!r}", fix=f"known are: {known}")
        found[name] = _read(name, field.type, text)
    for name, field in row.query.items():
        if field.required and name not in found:
            raise _missing(f"parameter {name}", field)
    return found


def _read(name: str, kind: str, text: str) -> Any:
    try:
        if kind == "integer" and text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        if kind == "number":
            value = float(text)
            if 0 <= value < 1e9:
                return value
        if kind == "boolean" and text in ("0", "1", "true", "false"):
            return text in ("1", "true")
        if kind == "string":
            return text
        if kind == "array":
            return text.split(",")
    except ValueError:
        pass
    raise Refused(400, f"the parameter {name} is {text[:80]!r}", fix=f"give a {kind} that is not negative")


def checked_body(row: Route, request: HttpRequest) -> dict[str, Any]:
    """Return the fields of a JSON body. An unknown one, or one of another type, is refused."""
    fields = row.body
    if not isinstance(fields, dict):
        return {}
    data = request.json()
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise Refused(400, "the body is not an object", fix="send {…}")
    for name, value in data.items():
        field = fields.get(name)
        if field is None:
            raise Refused(400, f"there is no field {name!r}", fix=f"known are: {', '.join(fields) or 'none'}")
        if type(value) not in types_of(field.type):
            raise Refused(400, f"the field {name} is {str(value)[:80]!r}", fix=f"give {field.type}")
    for name in row.needed:
        if name not in data:
            raise _missing(f"field {name}", fields[name])
    return data


def _missing(what: str, field: Field) -> Refused:
    return Refused(400, f"the {what} is missing", fix=f"send it: {field.text}")
