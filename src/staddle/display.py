"""Makes text from inside harmless before a person sees it.

File names, program output, host names and error texts can contain escape sequences that retitle a terminal,
overwrite a line or paste into it, and invisible characters that make one word look like another. Displayed
text passes through here; stored text stays unchanged.
"""

from __future__ import annotations

#: Invisible or blank although Python calls them printable: Unicode's "default ignorable" code points beyond
#: the format characters, and the blank Braille cell.
_INVISIBLE = {
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0),
    *range(0xFE00, 0xFE10),  # variation selectors
    *range(0xE0100, 0xE01F0),
}
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def counted(count: int, what: str) -> str:
    """Return `1 change`, `2 changes`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def shown(text: str | bytes) -> str:
    """Return `text` on one line, with everything a terminal would act on or not draw as an escape.

    It escapes control characters of both sets, escape sequences, line ends of every kind, direction and
    joining marks, other invisible characters, and bytes that are not UTF-8. Backslashes stay, so text that is
    shown twice looks the same. This is for reading; the original cannot be recovered.
    """
    text = _decoded(text)
    if text.isprintable() and text.isascii():
        return text
    return "".join(_harmless(char) for char in text)


def shown_block(text: str | bytes) -> str:
    """As `shown`, for several lines: line ends and tabs stay, nothing else that moves a cursor."""
    lines = _decoded(text).replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(shown(cell) for cell in line.split("\t")) for line in lines)


def whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """Split off an incomplete UTF-8 character at the end, which the next piece of a stream continues."""
    for count, byte in enumerate(data[:-4:-1], 1):
        if byte >= 0xC0:  # it begins a character of two to four bytes
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (data[:-count], data[-count:]) if size > count else (data, b"")
        if byte < 0x80:
            break
    return data, b""


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else bytes(text).decode("utf-8", "surrogateescape")


def _harmless(char: str) -> str:
    # isprintable() is false for every control, format, private, unassigned and surrogate character, and for
    # every separator except the space.
    if char.isprintable() and ord(char) not in _INVISIBLE:
        return char
    if char in _NAMED:
        return _NAMED[char]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode encodes it
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
