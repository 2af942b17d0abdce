"""`Emulator`: a program's terminal output as lines of cells (xterm's functions, without side effects).

Everything here is hostile input. Only printable characters become cells. The emulator passes on no sequence
that acts beyond its own screen: clipboard (OSC 52), colours, hyperlinks, DCS, PM, APC and notifications are
read to their end and dropped. A title is stored as text. Answers (cursor position, kind of terminal) are our
own, and limited. Parameters are clipped to the size of the screen.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import deque
from functools import lru_cache
from itertools import islice

from .grid import PLAIN, CellGrid, selected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .grid import Attributes, CellLine, Runs

#: Lines to keep after they leave the screen.
HISTORY = 3000
#: Largest parameter, longest sequence to wait for, longest title.
_MOST, _LONGEST, _TITLE = 9999, 512, 80
#: More bytes at once are a flood: the part that would scroll away unseen is not parsed line by line.
FLOOD = 1 << 17
#: Most sequences in the skipped part of a flood, and how many of them are carried out.
_MOST_SKIPPED, _MOST_COLOURS = 1 << 18, 1 << 10
#: Bytes between two calls of `enough`: for simple lines, and for everything else.
_LINES, _PIECE = 1 << 16, 1 << 8

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_CSI = re.compile(r"\x1b\[([0-?]*)([ -/]*)([@-~])")
_CSI_BEGUN = re.compile(r"\x1b\[[0-?]*[ -/]*")
_CSI_END = re.compile(r"[@-~\x00-\x1f]")
_ESCAPE = re.compile(r"\x1b([ -/]*)([0-~])")
_STRING = re.compile(r"\x1b([\]PX^_k])")
_STRING_END = re.compile("\x07|\x1b\\\\|\x18|\x1a|\x9c|\x1b(?=[^\\\\])")
_SGR_BYTES = re.compile(rb"\x1b\[[0-9;:]*m")
_SIMPLE_LINE = rb"(?:[ -~]{0,%d}\r\n)+"

#: The line-drawing characters of the VT100, from ` to ~.
_DRAWING = dict(
    zip(range(0x60, 0x7F), "\u25c6▒\u2409\u240c\u240d\u240a°±\u2424\u240b┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True)
)


@lru_cache(4096)
def width(char: str) -> int:
    """The cells of a character: 1 or 2; 0 for a combining mark; -1 if it is not shown."""
    if " " <= char < "\x7f":
        return 1
    category = unicodedata.category(char)
    if category in ("Mn", "Me"):
        return 0 if char.isprintable() and not "\ufe00" <= char <= "\ufe0f" and ord(char) < 0xE0000 else -1
    if category in ("Cc", "Cf", "Cs", "Zl", "Zp"):  # includes marks that reverse the direction of text
        return -1
    from rich.cells import get_character_cell_size

    return get_character_cell_size(char)


class Emulator:
    """A terminal of `rows` and `cols`. `answer` is called with the terminal's own replies to the program."""

    def __init__(self, rows: int, cols: int, answer: Callable[[bytes], object]) -> None:
        self._answer = answer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # the beginning of a sequence
        self._string = ""  # the letter of a string (OSC, DCS, ...) that has not ended
        self._string_text = ""
        self.history: deque[Runs] = deque(maxlen=HISTORY)
        #: Number of lines ever added to the history, so that a viewer can keep its position.
        self.scrolled = 0
        self.main = CellGrid(rows, cols, self._scrolled_out)
        self.alternate = CellGrid(rows, cols, None)
        self._reset()

    def _reset(self) -> None:
        self.main.reset()
        self.alternate.reset()
        self.grid = self.main
        self._drawing = [False, False]  # whether G0 and G1 are line-drawing characters
        self._shift = 0
        self.title = ""
        self.shows_cursor = True
        self.has_application_cursor = False
        self.wants_bracketed_paste = False
        self.mouse = 0  # 0, or 1000 (clicks), 1002 (and drags), 1003 (and moves)
        self.has_sgr_mouse = False
        self._last = " "

    @property
    def is_alternate(self) -> bool:
        """Whether a full-screen program uses the alternate screen, which has no history."""
        return self.grid is self.alternate

    def resize(self, rows: int, cols: int) -> None:
        """Change the size."""
        self.main.resize(rows, cols)
        self.alternate.resize(rows, cols)

    def _scrolled_out(self, lines: list[CellLine]) -> None:
        self.history.extend([line.runs() for line in lines])
        self.scrolled += len(lines)

    # ------------------------------------------------------------ reading

    def feed(self, data: bytes, start: int = 0, enough: Callable[[], bool] | None = None) -> int:
        """Process the program's output from `start` on; return the position reached.

        It stops at the end, or soon after `enough` returns True. Then feed the rest, with the same `data`.
        Each call processes at least one piece.
        """
        at, size = start, len(data)
        if at == 0 and size >= FLOOD:
            at = self._skip(data)
        while at < size:
            end = self._simple_lines(data, at)
            if end == at:
                # Read to the end of this line, because simple lines may follow; else read a larger piece.
                is_within = self.grid.x or self.grid.y < self.grid.bottom
                most = min(size, at + _PIECE)
                end = data.find(b"\n", at, most) + 1 if is_within else 0
                end = end or most
                self._feed_text(self._decoder.decode(data[at:end]))
            at = end
            if enough is not None and at < size and enough():
                break
        return at

    def _feed_text(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at, size = 0, len(text)
        while at < size:
            if self._string:
                at = self._read_string(text, at)
                continue
            found = _CONTROL.search(text, at)
            if found is None:
                self._put(text[at:])
                return
            if found.start() > at:
                self._put(text[at : found.start()])
            at = found.start()
            if text[at] == "\x1b":
                at = self._escape(text, at)
            else:
                self._control(text[at])
                at += 1

    def _simple_lines(self, data: bytes, at: int) -> int:
        """Add short ASCII lines in one step, if the cursor is on a blank last line; return their end."""
        grid = self.grid
        is_usual = grid is self.main and not (self._rest or self._string or grid.is_full or grid.inserts)
        is_usual = is_usual and grid.top == 0 and grid.y == grid.bottom == grid.rows - 1
        if not is_usual or grid.x or self._drawing[self._shift] or self._decoder.getstate()[0]:
            return at
        found = _simple_lines(grid.cols).match(data, at, at + _LINES)
        if found is None or grid.lines[-1].runs():
            return at
        texts = found[0].decode("ascii").split("\r\n")[:-1]
        count, rows, attributes = len(texts), grid.rows, grid.attributes
        self._scrolled_out(grid.lines[: min(count, rows - 1)])
        gone = max(0, count - rows + 1)  # lines that scroll off the screen, too
        self.scrolled += gone
        self.history.extend(((text, attributes),) for text in islice(texts, max(0, gone - HISTORY), gone))
        fresh = [grid._blank() for _ in range(count - gone + 1)]
        for line, text in zip(fresh, texts[gone:], strict=False):
            line.chars[: len(text)] = text
            line.attributes[: len(text)] = [attributes] * len(text)
            line.blank = None
        grid.lines[:] = [*grid.lines[:-1], *fresh][-rows:]
        return found.end()

    def _skip(self, data: bytes) -> int:
        """Skip text and colours that would scroll out of the history anyway; return the end of that part."""
        grid = self.grid
        keep = HISTORY + grid.rows + 1
        if grid is not self.main or self._rest or self._string or grid.top or grid.bottom != grid.rows - 1:
            return 0
        end = len(data)
        count = data.count(b"\n")
        if count <= 2 * keep:
            return 0
        # Cut so that at least `keep` lines remain: first by estimated size, because there are many.
        cut = data.rfind(b"\r\n", 0, end - end // count * keep)
        while cut > 0 and data.count(b"\n", cut + 2) < keep:
            cut = data.rfind(b"\r\n", 0, cut - (1 << 16)) if cut > 1 << 16 else -1
        if cut <= 0:
            return 0
        gone = data[: cut + 2]
        escapes = gone.count(b"\x1b")
        if b"\x0e" in gone or b"\x0f" in gone or escapes > _MOST_SKIPPED:
            return 0
        if len(_SGR_BYTES.findall(gone)) != escapes:
            return 0
        colours = _SGR_BYTES.findall(gone, max(0, gone.rfind(b"\x1b[0m"), gone.rfind(b"\x1b[m")))
        if len(colours) > _MOST_COLOURS:
            return 0
        for sequence in colours:
            grid.attributes = selected(grid.attributes, sequence[2:-1].decode("ascii"))
        self._decoder.reset()
        self.scrolled += gone.count(b"\n")
        self.history.clear()
        grid.lines[:] = [grid._blank() for _ in grid.lines]
        grid.x, grid.y, grid.is_full = 0, grid.rows - 1, False
        return cut + 2

    # ------------------------------------------------------------ characters

    def _put(self, text: str) -> None:
        if self._drawing[self._shift]:
            text = text.translate(_DRAWING)
        grid = self.grid
        if text.isascii():
            grid.put(text)
            self._last = text[-1]
            return
        plain: list[str] = []
        for char in text:
            cells = width(char)
            if cells == 1:
                plain.append(char)
                continue
            if plain:
                grid.put("".join(plain))
                plain.clear()
            if cells == 2:
                grid.put_wide(char)
            elif cells == 0:
                grid.combine(char)
        if plain:
            grid.put("".join(plain))
            self._last = plain[-1]

    def _control(self, char: str) -> None:
        grid = self.grid
        if char == "\n" or char in "\x0b\x0c":
            grid.line_feed()
            grid.is_full = False
        elif char == "\r":
            grid.x, grid.is_full = 0, False
        elif char == "\b":
            grid.x, grid.is_full = max(0, grid.x - 1), False
        elif char == "\t":
            grid.tab()
        elif char == "\x0e":
            self._shift = 1
        elif char == "\x0f":
            self._shift = 0

    # ------------------------------------------------------------ sequences

    def _escape(self, text: str, at: int) -> int:
        """Carry out the sequence that begins here; return its end."""
        if found := _CSI.match(text, at):
            if len(found[1]) <= _LONGEST:
                self._csi(found[1], found[2], found[3])
            return found.end()
        if found := _STRING.match(text, at):
            self._string, self._string_text = found[1], ""
            return found.end()
        if text.startswith("\x1b[", at):
            begun = _CSI_BEGUN.match(text, at)
            end = begun.end() if begun else at + 2
            if end == len(text):
                if end - at <= _LONGEST:
                    self._rest = text[at:]
                else:
                    self._string = "["  # too long to be valid: dropped to its end
                return len(text)
            return end  # an invalid byte: drop the part before it
        if found := _ESCAPE.match(text, at):
            self._simple_escape(found[1], found[2])
            return found.end()
        if len(text) - at <= 4 and not text[at + 1 :].strip(" !\"#$%&'()*+,-./"):
            self._rest = text[at:]
            return len(text)
        return at + 1

    def _read_string(self, text: str, at: int) -> int:
        """Read to the end of a string; only a title has an effect."""
        if self._string == "[":
            found = _CSI_END.search(text, at)
            if found is None:
                return len(text)
            self._string = ""
            return found.start() if found[0] < " " else found.end()
        found = _STRING_END.search(text, at)
        end = len(text) if found is None else found.start()
        if found is None and text.endswith("\x1b"):
            end -= 1
            self._rest = "\x1b"
        if self._string in "]k" and len(self._string_text) < _LONGEST:
            self._string_text += text[at : min(end, at + _LONGEST)]
        if found is None:
            return len(text)
        if self._string == "]" and self._string_text[:2] in ("0;", "2;"):
            from staddle.display import shown

            self.title = shown(self._string_text[2:])[:_TITLE]
        self._string = self._string_text = ""
        return found.start() if found[0] == "\x1b" else found.end()

    def _simple_escape(self, between: str, final: str) -> None:
        grid = self.grid
        if between in ("(", ")"):
            self._drawing[between == ")"] = final == "0"
        elif between == "#" and final == "8":
            grid.fill("E")
        elif between:
            return
        elif final == "7":
            grid.save()
        elif final == "8":
            grid.load()
        elif final == "D":
            grid.line_feed()
        elif final == "E":
            grid.x = 0
            grid.line_feed()
        elif final == "H":
            grid.set_tab(True)
        elif final == "M":
            grid.reverse_line_feed()
        elif final == "c":
            self._reset()

    def _csi(self, parameters: str, between: str, final: str) -> None:
        if final == "m" and not between and parameters[:1] not in ("<", "=", ">", "?"):
            self.grid.attributes = selected(self.grid.attributes, parameters)
            return
        mark = parameters[0] if parameters[:1] in ("<", "=", ">", "?") else ""
        numbers = [
            min(int(part), _MOST) if part.isdecimal() else 0 for part in parameters[len(mark) :].split(";")
        ][:32]
        if between:
            if between == "!" and final == "p":  # DECSTR: resets modes, not the screen
                self._soft_reset()
            return
        if mark == "?" and final in "hl":
            for number in numbers:
                self._private_mode(number, final == "h")
            return
        if mark:
            if (mark, final) == (">", "c"):
                self._answer(b"\x1b[>0;10;0c")
            return
        self._function(final, numbers)

    def _function(self, final: str, numbers: list[int]) -> None:
        grid = self.grid
        first = numbers[0]
        one = max(1, first)
        second = numbers[1] if len(numbers) > 1 else 0
        match final:
            case "A":
                grid.move(-one)
            case "B" | "e":
                grid.move(one)
            case "C" | "a":
                grid.move(0, one)
            case "D":
                grid.move(0, -one)
            case "E" | "F":
                grid.move(one if final == "E" else -one, -grid.cols)
            case "G" | "`":
                grid.x, grid.is_full = min(one, grid.cols) - 1, False
            case "H" | "f":
                grid.move_to(one - 1, max(1, second) - 1)
            case "d":
                grid.move_to(one - 1, grid.x)
            case "I":
                grid.tab(one)
            case "Z":
                grid.back_tab(one)
            case "J":
                if first == 3:
                    self.history.clear()
                elif first < 3:
                    grid.erase_in_display(first)
            case "K":
                if first < 3:
                    grid.erase_in_line(first)
            case "L":
                grid.insert_lines(one)
            case "M":
                grid.delete_lines(one)
            case "@":
                grid.insert_blanks(one)
            case "P":
                grid.delete_chars(one)
            case "X":
                grid.erase(grid.x, grid.x + one)
            case "S":
                grid.scroll_up(one)
            case "T":
                grid.scroll_down(one)
            case "b":
                grid.put(self._last * min(one, grid.cols))  # at most a line: no library asks for more
            case "g":
                if first == 3:
                    grid.tabs = []
                else:
                    grid.set_tab(False)
            case "r":
                grid.set_region(one - 1, (second or grid.rows) - 1)
            case "s":
                grid.save()
            case "u":
                grid.load()
            case "h" | "l":
                if first == 4:
                    grid.inserts = final == "h"
            case "c":
                if first == 0:
                    self._answer(b"\x1b[?62;22c")  # a VT220 with colours
            case "n":
                if first == 5:
                    self._answer(b"\x1b[0n")
                elif first == 6:
                    self._answer(b"\x1b[%d;%dR" % (grid.y + 1, grid.x + 1))

    def _private_mode(self, number: int, on: bool) -> None:
        grid = self.grid
        match number:
            case 1:
                self.has_application_cursor = on
            case 6:
                grid.is_relative = on
                grid.move_to(0, 0)
            case 7:
                self.main.wraps = self.alternate.wraps = on
            case 25:
                self.shows_cursor = on
            case 47 | 1047 | 1049:
                self._use_alternate(on, saves=number == 1049)
            case 1048:
                if on:
                    grid.save()
                else:
                    grid.load()
            case 1000 | 1002 | 1003:
                self.mouse = number if on else 0
            case 1006:
                self.has_sgr_mouse = on
            case 2004:
                self.wants_bracketed_paste = on

    def _use_alternate(self, on: bool, *, saves: bool) -> None:
        if on == self.is_alternate:
            return
        if on:
            if saves:
                self.main.save()
            self.alternate.reset()
            self.grid = self.alternate
            self.grid.x, self.grid.y, self.grid.attributes = self.main.x, self.main.y, self.main.attributes
            return
        self.grid = self.main
        if saves:
            self.main.load()

    def _soft_reset(self) -> None:
        grid = self.grid
        grid.inserts = grid.is_relative = False
        grid.wraps = True
        grid.top, grid.bottom = 0, grid.rows - 1
        grid.attributes = PLAIN
        self.shows_cursor, self.has_application_cursor = True, False
        self._drawing, self._shift = [False, False], 0

    # ------------------------------------------------------------ state

    @property
    def attributes(self) -> Attributes:
        """The attributes of the next character."""
        return self.grid.attributes

    def text(self) -> str:
        """The screen as text, without trailing blanks."""
        cols = self.grid.cols
        return "\n".join("".join(line.chars[:cols]).rstrip() for line in self.grid.lines).rstrip("\n")


@lru_cache(8)
def _simple_lines(cols: int) -> re.Pattern[bytes]:
    return re.compile(_SIMPLE_LINE % cols)
