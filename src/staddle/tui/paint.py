"""Draw a part of a widget at once, instead of at the screen's next turn.

Textual collects what has changed and draws it when all messages are done and a timer has run: some
milliseconds, which are felt between a key and its echo. A few rows that nothing covers are written directly,
as textual would draw them. This uses names of textual that are not public (hence its bounds in
pyproject.toml); where one is missing, the part is drawn in the usual way.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.geometry import Region
    from textual.widget import Widget


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


#: Rows that are written one by one; more are composed with everything else.
_FEW = 3


def _written(widget: Widget, parts: list[Region]) -> bool:
    """Write a few whole rows of a widget to the terminal, if nothing can be on top of them."""
    app, screen = widget.app, widget.screen
    try:
        if len(parts) > _FEW or len(app.screen_stack) > 1 or app._notifications or app._driver is None:
            return False
        if app.is_headless or screen._layout_required or screen._repaint_required:
            return False
        if widget._repaint_regions:
            return False  # more of it is still to be drawn: that would be forgotten with what is drawn here
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
