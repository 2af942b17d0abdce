"""The cells of one screen, and the control functions on them. Independent of bytes and colours.

The program chooses every count here. Each function clips a count to the screen before it loops, and reuses
blank lines, so a function does at most one pass over the screen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    #: (foreground, background, flags). A colour is None for the default, 0 to 255 for the palette, or
    #: `TRUE_COLOUR` with 24 bits of red, green and blue.
    Attributes = tuple[int | None, int | None, int]
    #: A line that has left the screen: consecutive texts, each with its attributes.
    Runs = tuple[tuple[str, Attributes], ...]

# Colours and other attributes of a cell, and the sequences that select them (SGR, ECMA-48 8.3.117).


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
    """Convert `4:3` and `38:2::1:2:3` to the older notation."""
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
    """The colour after 38 or 48, and the position of the next number."""
    kind = numbers[at] if at < len(numbers) else 0
    if kind == 5 and at + 1 < len(numbers):
        return min(numbers[at + 1], 255), at + 2
    if kind == 2 and at + 3 < len(numbers):
        red, green, blue = (min(number, 255) for number in numbers[at + 1 : at + 4])
        return TRUE_COLOUR | red << 16 | green << 8 | blue, at + 4
    return None, len(numbers)


class CellLine:
    """One line: a character (empty after a wide one) and attributes for each cell."""

    __slots__ = ("attributes", "blank", "chars", "drawn")

    def __init__(self, cols: int, attributes: Attributes = PLAIN) -> None:
        self.chars = [" "] * cols
        self.attributes = [attributes] * cols
        #: The attributes of every cell until the line is written to, then None.
        self.blank: Attributes | None = attributes
        #: Cached drawing of a viewer; None after every change.
        self.drawn: Any = None

    def runs(self) -> Runs:
        """The line as runs, without trailing blanks."""
        chars, attributes = self.chars, self.attributes
        end = len(chars)
        if self.blank is not None:
            return ((" " * end, self.blank),) if self.blank != PLAIN else ()
        if attributes.count(attributes[0]) == end:
            text = "".join(chars)
            text = text.rstrip(" ") if attributes[0] == PLAIN else text
            return ((text, attributes[0]),) if text else ()
        while end and chars[end - 1] == " " and attributes[end - 1] == PLAIN:
            end -= 1
        found: list[tuple[str, Attributes]] = []
        start = 0
        while start < end:
            same, at = attributes[start], start + 1
            while at < end and attributes[at] == same:
                at += 1
            found.append(("".join(chars[start:at]), same))
            start = at
        return tuple(found)


class CellGrid:
    """A screen of lines with a cursor. `scrolled_out` is called with the lines that leave at the top."""

    def __init__(self, rows: int, cols: int, scrolled_out: Callable[[list[CellLine]], object] | None) -> None:
        self.rows, self.cols = rows, cols
        self.lines = [CellLine(cols) for _ in range(rows)]
        self._scrolled_out = scrolled_out
        self.reset()

    def reset(self) -> None:
        """Clear the screen, move the cursor to the top and reset every mode."""
        self.x = self.y = 0
        self.attributes = PLAIN
        self.wraps = True
        self.inserts = False
        #: The last column was written: the next character goes to the next line.
        self.is_full = False
        self.top, self.bottom = 0, self.rows - 1
        self.is_relative = False  # origin mode: the cursor stays in the scroll region
        self.tabs = list(range(0, self.cols, 8))  # in order
        self.saved: tuple[int, int, Attributes, bool] = (0, 0, PLAIN, False)
        self.lines[:] = self._blanked(self.lines)

    # ------------------------------------------------------------ text

    def put(self, text: str) -> None:
        """Write characters that take one cell each."""
        at, size = 0, len(text)
        while at < size:
            if self.is_full:
                self._next_line()
            line = self.lines[self.y]
            part = text[at : at + self.cols - self.x]
            count = len(part)
            if self.inserts:
                self._make_room(line, count)
            else:
                self._split_wide(line, self.x, self.x + count)
            line.chars[self.x : self.x + count] = part
            line.attributes[self.x : self.x + count] = [self.attributes] * count
            line.drawn = line.blank = None
            at += count
            if self.x + count < self.cols:
                self.x += count
            elif self.wraps:
                self.x, self.is_full = self.cols - 1, True
            else:
                self.x = self.cols - 1
                if at < size:  # the remaining characters overwrite the last cell
                    line.chars[self.x] = text[-1]
                    return

    def put_wide(self, char: str) -> None:
        """Write a character that takes two cells."""
        if self.cols < 2:
            return
        if self.is_full or self.x == self.cols - 1:
            if not self.wraps:
                return
            self._next_line()
        line = self.lines[self.y]
        if self.inserts:
            self._make_room(line, 2)
        self._split_wide(line, self.x, self.x + 2)
        line.chars[self.x : self.x + 2] = (char, "")
        line.attributes[self.x : self.x + 2] = [self.attributes] * 2
        line.drawn = line.blank = None
        self.x += 2
        if self.x >= self.cols:
            self.x, self.is_full = self.cols - 1, self.wraps

    def combine(self, mark: str) -> None:
        """Add a combining mark to the character before the cursor; at most three."""
        at = self.x if self.is_full else self.x - 1
        line = self.lines[self.y]
        if at > 0 and line.chars[at] == "":
            at -= 1
        if at >= 0 and len(line.chars[at]) < 4:
            line.chars[at] += mark
            line.drawn = line.blank = None

    def _next_line(self) -> None:
        self.x, self.is_full = 0, False
        self.line_feed()

    def _make_room(self, line: CellLine, count: int) -> None:
        at = self.x
        line.chars[at:at] = [" "] * count
        line.attributes[at:at] = [self.attributes] * count
        del line.chars[self.cols :]
        del line.attributes[self.cols :]

    def _split_wide(self, line: CellLine, start: int, end: int) -> None:
        """Blank the remaining half of a split wide character, which cannot be shown."""
        chars = line.chars
        if start < len(chars) and chars[start] == "" and start:
            chars[start - 1] = " "
        if end < len(chars) and chars[end] == "":
            chars[end] = " "

    # ------------------------------------------------------------ cursor

    def move_to(self, row: int, col: int) -> None:
        """Move the cursor, clipped to the screen; counted from 0, in origin mode from the region."""
        low, high = (self.top, self.bottom) if self.is_relative else (0, self.rows - 1)
        self.y = max(low, min(high, row + (self.top if self.is_relative else 0)))
        self.x = max(0, min(self.cols - 1, col))
        self.is_full = False

    def move(self, rows: int, cols: int = 0) -> None:
        """Move the cursor; vertically it stays in its scroll region."""
        high = self.bottom if self.y <= self.bottom else self.rows - 1
        low = self.top if self.y >= self.top else 0
        self.y = max(low, min(high, self.y + rows))
        self.x = max(0, min(self.cols - 1, self.x + cols))
        self.is_full = False

    def line_feed(self) -> None:
        """Move down one line; scroll at the end of the region."""
        if self.y == self.bottom:
            self.scroll_up(1)
        elif self.y < self.rows - 1:
            self.y += 1

    def reverse_line_feed(self) -> None:
        """Move up one line; scroll at the top of the region."""
        if self.y == self.top:
            self.scroll_down(1)
        elif self.y:
            self.y -= 1
        self.is_full = False

    def tab(self, count: int = 1) -> None:
        """Move to the `count`-th next tab stop."""
        at = bisect_right(self.tabs, self.x) + count - 1
        self.x = min(self.tabs[at], self.cols - 1) if at < len(self.tabs) else self.cols - 1

    def back_tab(self, count: int) -> None:
        """Move to the `count`-th previous tab stop."""
        at = bisect_left(self.tabs, self.x) - count
        self.x = self.tabs[at] if at >= 0 else 0

    def set_tab(self, on: bool) -> None:
        """Set a tab stop at the cursor, or remove it."""
        at = bisect_left(self.tabs, self.x)
        if self.tabs[at : at + 1] == [self.x]:
            del self.tabs[at]
        if on:
            self.tabs.insert(at, self.x)

    def save(self) -> None:
        """Save the cursor and its attributes for `load`."""
        self.saved = (self.y, self.x, self.attributes, self.is_relative)

    def load(self) -> None:
        """Restore the state of `save`."""
        row, col, self.attributes, self.is_relative = self.saved
        self.y, self.x = min(row, self.rows - 1), min(col, self.cols - 1)
        self.is_full = False

    # ------------------------------------------------------------ scrolling and erasing

    def set_region(self, top: int, bottom: int) -> None:
        """Scroll only these lines from now on."""
        if 0 <= top < bottom < self.rows:
            self.top, self.bottom = top, bottom
            self.move_to(0, 0)

    def scroll_up(self, count: int) -> None:
        """Remove lines at the top of the region, and add blank ones at its end."""
        self._remove(self.top, count, keep=self.top == 0)

    def scroll_down(self, count: int) -> None:
        """Add blank lines at the top of the region."""
        self._add(self.top, count)

    def insert_lines(self, count: int) -> None:
        """Insert blank lines at the cursor; the lines below move down."""
        if self.top <= self.y <= self.bottom:
            self._add(self.y, count)
            self.x, self.is_full = 0, False

    def delete_lines(self, count: int) -> None:
        """Remove lines at the cursor; the lines below move up."""
        if self.top <= self.y <= self.bottom:
            self._remove(self.y, count, keep=False)
            self.x, self.is_full = 0, False

    def _blank(self) -> CellLine:
        return CellLine(self.cols, (None, self.attributes[1], 0))

    def _blanked(self, lines: Iterable[CellLine]) -> list[CellLine]:
        """The same number of blank lines; reuses lines that are blank already."""
        cols, blank = self.cols, (None, self.attributes[1], 0)
        return [line if line.blank == blank else CellLine(cols, blank) for line in lines]

    def _remove(self, at: int, count: int, *, keep: bool) -> None:
        end = self.bottom + 1
        gone = self.lines[at : min(at + count, end)]
        if keep and self._scrolled_out is not None:
            self._scrolled_out(gone)
        self.lines[at:end] = self.lines[at + len(gone) : end] + self._blanked(gone)

    def _add(self, at: int, count: int) -> None:
        end = self.bottom + 1
        gone = self.lines[max(at, end - count) : end]
        self.lines[at:end] = self._blanked(gone) + self.lines[at : end - len(gone)]

    def erase_in_display(self, how: int) -> None:
        """0: from the cursor on, 1: up to the cursor, 2: everything."""
        if how == 0:
            self.erase_in_line(0)
            rows = slice(self.y + 1, self.rows)
        elif how == 1:
            self.erase_in_line(1)
            rows = slice(0, self.y)
        else:
            rows = slice(0, self.rows)
        self.lines[rows] = self._blanked(self.lines[rows])

    def fill(self, char: str) -> None:
        """Write one character to every cell."""
        for line in self.lines:
            line.chars = [char] * len(line.chars)
            line.drawn = line.blank = None

    def erase_in_line(self, how: int) -> None:
        """0: from the cursor on, 1: up to the cursor, 2: the whole line."""
        if how == 2:
            self.lines[self.y : self.y + 1] = self._blanked(self.lines[self.y : self.y + 1])
        elif how == 1:
            self.erase(0, self.x + 1)
        else:
            self.erase(self.x, len(self.lines[self.y].chars))
        self.is_full = False

    def erase(self, start: int, end: int) -> None:
        """Blank cells of the cursor's line."""
        line = self.lines[self.y]
        end, blank = min(end, len(line.chars)), (None, self.attributes[1], 0)
        if start < end and line.blank != blank:
            self._split_wide(line, start, end)
            line.chars[start:end] = [" "] * (end - start)
            line.attributes[start:end] = [blank] * (end - start)
            line.drawn = line.blank = None
            if end - start == len(line.chars):
                line.blank = blank

    def insert_blanks(self, count: int) -> None:
        """Move the rest of the line to the right."""
        line = self.lines[self.y]
        self._split_wide(line, self.x, self.x)
        self._make_room(line, min(count, self.cols - self.x))
        line.drawn = line.blank = None

    def delete_chars(self, count: int) -> None:
        """Remove cells at the cursor; the rest of the line moves left."""
        line = self.lines[self.y]
        count = min(count, self.cols - self.x)
        self._split_wide(line, self.x, self.x + count)
        del line.chars[self.x : self.x + count]
        del line.attributes[self.x : self.x + count]
        line.chars += [" "] * count
        line.attributes += [(None, self.attributes[1], 0)] * count
        line.drawn = line.blank = None

    # ------------------------------------------------------------ size

    def resize(self, rows: int, cols: int) -> None:
        """Change the size. Lines are not rewrapped; text cut off at the right returns when there is room."""
        for line in self.lines:
            if (missing := cols - len(line.chars)) > 0:
                line.chars += [" "] * missing
                line.attributes += [PLAIN] * missing
                line.blank = PLAIN if line.blank == PLAIN else None
            line.drawn = None
        self.cols = cols
        while len(self.lines) > rows:
            if self.y < len(self.lines) - 1 and not any(char != " " for char in self.lines[-1].chars):
                self.lines.pop()
                continue
            gone = self.lines.pop(0)
            self.y = max(0, self.y - 1)
            if self._scrolled_out is not None:
                self._scrolled_out([gone])
        self.lines += [CellLine(cols) for _ in range(rows - len(self.lines))]
        self.rows = rows
        self.top, self.bottom = 0, rows - 1
        self.tabs = sorted({*self.tabs, *range(0, cols, 8)})
        self.x, self.y, self.is_full = min(self.x, cols - 1), min(self.y, rows - 1), False
