"""Colours and other attributes of a cell, and the sequences that select them (SGR, ECMA-48 8.3.117)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    #: (foreground, background, flags). A colour is None for the default, 0 to 255 for the palette, or
    #: `TRUE_COLOUR` with 24 bits of red, green and blue.
    Attributes = tuple[int | None, int | None, int]

BOLD, DIM, ITALIC, UNDERLINE, BLINK, REVERSE, CONCEAL, STRIKE = (1 << bit for bit in range(8))
TRUE_COLOUR = 1 << 24
PLAIN: Attributes = (None, None, 0)

_ON = {1: BOLD, 2: DIM, 3: ITALIC, 4: UNDERLINE, 5: BLINK, 6: BLINK, 7: REVERSE, 8: CONCEAL, 9: STRIKE}
_OFF = {
    21: 0,  # double underline, or bold off: terminals differ
    22: BOLD | DIM,
    23: ITALIC,
    24: UNDERLINE,
    25: BLINK,
    27: REVERSE,
    28: CONCEAL,
    29: STRIKE,
}


def selected(before: Attributes, text: str) -> Attributes:
    """The attributes after `ESC [ text m`."""
    if text in ("", "0"):
        return PLAIN
    numbers = [int(part) if part.isdecimal() and len(part) < 9 else 0 for part in _flat(text).split(";")]
    foreground, background, flags = before
    at = 0
    while at < len(numbers):
        number = numbers[at]
        at += 1
        if number == 0:
            foreground, background, flags = PLAIN
        elif number in _ON:
            flags |= _ON[number]
        elif number in _OFF:
            flags &= ~_OFF[number]
        elif number in (38, 48, 58):
            colour, at = _extended(numbers, at)
            if number == 38:
                foreground = colour
            elif number == 48:
                background = colour
        elif 30 <= number <= 37:
            foreground = number - 30
        elif number == 39:
            foreground = None
        elif 40 <= number <= 47:
            background = number - 40
        elif number == 49:
            background = None
        elif 90 <= number <= 97:
            foreground = number - 82
        elif 100 <= number <= 107:
            background = number - 92
    return foreground, background, flags


def _flat(text: str) -> str:
    """`4:3` and `38:2::1:2:3` in the older way of writing them."""
    if ":" not in text:
        return text
    parts = []
    for part in text.split(";"):
        words = part.split(":")
        if words[0] in ("38", "48", "58"):
            if len(words) > 5 and words[1] == "2":
                del words[2]  # the colour space
            parts.append(";".join(words))
        else:
            parts.append("24" if words[:2] == ["4", "0"] else words[0])
    return ";".join(parts)


def _extended(numbers: Sequence[int], at: int) -> tuple[int | None, int]:
    """The colour after 38 or 48, and where the next number is."""
    kind = numbers[at] if at < len(numbers) else 0
    if kind == 5 and at + 1 < len(numbers):
        return min(numbers[at + 1], 255), at + 2
    if kind == 2 and at + 3 < len(numbers):
        red, green, blue = (min(number, 255) for number in numbers[at + 1 : at + 4])
        return TRUE_COLOUR | red << 16 | green << 8 | blue, at + 4
    return None, len(numbers)
