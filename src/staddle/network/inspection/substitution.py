"""Secrets in messages: put values in for placeholders, and placeholders back for values. Pure.

A request may have a placeholder only where its secret belongs. An answer may have the value anywhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from urllib.parse import quote, unquote, unquote_plus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .messages import InspectedSecret

    Headers = list[tuple[bytes, bytes]]

#: Bytes of a body in which a placeholder is looked for.
SCANNED = 64 << 10
#: A piece of a compressed answer, and the most that it may become.
_PIECE, _MOST_EXPANDED = 16 << 10, 1 << 20


class Misplaced(ValueError):
    """A placeholder is where its secret does not belong. `name` is the secret's name."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"the placeholder of the secret {name} is {where}")
        self.name = name


def put_in(
    secrets: Iterable[InspectedSecret], place: tuple[str, int, bool], target: str, headers: Headers
) -> tuple[str, Headers, tuple[str, ...]]:
    """Return the path and headers with values, and the names of these secrets. Raises Misplaced.

    `place` is the host, its port, and whether the connection is encrypted.
    """
    host, port, encrypted = place
    used = []
    for secret in secrets:
        before = target, headers
        if secret.is_for(host, port, encrypted=encrypted):
            target = _in_query(secret, target)
            headers = [(name, _in_header(secret, name, value)) for name, value in headers]
        if (target, headers) != before:
            used.append(secret.name)
        _check(secret, host, port, target, headers)
    return target, headers, tuple(used)


def _in_query(secret: InspectedSecret, target: str) -> str:
    path, mark, query = target.partition("?")
    if not secret.query or secret.placeholder not in unquote_plus(query):
        return target
    parts = []
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if unquote_plus(key) == secret.query:
            decoded = unquote_plus(value)
            if secret.placeholder in decoded:
                value = quote(decoded.replace(secret.placeholder, secret.value), safe="")
        parts.append(key + equals + value)
    return path + mark + "&".join(parts)


def _in_header(secret: InspectedSecret, name: bytes, value: bytes) -> bytes:
    header, placeholder = name.decode("latin-1").lower(), secret.placeholder.encode()
    if secret.header and header == secret.header.lower() and placeholder in value:
        return value.replace(placeholder, secret.value.encode())
    if secret.basic and header == "authorization":
        credentials = basic_credentials(value)
        if credentials == f"{secret.basic}:{secret.placeholder}".encode():
            return b"Basic " + base64.b64encode(f"{secret.basic}:{secret.value}".encode())
    return value


def basic_credentials(value: bytes) -> bytes:
    """Return the decoded credentials of a header `Authorization: Basic …`, else nothing."""
    scheme, _, rest = value.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(rest.strip() + b"==")
    except binascii.Error:
        return b""


def _check(secret: InspectedSecret, host: str, port: int, target: str, headers: Headers) -> None:
    here = "of this host" if secret.covers(host, port) else f"of {host}, which is none of its hosts"
    if secret.placeholder in target or secret.placeholder in unquote(unquote_plus(target)):
        raise Misplaced(secret.name, f"in the path {here}")
    placeholder = secret.placeholder.encode()
    for name, value in headers:
        shown = name.decode("latin-1")[:64]
        if placeholder in value or placeholder in name or placeholder.lower() in name:
            raise Misplaced(secret.name, f"in the header {shown} {here}")
        if (
            placeholder in basic_credentials(value)
            or placeholder in unquote(value.decode("latin-1")).encode()
        ):
            raise Misplaced(secret.name, f"in the header {shown} {here}")


class Scan:
    """Looks for placeholders that no body may have, in the first bytes of one, across pieces."""

    def __init__(self, secrets: Iterable[InspectedSecret]) -> None:
        self._names = {secret.placeholder.encode(): secret.name for secret in secrets if not secret.in_body}
        self._longest = max(map(len, self._names), default=0)
        self._tail, self._left = b"", SCANNED if self._names else 0

    def feed(self, data: bytes) -> None:
        """Look into the next piece. Raises Misplaced."""
        if self._left <= 0:
            return
        seen = self._tail + data[: self._left]
        self._left -= len(data)
        for placeholder, name in self._names.items():
            if placeholder in seen:
                raise Misplaced(name, "in the body of the request")
        self._tail = seen[-self._longest :]


