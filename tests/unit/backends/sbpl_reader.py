"""A reader of SBPL, written apart from the writer, and an evaluator: the last rule that matches decides.

Reads the whole language that TinyScheme's reader gives to profiles, as far as profiles use
it: lists, symbols, strings with escapes, comments. What it does not know it refuses.
"""

from __future__ import annotations

import re

_SYMBOL = re.compile(rb"[A-Za-z0-9*._-]+")
#: Of a string, what stands for itself.
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')


class Symbol(str):
    """A symbol, so that it is never equal to a string literal by accident."""

    __slots__ = ()


def read(text: str) -> list[list[object]]:
    """All top-level expressions. Strings come back as bytes."""
    reader = _Reader(text.encode("utf-8", "surrogateescape"))
    found = []
    while reader.skip():
        item = reader.item()
        assert isinstance(item, list), f"a bare {item!r} at the top level"
        found.append(item)
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def skip(self) -> bool:
        while self.at < len(self.data):
            char = self.data[self.at : self.at + 1]
            if char in b" \t\n\r":
                self.at += 1
            elif char == b";":
                end = self.data.find(b"\n", self.at)
                self.at = len(self.data) if end < 0 else end
            else:
                return True
        return False

    def item(self) -> object:
        assert self.skip(), "the text ends inside an expression"
        char = self.data[self.at : self.at + 1]
        if char == b"(":
            self.at += 1
            items = []
            while True:
                assert self.skip(), "a list is not closed"
                if self.data[self.at : self.at + 1] == b")":
                    self.at += 1
                    return items
                items.append(self.item())
        if char == b'"':
            return self.string()
        match = _SYMBOL.match(self.data, self.at)
        assert match, f"{char!r} cannot start anything"
        self.at = match.end()
        return Symbol(match.group().decode())

    def string(self) -> bytes:
        out = bytearray()
        self.at += 1
        while True:
            if plain := _PLAIN.match(self.data, self.at):
                out += plain.group()
                self.at = plain.end()
            assert self.at < len(self.data), "a string is not closed"
            byte = self.data[self.at : self.at + 1]
            self.at += 1
            if byte == b'"':
                return bytes(out)
            assert byte == b"\\", "a raw control character in a string"
            escape = self.data[self.at : self.at + 1]
            self.at += 1
            if escape == b"x":
                out += bytes.fromhex(self.data[self.at : self.at + 2].decode())
                self.at += 2
            else:
                assert escape in (b'"', b"\\"), f"unknown escape {escape!r}"
                out += escape


_OPERATIONS = {
    "file-read*": ("file-read-data", "file-read-metadata"),
    "file-write*": ("file-write-data", "file-write-create", "file-write-unlink"),
    "process-exec*": ("process-exec",),
    "process-info*": ("process-info-listpids",),
}


class Profile:
    """A profile that can be asked."""

    def __init__(self, text: str) -> None:
        self.rules = read(text)
        assert self.rules[0] == ["version", "1"]
        assert self.rules[1] == ["deny", "default"]
        self._last_first = [_parsed(rule) for rule in reversed(self.rules[2:])]

    def allows(self, operation: str, path: str | bytes) -> bool:
        """What the last rule that matches says; without one, the default: no."""
        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
        for allow, covered, filters in self._last_first:
            if operation in covered and (not filters or any(_matches(one, raw) for one in filters)):
                return allow
        return False

    def access(self, path: str) -> str:
        """In the words of Plan.access."""
        if not self.allows("file-read-data", path):
            assert not self.allows("file-write-data", path), f"{path!r} can be written but not read"
            return "none"
        return "write" if self.allows("file-write-data", path) else "read"


def _parsed(rule: list[object]) -> tuple[bool, set[str], list[list[object]]]:
    verb, *rest = rule
    names = [item for item in rest if isinstance(item, Symbol)]
    filters = [item for item in rest if isinstance(item, list)]
    assert len(names) + len(filters) == len(rest), f"a loose string in {rest!r}"
    assert verb in ("allow", "deny"), f"unknown rule {verb!r}"
    return verb == "allow", {one for name in names for one in _OPERATIONS.get(name, (name,))}, filters


def _matches(test: list[object], path: bytes) -> bool:
    kind, *values = test
    if kind == "literal":
        return path in values
    if kind == "subpath":
        return any(path == value or value == b"/" or path.startswith(bytes(value) + b"/") for value in values)
    if kind == "require-all":
        return all(_matches(one, path) for one in values)  # type: ignore[arg-type]
    if kind == "regex":
        return any(re.search(bytes(value), path) for value in values)  # type: ignore[arg-type]
    # About something else than a path: a service, a target, an address.
    assert kind in {
        "target", "sysctl-name", "sysctl-name-prefix", "global-name", "extension",
        "remote", "local", "socket-domain",
    }, f"unknown filter {kind!r}"  # fmt: skip
    return False
