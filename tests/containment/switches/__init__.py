"""Switches that each take one protection away, by changing what decides it.

Used only in a session process of its own, inside namespaces that catch what gets through.
Where a protection is doubled by another one, a switch takes both, and `ALONE` says why one
is not enough.
"""

from __future__ import annotations

from . import bwrap, landlock, namespaces, session, systemd
from .base import Edit, Switch

__all__ = ["ALONE", "SWITCHES", "Edit", "Switch", "switch_off"]

SWITCHES: dict[str, dict[str, Switch]] = {
    "namespaces": namespaces.SWITCHES,
    "session": session.SWITCHES,
    "session as root": session.AS_ROOT,
    "bwrap": bwrap.SWITCHES,
    "landlock": landlock.SWITCHES,
    "systemd": systemd.SWITCHES,
}

#: Protections that are not switched off by themselves, and why no attack could notice.
ALONE: dict[str, dict[str, str]] = {
    "namespaces": namespaces.ALONE,
    "session": session.ALONE,
    "session as root": session.AS_ROOT_ALONE,
    "bwrap": bwrap.ALONE,
    "landlock": landlock.ALONE,
    "systemd": systemd.ALONE,
}


def switch_off(backend: str, name: str) -> None:
    """Take one protection away from this process's backends."""
    SWITCHES[backend][name].off()
