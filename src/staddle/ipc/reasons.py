"""Errors as one sentence for the process that asked. Pure."""

from __future__ import annotations

from ..errors import StaddleError
from .status import not_started
from .wire import Malformed


def reason(error: BaseException, doing: str = "") -> bytes:
    """The error as one sentence, after the step that failed."""
    text = str(error) if isinstance(error, StaddleError | Malformed) else str(not_started(error))
    return f"{doing}: {text}".removeprefix(": ").encode("utf-8", "backslashreplace")[:2048]
