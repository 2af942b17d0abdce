"""Words as bash writes and reads them. Pure.

Bash prints its state as commands that recreate it, quoted in one of three ways. This parses exactly that
output, and no more of the language.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ESCAPES = {
    ord("a"): 7,
    ord("b"): 8,
    ord("e"): 27,
    ord("E"): 27,
    ord("f"): 12,
    ord("n"): 10,
    ord("r"): 13,
    ord("t"): 9,
    ord("v"): 11,
    ord("\\"): 92,
    ord("'"): 39,
    ord('"'): 34,
    ord("?"): 63,
}
_OCTAL = b"01234567"
_HEX = b"0123456789abcdefABCDEF"
_IN_DOUBLE_QUOTES = b'$`"\\\n'


def quoted(word: bytes) -> bytes:
    """Quote one word for bash."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


class Unreadable(ValueError):
    """Text that bash would not have quoted so."""


class WordReader:
    """Reads words from bash's output."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def peek(self) -> int:
        """Return the next byte, or -1 at the end."""
        return self.data[self.at] if self.at < len(self.data) else -1

    def skip(self, what: bytes) -> bool:
        """Skip `what` if it is next. Returns whether it was."""
        if self.data.startswith(what, self.at):
            self.at += len(what)
            return True
        return False

    def word(self, stop: bytes = b" \n") -> bytes:
        """Return the next word without its quotes, up to an unquoted byte of `stop`."""
        out = bytearray()
        data = self.data
        while self.at < len(data) and data[self.at] not in stop:
            byte = data[self.at]
            self.at += 1
            if byte == 0x27:  # '
                end = self._find(b"'")
                out += data[self.at : end]
                self.at = end + 1
            elif byte == 0x22:  # "
                self._double(out)
            elif byte == 0x24 and self.peek() == 0x27:  # $'
                self.at += 1
                self._ansi(out)
            elif byte == 0x5C:  # backslash
                out.append(self._next())
            else:
                out.append(byte)
        return bytes(out)

    def _find(self, what: bytes) -> int:
        end = self.data.find(what, self.at)
        if end < 0:
            raise Unreadable("a quote is not closed")
        return end

    def _next(self) -> int:
        if self.at >= len(self.data):
            raise Unreadable("it is cut short")
        self.at += 1
        return self.data[self.at - 1]

    def _plain(self, out: bytearray, quote: bytes) -> int:
        """Copy literal bytes in one step. Returns the quote or backslash after them."""
        end = self._find(quote)
        escape = self.data.find(b"\\", self.at, end)
        if escape >= 0:
            end = escape
        out += self.data[self.at : end]
        self.at = end
        return self._next()

    def _double(self, out: bytearray) -> None:
        while (byte := self._plain(out, b'"')) != 0x22:
            if self.peek() in _IN_DOUBLE_QUOTES:
                byte = self._next()
            out.append(byte)

    def _ansi(self, out: bytearray) -> None:
        while self._plain(out, b"'") != 0x27:
            byte = self._next()
            if byte in _ESCAPES:
                out.append(_ESCAPES[byte])
            elif byte in _OCTAL:
                self.at -= 1
                out.append(int(self._digits(_OCTAL, 3), 8) & 0xFF)
            elif byte == 0x78:  # x
                out.append(int(self._digits(_HEX, 2), 16))
            elif byte in (0x75, 0x55):  # u, U
                out += chr(int(self._digits(_HEX, 4 if byte == 0x75 else 8), 16)).encode()
            else:
                out += bytes((0x5C, byte))

    def _digits(self, allowed: bytes, most: int) -> bytes:
        start = self.at
        while self.at < len(self.data) and self.at - start < most and self.data[self.at] in allowed:
            self.at += 1
        if start == self.at:
            raise Unreadable("an escape without a number")
        return self.data[start : self.at]


def statements(data: bytes) -> Iterator[bytes]:
    """Yield the statements in bash's output unchanged; a newline in quotes does not end one."""
    start, size = 0, len(data)
    while start < size:
        end = data.find(b"\n", start)
        if end < 0:
            end = size
        line = data[start:end]
        # Usually quotes close on their line, and nothing else can hide a quote.
        if b"\\" in line or b"'" in line or line.count(b'"') % 2:
            reader = WordReader(data, start)
            reader.word(b"\n")
            end = reader.at
            line = data[start:end]
        yield line
        start = end + 1
