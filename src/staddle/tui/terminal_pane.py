"""A terminal of the sandbox as a widget: the emulator's cells, its history, keys and mouse."""

from __future__ import annotations

import asyncio
import os
import select
import time
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ..errors import StaddleError
from .emulator import keys
from .emulator.emulator import FLOOD, Emulator
from .emulator.grid import BLINK, BOLD, CONCEAL, DIM, ITALIC, REVERSE, STRIKE, TRUE_COLOUR, UNDERLINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from textual import events
    from textual.selection import Selection

    from .emulator.grid import Attributes, CellLine, Runs

    class PseudoTerminal(Protocol):
        """The part of a sandbox's `Terminal` that is used here."""

        def fileno(self) -> int: ...
        def read_some(self) -> bytes | None: ...
        def write_some(self, data: bytes | memoryview) -> int: ...
        def resize(self, rows: int, cols: int) -> None: ...
        def poll(self) -> int | None: ...
        def close(self) -> None: ...


#: With much output: seconds between two frames, and seconds to collect output for one.
_FRAME, _COLLECT = 1 / 40, 0.012
#: Seconds to process output at a time, and the pause between, in which keys and clicks are handled.
_SLICE, _PAUSE = 0.012, 0.003
#: Bytes to draw immediately, and how often between two frames.
_LITTLE, _LITTLES = 256, 4
#: Bytes: much at once, the most at once, input and answers to queue for a program that does not read.
_MUCH, _MOST, _TYPED_AHEAD, _ANSWERS = 1 << 15, 1 << 22, 1 << 16, 1 << 12


@lru_cache(2048)
def style_of(attributes: Attributes) -> Style:
    """The attributes of a cell as a Rich style. Concealed text is shown dim instead."""
    foreground, background, flags = attributes
    return Style(
        color=_colour(foreground),
        bgcolor=_colour(background),
        bold=bool(flags & BOLD) or None,
        dim=bool(flags & (DIM | CONCEAL)) or None,
        italic=bool(flags & ITALIC) or None,
        underline=bool(flags & UNDERLINE) or None,
        blink=bool(flags & BLINK) or None,
        reverse=bool(flags & REVERSE) or None,
        strike=bool(flags & STRIKE) or None,
    )


def _colour(number: int | None) -> Color | None:
    if number is None:
        return None
    if number & TRUE_COLOUR:
        return Color.from_rgb(number >> 16 & 255, number >> 8 & 255, number & 255)
    return Color.from_ansi(number)


def _strip(runs: Runs) -> Strip:
    return Strip([Segment(text, style_of(attributes)) for text, attributes in runs])


