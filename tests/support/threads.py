"""Work that several threads do at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Done = TypeVar("Done")


def at_once(*works: Callable[[], Done]) -> list[Done]:
    """Do each of `works` in a thread of its own; what they return, or the first error."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [begun.result() for begun in [threads.submit(work) for work in works]]
