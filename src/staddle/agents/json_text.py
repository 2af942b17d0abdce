"""Edit a JSON text without changing anything else in it: comments, spaces, line ends, order.

Editors and coding agents allow comments and a trailing comma in their settings; so does this module.
"""

from __future__ import annotations

import json
import re

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_SPACE = re.compile(r"(?:[\s\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
#: A comment in the rest of a line.
_BEHIND = re.compile(r"[ \t]*(?://[^\n\r]*|/\*[^\n]*?\*/)?")
_WORD = re.compile(r"[-+.\w]+")
#: Nesting depth; a settings file has a few levels.
_DEEPEST = 100


class JsonItem(Value):
    """One value in the text, from `start` to `end`. If it is a member, `key` and `begin` are the member's."""

    start: int
    end: int
    value: Any
    begin: int
    key: str | None = None
    items: tuple[JsonItem, ...] = ()

    def member(self, key: str) -> JsonItem | None:
        """The last member of that name, which is the one that counts."""
        return next((item for item in reversed(self.items) if item.key == key), None)


def parse(text: str) -> JsonItem:
    """The value of a text. ValueError if it is not JSON."""
    item = _item(text, _after_space(text, 0), None, 0)
    if _after_space(text, item.end) != len(text):
        _fail(text, item.end, "more than one value")
    return item


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _fail(text: str, at: int, why: str) -> NoReturn:
    raise ValueError(f"{why} in line {text.count(chr(10), 0, at) + 1}")


def _item(text: str, at: int, key: str | None, depth: int, begin: int | None = None) -> JsonItem:
    begin = at if begin is None else begin
    opened = text[at : at + 1]
    if opened in ("{", "["):
        if depth > _DEEPEST:
            _fail(text, at, "too many objects in each other")
        return _collection(text, at, key, depth, begin)
    found = (_STRING if opened == '"' else _WORD).match(text, at)
    if found is None:
        _fail(text, at, "no value")
    return JsonItem(at, found.end(), json.loads(found[0]), begin, key)


def _collection(text: str, at: int, key: str | None, depth: int, begin: int) -> JsonItem:
    is_object, items = text[at] == "{", list[JsonItem]()
    close, place = "}" if is_object else "]", _after_space(text, at + 1)
    while text[place : place + 1] != close:
        first, name = place, None
        if is_object:
            found = _STRING.match(text, place)
            if found is None:
                _fail(text, place, "no name of a member")
            name, colon = json.loads(found[0]), _after_space(text, found.end())
            if text[colon : colon + 1] != ":":
                _fail(text, colon, "no colon after a name")
            place = _after_space(text, colon + 1)
        items.append(_item(text, place, name, depth + 1, first))
        place = _after_space(text, items[-1].end)
        if text[place : place + 1] == ",":
            place = _after_space(text, place + 1)
        elif text[place : place + 1] != close:
            _fail(text, place, "no comma")
    value: Any = {item.key: item.value for item in items} if is_object else [item.value for item in items]
    return JsonItem(at, place + 1, value, begin, key, tuple(items))


def _at(text: str, path: Sequence[str]) -> JsonItem | None:
    item: JsonItem | None = parse(text)
    for name in path:
        item = item.member(name) if item is not None else None
    return item


def put(text: str, path: Sequence[str], value: object) -> str:
    """The text with this value at `path`; missing objects on the way are created."""
    *above, name = path
    parent = _at(text, above)
    if parent is None or not isinstance(parent.value, dict):
        return put(text, above, {name: value})
    old = parent.member(name)
    if old is not None:
        return text[: old.start] + _dumped(text, value, len(path)) + text[old.end :]
    return _added(text, parent, f"{json.dumps(name)}: {_dumped(text, value, len(path))}", len(path))


def append(text: str, path: Sequence[str], value: object) -> str:
    """The text with one more item in the list at `path`."""
    found = _at(text, path)
    if found is None or not isinstance(found.value, list):
        return put(text, path, [value])
    return _added(text, found, _dumped(text, value, len(path) + 1), len(path) + 1)


def _added(text: str, parent: JsonItem, written: str, depth: int) -> str:
    """The text with one more item at the end of a list or object, formatted like the previous items."""
    end, line = _line_end(text), text[parent.start : parent.end]
    if "\n" not in line and parent.items:
        behind = parent.items[-1].end
        return f"{text[:behind]}, {written}{text[behind:]}"
    indent = "  " * depth
    if parent.items:
        last = parent.items[-1]
        line = text[text.rfind("\n", 0, last.begin) + 1 :]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        comma = _after_space(text, last.end)
        has_comma = text[comma] == ","
        place = comma + 1 if has_comma else last.end
        # Keep a comment after the last item in its place.
        found = _BEHIND.match(text, place)
        rest = found.end() if found else place
        comma_text = "" if has_comma else ","
        return f"{text[:place]}{comma_text}{text[place:rest]}{end}{indent}{written}{text[rest:]}"
    inner = text[parent.start + 1 : parent.end - 1].rstrip()
    closing = "  " * (depth - 1)
    return f"{text[: parent.start + 1]}{inner}{end}{indent}{written}{end}{closing}{text[parent.end - 1 :]}"


def drop(text: str, path: Sequence[str], item: object = None) -> str:
    """The text without the member at `path`; with `item`, without that item of the list there."""
    parent = _at(text, path if item is not None else path[:-1])
    if parent is None:
        return text
    for number, each in enumerate(parent.items):
        if (each.key == path[-1]) if item is None else (each.value == item):
            begin, end = each.begin, each.end
            comma = _after_space(text, end)
            if text[comma] == ",":
                end = comma + 1
            elif number:
                begin = _after_space(text, parent.items[number - 1].end)
            if number or text[comma] == ",":  # remove the space before it, too, unless it is the only item
                start = parent.items[number - 1].end if number else parent.start + 1
                while begin > start and text[begin - 1] in " \t\r\n":
                    begin -= 1
            return text[:begin] + text[end:]
    return text


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _dumped(text: str, value: object, depth: int) -> str:
    made = json.dumps(value, indent=2, ensure_ascii=False)
    return made.replace("\n", _line_end(text) + "  " * depth)