class TerminalPane(Widget, can_focus=True):
    """Shows a terminal and types into it. Before `attach` it shows a sentence."""

    DEFAULT_CSS = "TerminalPane { height: 1fr; width: 1fr; }"

    class Ended(Message):
        """The program on the terminal has ended."""

        def __init__(self, pane: TerminalPane, status: int | None) -> None:
            super().__init__()
            self.pane, self.status = pane, status

    class Restart(Message):
        """The user typed Enter after the end, to get another shell."""

        def __init__(self, pane: TerminalPane) -> None:
            super().__init__()
            self.pane = pane

    class Printed(Message):
        """Output arrived after a pause."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.terminal: PseudoTerminal | None = None
        self.emulator = Emulator(24, 80, self._answer)
        self.program = "the shell"
        self.sentence = "opening the sandbox …"
        self.is_over = False
        self._typed = b""
        self._is_held = False  # what is typed is for the next terminal
        self._back = 0  # lines between the view and the end
        self._painted, self._little = 0.0, 0
        self.entered = 0  # lines entered at the prompt
        self._drawn_lines: list[CellLine] = []
        self._drawn_cursor = 0
        self._paint_waits = False
        #: Unprocessed output, and the position of its rest. Reading stops until it is processed.
        self._unfed, self._fed = b"", 0
        self._next_slice: asyncio.TimerHandle | None = None
        self._is_slow = False  # a flood that cannot be skipped: read less ahead
        self._has_ended = False  # no more output will come
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: int | None = None
        self._writing = False

    # ------------------------------------------------------------ the program

    def attach(self, terminal: PseudoTerminal, program: str = "the shell", before: bytes = b"") -> None:
        """Show this terminal from now on; `program` is its name, `before` its old output."""
        self.detach()
        self.terminal, self.program, self.is_over, self.sentence = terminal, program, False, ""
        self.emulator = Emulator(max(1, self.size.height), max(2, self.size.width), self._answer)
        self._back = 0
        self._fit()
        if before:
            self._is_held = True  # questions to the terminal in old output have had their answers
            self.emulator.feed(before)
        self._is_held = False
        self._loop = asyncio.get_running_loop()
        self._reading = terminal.fileno()
        self._loop.add_reader(self._reading, self._read)
        self._flush()
        self.refresh()

    def hold(self) -> None:
        """Keep what is typed from now on for the next terminal; see `attach`."""
        self._is_held = True

    def release(self) -> None:
        """Type what was held into the present terminal: there will be no other one."""
        self._is_held = False
        if self.is_over or self.terminal is None:
            self.is_over, self._typed = True, b""
            self.sentence = "Enter starts a shell"
            self.refresh()
        self._flush()

    def detach(self) -> None:
        """Stop using the terminal; its opener closes it."""
        if self._loop is not None and self._reading is not None:
            self._loop.remove_reader(self._reading)
            self._loop.remove_writer(self._reading)
        if self._next_slice is not None:
            self._next_slice.cancel()
        self._next_slice, self._unfed, self._fed = None, b"", 0
        self._is_slow = self._has_ended = False
        self._reading, self._writing, self.terminal = None, False, None

    def on_unmount(self) -> None:
        self.detach()

    def _read(self) -> None:
        """Read the available output; during a flood, collect more, so that most of it can be skipped."""
        terminal = self.terminal
        if terminal is None or self._reading is None:
            return
        parts: list[bytes] = []
        size, until = 0, 0.0
        try:
            while size < (_MUCH if self._is_slow else _MOST):
                data = terminal.read_some()
                if data is None:
                    if size < _MUCH:
                        break
                    until = until or time.monotonic() + _COLLECT
                    left = until - time.monotonic()
                    if left <= 0 or not select.select([self._reading], [], [], min(left, 0.001))[0]:
                        break
                    continue
                if not data:
                    self._has_ended = True
                    break
                parts.append(data)
                size += len(data)
                if size >= _MUCH and not until:
                    until = time.monotonic() + _COLLECT
                if until and time.monotonic() > until:
                    break
        except (OSError, StaddleError):
            self._has_ended = True
        self._unfed, self._fed = b"".join(parts), 0
        self._feed()

    def _feed(self) -> None:
        """Process a slice of the output; then read on, or end, if there is no rest."""
        loop, emulator, reading = self._loop, self.emulator, self._reading
        if loop is None or reading is None:
            return
        before, start, until = emulator.scrolled, self._fed, time.monotonic() + _SLICE
        self._fed = emulator.feed(self._unfed, start, lambda: time.monotonic() >= until)
        if self._back:  # keep the view in place while lines are added below
            self._back = min(self._back + emulator.scrolled - before, len(emulator.history))
        if self._unfed:
            self._paint(self._fed - start)
        size, is_first = len(self._unfed), start == 0
        if is_first:
            self._is_slow = (self._is_slow or size >= FLOOD) and self._fed < size // 2
        if self._fed < size:
            if is_first:
                loop.remove_reader(reading)  # the program waits until its output is processed
            self._next_slice = loop.call_later(_PAUSE, self._feed)
            return
        self._next_slice, self._unfed, self._fed = None, b"", 0
        if self._has_ended:
            self._end()
        elif not is_first:
            loop.add_reader(reading, self._read)

    def _paint(self, size: int) -> None:
        """Draw immediately after a pause, and for short output such as an echo; else only once per frame."""
        now = time.monotonic()
        if now - self._painted >= _FRAME:
            if now - self._painted > 1:
                self.post_message(self.Printed())
            self._painted, self._little = now, 0
            self._refresh_changed()
        elif size <= _LITTLE and self._little < _LITTLES and not self._paint_waits:
            self._little += 1
            self._refresh_changed()
        elif not self._paint_waits:
            self._paint_waits = True
            self.set_timer(_FRAME - (now - self._painted), self._paint_late)

    def _paint_late(self) -> None:
        self._paint_waits = False
        self._painted = time.monotonic()
        self._refresh_changed()

    def _refresh_changed(self) -> None:
        """Draw the changed rows: an echo changes one."""
        grid = self.emulator.grid
        lines, before, cursors = grid.lines, self._drawn_lines, {self._drawn_cursor, grid.y}
        rows = [
            row
            for row, line in enumerate(lines)
            if line.drawn is None or row >= len(before) or line is not before[row] or row in cursors
        ]
        self._drawn_lines, self._drawn_cursor = list(lines), grid.y
        if self._back or self.sentence or len(rows) > len(lines) // 2:
            self.refresh()
        else:
            paint_now(self, (Region(0, row, self.size.width, 1) for row in rows))

    def _end(self) -> None:
        terminal = self.terminal
        self.detach()
        self.is_over = True
        status = None
        if terminal is not None:
            try:
                status = terminal.poll()
            except StaddleError:
                pass
        self.emulator.feed(b"\x1b[?1049l\x1b[m\r\n")
        self.sentence = f"{self.program} has ended; Enter starts a shell"
        if self._is_held:
            self.sentence = "a shell starts …"
        self.post_message(self.Ended(self, status))
        self.refresh()

    def notice_end(self) -> None:
        """End if its program has ended while others, such as a server, still have the terminal open."""
        terminal = self.terminal
        if terminal is None or self._unfed:
            return
        try:
            has_ended = terminal.poll() is not None
            has_more = has_ended and select.select([terminal.fileno()], [], [], 0)[0]
        except (OSError, ValueError, StaddleError):
            return  # the sandbox is closed
        if has_ended and not has_more:
            self._end()

    def is_busy(self) -> bool:
        """Whether a program other than the shell has the terminal."""
        if self.terminal is None or self._reading is None:
            return False
        import fcntl
        import struct

        try:
            session = struct.unpack("i", fcntl.ioctl(self._reading, 0x5429, b"\0" * 4))[0]  # TIOCGSID
            return bool(os.tcgetpgrp(self._reading) != session)
        except OSError:
            return False

    # ------------------------------------------------------------ the user

    def type(self, data: bytes) -> None:
        """Type these bytes. If the program does not read, input beyond a limit is dropped."""
        if data and len(self._typed) < _TYPED_AHEAD:
            self._typed += data
            self._flush()

    def _answer(self, data: bytes) -> None:
        if (
            len(self._typed) < _ANSWERS and not self._is_held
        ):  # limit the answers to a program that does not read
            self._typed += data
            self._flush()

    def _flush(self) -> None:
        if self.terminal is None or self._loop is None or self._reading is None or self._is_held:
            return
        try:
            while self._typed and (sent := self.terminal.write_some(self._typed)):
                self._typed = self._typed[sent:]
        except (OSError, StaddleError):
            self._typed = b""
        if bool(self._typed) != self._writing:
            self._writing = bool(self._typed)
            if self._writing:
                self._loop.add_writer(self._reading, self._flush)
            else:
                self._loop.remove_writer(self._reading)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key in _SCROLLING:
            _SCROLLING[event.key](self)
            return
        if self.is_over and not self._is_held:
            if event.key == "enter":
                self.post_message(self.Restart(self))
            return
        data = keys.encoded(event.key, event.character, application=self.emulator.has_application_cursor)
        if data:
            if event.key == "enter" and not self.is_busy():
                self.entered += 1
            self.scroll_back(-self._back)
            self.type(data)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.scroll_back(-self._back)
        self.type(keys.pasted(event.text, bracketed=self.emulator.wants_bracketed_paste))

    def on_resize(self, event: events.Resize) -> None:
        self._fit()

    def _fit(self) -> None:
        rows, cols = self.size.height, self.size.width
        if rows < 1 or cols < 2 or (rows, cols) == (self.emulator.main.rows, self.emulator.main.cols):
            if self.terminal is not None and rows >= 1 and cols >= 2:
                self._tell_size(rows, cols)
            return
        self.emulator.resize(rows, cols)
        self._tell_size(rows, cols)
        self.refresh()

    def _tell_size(self, rows: int, cols: int) -> None:
        if self.terminal is not None:
            try:
                self.terminal.resize(rows, cols)
            except (OSError, StaddleError):
                pass

    def scroll_back(self, lines: int) -> None:
        """Scroll to older lines, or with a negative number to newer ones."""
        limit = 0 if self.emulator.is_alternate else len(self.emulator.history)
        back = max(0, min(limit, self._back + lines))
        if back != self._back:
            self._back = back
            self.refresh()

    # ------------------------------------------------------------ mouse

    def _report(self, event: events.MouseEvent, button: int, *, pressed: bool) -> bool:
        """Report the mouse to the program, if it asked for that; with Shift the mouse selects text."""
        emulator = self.emulator
        if not emulator.mouse or event.shift or self.terminal is None or self._is_held:
            return False
        where = event.get_content_offset(self)
        if where is None:
            return False
        button |= (8 if event.meta else 0) | (16 if event.ctrl else 0)
        self.type(keys.mouse(button, where.x, where.y, pressed=pressed, sgr=emulator.has_sgr_mouse))
        event.stop()
        event.prevent_default()
        return True

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._report(event, max(0, event.button - 1), pressed=True)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._report(event, max(0, event.button - 1), pressed=False)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.emulator.mouse == 1003 or (self.emulator.mouse == 1002 and event.button):
            self._report(event, 32 + (event.button - 1 if event.button else 3), pressed=True)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, 64, b"\x1b[A", 3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 65, b"\x1b[B", -3)

    def _wheel(self, event: events.MouseEvent, button: int, arrow: bytes, lines: int) -> None:
        event.stop()
        if self._report(event, button, pressed=True):
            return
        if self.emulator.is_alternate:
            self.type(b"" if self._is_held else arrow * 3)
        else:
            self.scroll_back(lines)

    # ------------------------------------------------------------ drawing

    def render_line(self, y: int) -> Strip:
        """One line of the view."""
        width = self.size.width
        strip = self._line(y).adjust_cell_length(width)
        if self.sentence and y == min(self._sentence_row(), self.size.height - 1):
            strip = Strip([Segment(self.sentence, Style(italic=True, dim=True))]).adjust_cell_length(width)
        elif y == self.emulator.grid.y + self._back and self._shows_cursor():
            strip = self._with_cursor(strip, min(self.emulator.grid.x, width - 1))
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            start, end = span[0], width if span[1] == -1 else span[1]
            if start < end <= width:
                left, middle, right = _cut(strip, start, end)
                chosen = self.screen.get_component_rich_style("screen--selection")
                strip = Strip([*left, *Segment.apply_style(middle, post_style=chosen), *right])
        return strip.apply_offsets(0, y)

    def _line(self, y: int) -> Strip:
        emulator = self.emulator
        if y < self._back:
            number = len(emulator.history) - self._back + y
            return _strip(emulator.history[number]) if 0 <= number < len(emulator.history) else Strip([])
        grid = emulator.grid
        if y - self._back >= len(grid.lines):
            return Strip([])
        line = grid.lines[y - self._back]
        if line.drawn is None:
            line.drawn = _strip(line.runs()).crop(0, grid.cols)
        drawn: Strip = line.drawn
        return drawn

    def _sentence_row(self) -> int:
        return self.emulator.grid.y if self.is_over else 0

    def _shows_cursor(self) -> bool:
        return self.terminal is not None and self.emulator.shows_cursor and self.has_focus

    def _with_cursor(self, strip: Strip, x: int) -> Strip:
        left, middle, right = _cut(strip, x, x + 1)
        return Strip([*left, *Segment.apply_style(middle, post_style=Style(reverse=True)), *right])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text selected with the mouse."""
        lines = [self._line(y).text.rstrip() for y in range(self.size.height)]
        return selection.extract("\n".join(lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def screen_text(self) -> str:
        """The view as text."""
        return "\n".join(self._line(y).text.rstrip() for y in range(self.size.height)).rstrip("\n")


def _cut(strip: Strip, start: int, end: int) -> tuple[list[Segment], list[Segment], list[Segment]]:
    width = strip.cell_length
    return list(strip.crop(0, start)), list(strip.crop(start, end)), list(strip.crop(end, width))


_SCROLLING: dict[str, Callable[[TerminalPane], None]] = {
    "shift+pageup": lambda pane: pane.scroll_back(max(1, pane.size.height - 1)),
    "shift+pagedown": lambda pane: pane.scroll_back(-max(1, pane.size.height - 1)),
    "shift+home": lambda pane: pane.scroll_back(1 << 30),
    "shift+end": lambda pane: pane.scroll_back(-(1 << 30)),
}

# Draw a part of a widget immediately, instead of at the screen's next update.
# Textual collects changes and draws them after all messages and a timer: users notice these milliseconds
# between a key and its echo. If nothing covers them, a few rows are written directly, as textual would draw
# them. This uses private names of textual (hence its bounds in pyproject.toml); if one is missing, the part
# is drawn in the usual way.


def paint_now(widget: Widget, regions: Iterable[Region]) -> None:
    """Draw these regions of a widget."""
    parts = list(regions)
    screen = widget.screen
    if _written(widget, parts):
        return
    try:
        is_usual = screen is widget.app.screen and not screen._layout_required and not screen._scroll_required
        if is_usual:
            widget._set_dirty(*parts)
            screen._compositor.update_widgets({widget})
            screen._compositor_refresh()
            return
    except AttributeError:
        pass
    widget.refresh(*parts)


#: Rows to write directly; more are drawn by the compositor.
_FEW = 3


def _written(widget: Widget, parts: list[Region]) -> bool:
    """Write a few whole rows of a widget to the terminal, if nothing can cover them."""
    app, screen = widget.app, widget.screen
    try:
        if len(parts) > _FEW or len(app.screen_stack) > 1 or app._notifications or app._driver is None:
            return False
        if app.is_headless or screen._layout_required or screen._repaint_required:
            return False
        if widget._repaint_regions:
            return False  # drawing here would drop the rest of its pending update
        left, top = widget.content_region.offset
        data = ""
        for part in parts:
            widget._set_dirty(part)
            (strip,) = widget.render_lines(part)
            data += f"\x1b[{top + part.y + 1};{left + part.x + 1}H{strip.render(app.console)}"
        widget._exchange_repaint_regions()
        app._driver.write(data)
    except (AttributeError, ValueError):
        return False
    return True
