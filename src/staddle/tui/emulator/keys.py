"""Keys as the bytes that a terminal sends (xterm's, according to its terminfo entry)."""

from __future__ import annotations

_ARROWS = {"up": b"A", "down": b"B", "right": b"C", "left": b"D", "home": b"H", "end": b"F"}
_TILDE = {
    "insert": 2,
    "delete": 3,
    "pageup": 5,
    "pagedown": 6,
    "f5": 15,
    "f6": 17,
    "f7": 18,
    "f8": 19,
    "f9": 20,
    "f10": 21,
    "f11": 23,
    "f12": 24,
}
_SS3 = {"f1": b"P", "f2": b"Q", "f3": b"R", "f4": b"S"}
_NAMED = {
    "enter": b"\r",
    "tab": b"\t",
    "backspace": b"\x7f",
    "escape": b"\x1b",
    "space": b" ",
    "ctrl+space": b"\0",
    "ctrl+at": b"\0",
    "ctrl+@": b"\0",
    "ctrl+backspace": b"\x08",
    "ctrl+backslash": b"\x1c",
    "ctrl+right_square_bracket": b"\x1d",
    "ctrl+circumflex_accent": b"\x1e",
    "ctrl+underscore": b"\x1f",
    "shift+tab": b"\x1b[Z",
    "shift+enter": b"\r",
    "alt+enter": b"\x1b\r",
    "alt+backspace": b"\x1b\x7f",
}
_MODIFIERS = {"shift": 1, "alt": 2, "ctrl": 4}


def encoded(key: str, character: str | None, *, application: bool = False) -> bytes:
    """The bytes for a key, by name and character, if it has one; empty for keys that send nothing."""
    if key in _NAMED:
        return _NAMED[key]
    *modifiers, name = key.split("+") if not key.endswith("+") else [key]
    modifier = 1 + sum(_MODIFIERS.get(word, 0) for word in modifiers)
    if name in _ARROWS:
        if modifier > 1:
            return b"\x1b[1;%d%s" % (modifier, _ARROWS[name])
        return (b"\x1bO" if application else b"\x1b[") + _ARROWS[name]
    if name in _SS3:
        return b"\x1b[1;%d%s" % (modifier, _SS3[name]) if modifier > 1 else b"\x1bO" + _SS3[name]
    if name in _TILDE:
        return (b"\x1b[%d;%d~" % (_TILDE[name], modifier)) if modifier > 1 else b"\x1b[%d~" % _TILDE[name]
    before = b"\x1b" if "alt" in modifiers else b""
    if "ctrl" in modifiers and len(name) == 1 and name.isalpha():
        return before + bytes((ord(name.lower()) & 0x1F,))
    if character and character.isprintable():
        return before + character.encode("utf-8", "replace")
    if before and len(name) == 1:
        return before + name.encode("utf-8", "replace")
    return b""


def pasted(text: str, *, bracketed: bool) -> bytes:
    """A pasted text. Control characters are removed, so that none can end the brackets or act by itself."""
    kept = "".join(char for char in text.replace("\r\n", "\n") if char in "\n\r\t" or char.isprintable())
    data = kept.replace("\n", "\r").encode("utf-8", "replace")
    return b"\x1b[200~" + data + b"\x1b[201~" if bracketed else data


def mouse(button: int, x: int, y: int, *, pressed: bool, sgr: bool) -> bytes:
    """A mouse report at a cell, counted from 0; `button` in xterm's numbering, with modifiers."""
    if sgr:
        return b"\x1b[<%d;%d;%d%s" % (button, x + 1, y + 1, b"M" if pressed else b"m")
    if x > 222 or y > 222:
        return b""
    return b"\x1b[M" + bytes((32 + (button if pressed else 3), 33 + x, 33 + y))
