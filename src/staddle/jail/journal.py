"""Journal of a workspace: one JSON line for each event, beside its record where no sandbox can write.

Secrets are not in it: of variables only the names, and a value that is known to be secret is
cut out wherever else it stands.
"""

from __future__ import annotations

import os
import time

from .._value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..launch.redaction import Secrets

FILE = "journal.jsonl"
#: A line longer than this is cut: a prompt can be a book.
MOST_LETTERS = 2000
MOST_WORDS = 64
#: The journal is read from its end, at most this much.
MOST_BYTES = 1 << 20


class JournalEntry(Value):
    """One line: when, what happened (`created`, `began`, `ended`, `committed`, ...) and the facts."""

    at: float
    what: str
    facts: dict[str, Any]


def append(directory: str, what: str, secrets: Secrets | None = None, **facts: object) -> None:
    """Write a line. A journal that cannot be written does not stop the work."""
    import json

    line = json.dumps({"at": time.time(), "what": what, **_plain(facts, secrets)}) + "\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{directory}/{FILE}", flags, 0o600)
    except OSError:
        return
    try:
        os.write(descriptor, line.encode())  # one write: two processes do not mix their lines
    except OSError:
        pass
    finally:
        os.close(descriptor)


def read(directory: str) -> tuple[JournalEntry, ...]:
    """Every line that can be read, oldest first."""
    import json

    found = []
    try:
        with open(f"{directory}/{FILE}", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            facts = json.loads(line)
            found.append(JournalEntry(float(facts.pop("at")), str(facts.pop("what")), facts))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # half a line: the power went, or it is the first of the last megabyte
    return tuple(found)


def _plain(facts: Mapping[str, object], secrets: Secrets | None) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in facts.items():
        if isinstance(value, str):
            plain[name] = _bounded(value, secrets)
        elif isinstance(value, list | tuple):
            words = [_bounded(str(item), secrets) for item in value[:MOST_WORDS]]
            plain[name] = words if len(value) <= MOST_WORDS else [*words, "…"]
        else:
            plain[name] = value
    return plain


def _bounded(text: str, secrets: Secrets | None) -> str:
    """Without the secrets first: a cut must not leave half of one."""
    text = text if secrets is None else secrets.text(text)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
