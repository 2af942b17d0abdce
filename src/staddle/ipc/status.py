"""Report that a command, or a part of a sandbox, was not started: an exit code and one sentence."""

from __future__ import annotations

import os

#: Exit codes of the helper. The command's own may be equal: only the sentence distinguishes them.
ARGUMENTS, CONFINEMENT, EXEC = 2, 3, 4


class NotStarted(Exception):
    """The command was not started. `code` is the helper's exit code, and the text the reason.

    `errno` is the kernel's error number (0: none).
    """

    def __init__(self, code: int, why: str, errno: int | None = 0) -> None:
        super().__init__(why)
        self.code, self.errno = code, errno or 0


def not_started(error: BaseException) -> NotStarted:
    """Return the reason why the command was not started, from any error."""
    if isinstance(error, NotStarted):
        return error
    if isinstance(error, OSError) and error.strerror:
        where = f": {os.fsdecode(error.filename)!r}" if error.filename else ""
        return NotStarted(CONFINEMENT, f"{error.strerror}{where}")
    return NotStarted(CONFINEMENT, f"{type(error).__name__}: {error}")


def written(code: int, why: str) -> bytes:
    """Return the bytes for the status descriptor: short enough to arrive in one piece."""
    return f"{code} {why}".encode("utf-8", "backslashreplace")[:2048]


def sentence(said: bytes) -> str | None:
    """Return why the command did not start; None if nothing was written, because it was exec'd."""
    if not said:
        return None
    code, _, why = said.decode("utf-8", "replace").partition(" ")
    return why if code.isdecimal() and why else f"the helper printed {said!r}"


def tell(status: int, failure: NotStarted) -> None:
    """Report why the command did not start, on `status` or else on standard error. Never raises."""
    from ..linux.process import SIGPIPE, block_signals  # loaded long ago in a process that fails

    block_signals((SIGPIPE,))
    try:
        if status >= 0 and os.write(status, written(failure.code, str(failure))):
            return
    except OSError:
        pass  # the other end is closed
    try:
        os.write(2, f"staddle: {failure}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def reason(error: BaseException, doing: str = "") -> bytes:
    """Return the error as one sentence, after the step that failed."""
    from ..errors import StaddleError  # loaded long ago in a process that gives reasons
    from .wire import Malformed

    text = str(error) if isinstance(error, StaddleError | Malformed) else str(not_started(error))
    return f"{doing}: {text}".removeprefix(": ").encode("utf-8", "backslashreplace")[:2048]
