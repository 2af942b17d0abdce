"""Numbers and times for people."""

from __future__ import annotations

import time


def size(count: int | None) -> str:
    """Bytes: `12 B`, `3.4 KiB`."""
    if count is None:
        return ""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def age(when: float) -> str:
    """Age as text: `5 s`, `3 min`, `2 h`, `4 d`."""
    seconds = max(0, int(time.time() - when))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
