"""Long output on a terminal, a page at a time, in colours. Elsewhere it is printed as it is."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

BOLD, RED, GREEN, CYAN = 1, 31, 32, 36


class Paint:
    """Whether to print colours: on a terminal, unless NO_COLOR or TERM=dumb forbid it."""

    def __init__(self, *, on: bool | None = None) -> None:
        if on is None:
            on = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._on = on

    def __call__(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on and code else text


def print_paged(lines: Iterable[str]) -> None:
    """Print lines; through $PAGER (less -R) when they are more than the terminal shows at once."""
    if not sys.stdout.isatty() or (command := _pager()) is None:
        for line in lines:
            print(line)
        return
    height = os.get_terminal_size(1).lines or 24
    waiting: list[str] = []
    source = iter(lines)
    for line in source:
        waiting.append(line)
        if len(waiting) >= height:
            _page(command, waiting, source)
            return
    for line in waiting:
        print(line)


def _pager() -> list[str] | None:
    import shlex
    import shutil

    chosen = os.environ.get("PAGER")
    try:
        command = shlex.split("less -R" if chosen is None else chosen)
    except ValueError:
        command = []
    if not command or command == ["cat"] or shutil.which(command[0]) is None:
        return None
    return command


def _page(command: list[str], first: list[str], rest: Iterable[str]) -> None:
    import signal
    import subprocess

    # Ctrl-C is for the pager, which has the terminal now.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        environment = {"LESS": "-R", **os.environ}  # `less` alone would show our colours as text
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:
            _feed(pager.stdin, first, rest)
    finally:
        signal.signal(signal.SIGINT, before)


def _feed(pipe: IO[bytes] | None, *parts: Iterable[str]) -> None:
    if pipe is None:
        return
    try:
        for lines in parts:
            for line in lines:
                pipe.write(f"{line}\n".encode("utf-8", "backslashreplace"))
        pipe.close()
    except BrokenPipeError:
        pass  # they have seen enough
