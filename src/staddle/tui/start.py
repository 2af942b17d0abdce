"""Run the UI until the user leaves it. The sandbox is opened while textual is loading."""

from __future__ import annotations

import gc
import os
import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .opening import SandboxOpening


def start(opening: SandboxOpening, *, vertical: bool = False) -> int:
    """Show the UI on this terminal; return the exit status. Every sandbox has ended by then."""
    # Until the UI handles Ctrl-C, it ends the program. A KeyboardInterrupt during an import may leave the
    # interpreter's import lock locked, and the thread that opens the sandbox, which also imports, would hang.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    opening.begin()
    # Textual's frame rate: an echo must not wait for the next 60th of a second. Panes with much output draw
    # less often.
    os.environ.setdefault("TEXTUAL_FPS", "250")
    os.environ.setdefault("ESCDELAY", "25")  # milliseconds in which Esc may start another key
    for name in ("COLUMNS", "LINES"):  # the terminal's own size is right
        os.environ.pop(name, None)
    app = None
    try:
        from .app import TuiApp

        gc.freeze()
        gc.enable()  # `staddle` runs without it; the UI runs for hours
        app = TuiApp(opening, vertical=vertical)
        status = app.run()
    finally:
        if app is not None:
            app.close_everything()
        opening.close()
    if opening.error is not None:
        raise opening.error
    if app.return_code:
        return app.return_code
    return status or 0
