"""Run the UI until it is left. The sandbox is being opened while textual is loaded."""

from __future__ import annotations

import gc
import os
import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .opening import SandboxOpening


def start(opening: SandboxOpening, *, vertical: bool = False) -> int:
    """Show the UI on this terminal; the exit status. Every sandbox has ended when it returns."""
    # Ctrl-C ends the program until the UI handles it. A KeyboardInterrupt in the middle of an import may
    # leave the interpreter's import lock held. The thread that opens the sandbox imports too, and would hang.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    opening.begin()
    # Textual redraws at most so often: an echo must not wait for the next 60th of a second. What prints
    # much is drawn less often by its pane.
    os.environ.setdefault("TEXTUAL_FPS", "250")
    os.environ.setdefault("ESCDELAY", "25")  # milliseconds in which Esc may be the beginning of another key
    for name in ("COLUMNS", "LINES"):  # the terminal itself knows better
        os.environ.pop(name, None)
    app = None
    try:
        from .app import TuiApp

        gc.freeze()
        gc.enable()  # `staddle` runs without; this stays for hours
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
