"""The catalogue: everything that must fail inside, and everything that must work.

`ATTACKS` by name, each with the protection it belongs to, the errors with which it may be
refused, how its unconfined control is run, and its benign twin. `TWINS` by name.
"""

from __future__ import annotations

from .inside import files, ipc, kernel, kit, network, privileges, processes, terminal

__all__ = ["ATTACKS", "MODULES", "TERMINAL", "TWINS"]

#: In the order in which their text is sent in.
MODULES = (
    "syscalls",
    "kit",
    "files",
    "network",
    "ipc",
    "processes",
    "privileges",
    "kernel",
    "terminal",
    "batch",
)

_LOADED = (files, network, ipc, processes, privileges, kernel, terminal)

ATTACKS: dict[str, kit.Attack] = {name: attack for name, (attack, _) in kit.ATTACKS.items()}
TWINS: tuple[str, ...] = tuple(kit.TWINS)
#: Those that need the user's terminal as standard input.
TERMINAL = frozenset(
    name
    for name, (_, function) in kit.ATTACKS.items()
    if getattr(function, "__module__", "") == terminal.__name__
)
