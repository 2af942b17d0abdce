"""Start of what the first sandbox of a program waits for, while the program prepares the rest."""

from __future__ import annotations

import sys

from ...forkserver.start import AHEAD
from ...interrupts import uninterrupted

_LAYERED = "namespaces"


def begin(backend: str, *, only: bool = False) -> None:
    """Start the self-test of namespaces and the first fork server, if `backend` may be that one.

    With `only` the program opens no second sandbox, and nothing is prepared for one.
    """
    if only:
        from ...network.host.prewarm import GATEWAYS

        AHEAD.is_only, GATEWAYS.goes_on = True, False
    if (only or not AHEAD.is_over) and backend in ("auto", _LAYERED) and sys.platform == "linux":
        uninterrupted(_begin)


def _begin() -> None:
    AHEAD.begin()
    from ... import backends  # while the process starts

    backends.get(_LAYERED).begin_self_test()  # type: ignore[attr-defined]


def end() -> None:
    """End the fork server, if no sandbox has taken it."""
    if AHEAD.waiting is not None:
        uninterrupted(AHEAD.close)
