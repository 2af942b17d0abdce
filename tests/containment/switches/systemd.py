"""Protections of the systemd backend, one by one: some of the launcher's, which is that of `namespaces`."""

from __future__ import annotations

from dataclasses import replace

from . import namespaces
from .base import Switch, together


def _trust() -> None:
    """Its self-test notices most of this by itself, and would not start anything."""
    from staddle.backends.systemd import Systemd
    from staddle.enforcement import Probe

    Systemd.probe = lambda self: Probe("systemd", usable=True)  # type: ignore[method-assign]


SWITCHES: dict[str, Switch] = {
    name: replace(namespaces.SWITCHES[name], off=together(_trust, namespaces.SWITCHES[name].off))
    for name in (
        "system call filter",
        "scope of abstract sockets",
        "network namespace and the last look",
        "launcher's end with its parent",
        "another user than root, and the last look",
    )
}

ALONE = {
    "what else the launcher does": "it is the launcher of namespaces, where each protection is switched off",
    "TimeoutStopUSec=, CollectMode=": "they say how the unit ends, and tests of endings watch that",
}
