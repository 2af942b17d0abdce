"""Questions about hosts that a running sandbox wants to reach, and `staddle allow`, which answers them.

A question is a file in a directory that only this user can enter; its name is the host and the port. `staddle
allow` removes the file and leaves an answer. If nobody answers in time, the host is refused, and from then on
at once, until it is allowed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time

from .. import places
from ..display import shown
from ..errors import UsageError
from .kept import begin
from .options import HELP
from .report import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..events import Event

_PLACE = "questions"
#: Seconds for an answer, and between two notifications.
_PATIENCE, _AGAIN = 20, 3
_ASKED, _ALLOWED = "asked-", "allowed-"
#: The longest host and port, as part of a file name.
_LONGEST = 200
_OPTIONS = (HELP,)
_HELP = """\
Answer a running agent that wants to reach a host which its network does not allow.

usage: staddle allow [HOST...]

Without a HOST the open questions are listed. An answer is for the rest of that run; to allow a host
from the start, use `--allow HOST`.

{options}

  staddle allow                  what is asked now
  staddle allow api.example.com  yes
"""


class Questions:
    """The questions of one sandbox, until `close`. `options` are for its opening."""

    def __init__(self, name: str) -> None:
        clean = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
        self._place = places.of_this_process(_PLACE, clean[:80])
        self._refused: set[str] = set()
        self._over = threading.Event()

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of Sandbox that have its questions asked here."""
        return {"on_connect": self.decide, "on_connect_timeout": _PATIENCE + 1}

    def decide(self, question: Event) -> bool:
        """Wait for an answer to the question about a connection."""
        host = question.what
        name = host.rpartition(":")[0]
        if "/" in host or not host.isprintable() or len(host) > _LONGEST:
            return False
        asked, allowed = f"{self._place}/{_ASKED}{host}", f"{self._place}/{_ALLOWED}{name}"
        if os.path.exists(allowed):
            return True
        if host in self._refused:
            return False
        with open(asked, "w"):
            pass
        until, told = time.monotonic() + _PATIENCE, 0.0
        while (now := time.monotonic()) < until and not self._over.is_set():
            if os.path.exists(allowed):
                return True
            if now - told > _AGAIN:  # the agent sets titles as well
                notify(f"may it reach {shown(host)}? In another terminal: staddle allow {shown(name)}")
                told = now
            self._over.wait(0.1)
        self._refused.add(host)
        return False

    def close(self) -> None:
        """End the questions."""
        self._over.set()
        shutil.rmtree(self._place, ignore_errors=True)


def main(words: Sequence[str]) -> int:
    """List the open questions, or allow hosts."""
    parsed = begin(words, _OPTIONS, "allow", _HELP)
    if parsed is None:
        return 0
    top = f"{places.runtime()}/{_PLACE}"
    waiting = [
        (place, name.removeprefix(_ASKED))
        for place in sorted({*_entries(top)} - {*places.ended(top)})
        for name in map(os.path.basename, _entries(place))
        if name.startswith(_ASKED)
    ]
    if not parsed.words:
        for place, host in waiting:
            print(f"{shown(os.path.basename(place))}  {shown(host)}")
        if not waiting:
            print("no agent asks for a host")
        return 0
    for word in parsed.words:
        found = [(place, host) for place, host in waiting if word in (host, host.rpartition(":")[0])]
        if not found:
            raise UsageError(f"no running agent asks for {word!r}", fix="`staddle allow` lists what is asked")
        for place, host in found:
            with open(f"{place}/{_ALLOWED}{host.rpartition(':')[0]}", "w"):
                os.unlink(f"{place}/{_ASKED}{host}")
            print(f"{shown(host)} may be reached by {shown(os.path.basename(place))}")
    return 0


def _entries(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    except FileNotFoundError:
        return []