class Values:
    """Values to replace by placeholders, prepared once for many texts."""

    def __init__(self, known: dict[bytes, bytes]) -> None:
        self.known = known
        self.all = re.compile(b"|".join(map(re.escape, sorted(known, key=len, reverse=True))))
        self.begins = frozenset(each[:at] for each in known for at in range(1, len(each)))
        self.longest = max(map(len, known), default=1) - 1
        self.firsts = re.compile(b"[" + b"".join(map(re.escape, {each[:1] for each in known})) + b"]")
        #: Whether a text keeps its length.
        self.keeps_length = all(len(value) == len(held) for value, held in known.items())

    def wiped(self, data: bytes) -> bytes:
        """Return a text that comes in one piece."""
        return self.all.sub(lambda match: self.known[match.group()], data)


class Wiper:
    """Replaces values by placeholders in text that comes in pieces."""

    def __init__(self, values: Values) -> None:
        self._values, self._tail = values, b""

    def feed(self, data: bytes) -> bytes:
        """Return what cannot become part of a value any more."""
        values, text = self._values, self._tail + data
        done = 0
        out: list[bytes] = []
        # One search for each value is several times faster than one for all.
        if any(value in text for value in values.known):
            for match in values.all.finditer(text):
                out += [text[done : match.start()], values.known[match.group()]]
                done = match.end()
        # A suffix that begins a value stays here, from the first place where one may begin.
        at = max(done, len(text) - values.longest)
        while at < len(text) and text[at:] not in values.begins:
            found = values.firsts.search(text, at + 1)
            at = found.start() if found else len(text)
        out.append(text[done:at])
        self._tail = text[at:]
        return b"".join(out)

    def end(self) -> bytes:
        """Return the rest."""
        rest, self._tail = self._tail, b""
        return rest


def values_of(secrets: Iterable[InspectedSecret]) -> Values | None:
    """Return the values of these secrets, in the spellings of URLs, JSON and base64; None without secrets."""
    known: dict[bytes, bytes] = {}
    for secret in secrets:
        held, value = secret.placeholder, secret.value
        known[value.encode()] = held.encode()
        for spell in (lambda text: quote(text, safe=""), quote, lambda text: json.dumps(text)[1:-1]):
            known.setdefault(spell(value).encode(), spell(held).encode())
        if secret.basic:
            pair = (base64.b64encode(f"{secret.basic}:{text}".encode()) for text in (value, held))
            known.setdefault(*pair)
        for code in (base64.b64encode, base64.urlsafe_b64encode):
            for shift in range(3):
                # The characters that depend on the value alone, wherever it begins in the encoded text.
                first, last = -(-shift * 8 // 6), (shift + len(value)) * 8 // 6
                core = code(bytes(shift) + value.encode())[first:last]
                known.setdefault(core, b"*" * len(core))
    return Values(known) if known else None


class Expansion:
    """Decompresses an answer so that it can be wiped. Raises ValueError for an unknown or bad coding."""

    def __init__(self, coding: bytes) -> None:
        if coding not in (b"gzip", b"x-gzip", b"deflate"):
            raise ValueError(
                f"the answer is encoded as {coding.decode('latin-1')[:40]}, which cannot be read"
            )
        self._deflate = coding == b"deflate"
        self._stream = None if self._deflate else zlib.decompressobj(31)

    def feed(self, data: bytes) -> bytes:
        """Return the text of the next piece."""
        out = []
        for at in range(0, len(data), _PIECE):
            out.append(self._piece(data[at : at + _PIECE]))
        return b"".join(out)

    def _piece(self, piece: bytes) -> bytes:
        if self._stream is None:  # servers send either kind of deflate
            self._stream = zlib.decompressobj(15 if piece[0] & 15 == 8 else -15)
        try:
            text = self._stream.decompress(piece, _MOST_EXPANDED)
        except zlib.error:
            raise ValueError("the answer is not compressed as its header says") from None
        if self._stream.unconsumed_tail:
            raise ValueError("the answer is compressed too much to be read")
        if self._stream.unused_data:
            raise ValueError("the answer has something after its compressed data")
        return text

    def end(self) -> bytes:
        """Return the rest."""
        if self._stream is None:
            return b""
        if not self._stream.eof:
            raise ValueError("the compressed answer is cut short")
        return b""
