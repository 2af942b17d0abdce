"""The catalogue: everything that must fail inside, and everything that must work.

`ATTACKS` by name, each with the protection it belongs to, the errors with which it may be
refused, how its unconfined control is run, and its benign twin. `TWINS` by name.
"""

from __future__ import annotations

from .inside import (
    files,
    holes,
    ipc,
    kernel,
    kit,
    neighbours,
    network,
    privileges,
    processes,
    sessions,
    terminal,
)

__all__ = ["ATTACKS", "MODULES", "NEIGHBOURS", "TERMINAL", "TWINS"]

#: In the order in which their text is sent in.
MODULES = (
    "syscalls", "kit", "files", "holes", "network", "ipc", "processes", "neighbours", "privileges", "kernel",
    "sessions", "terminal", "batch",
)  # fmt: skip

_LOADED = (files, holes, network, ipc, processes, privileges, kernel, sessions)


def _of(module: object) -> frozenset[str]:
    return frozenset(
        name
        for name, (_, function) in kit.ATTACKS.items()
        if getattr(function, "__module__", "") == getattr(module, "__name__", None)
    )


ATTACKS: dict[str, kit.Attack] = {name: attack for name, (attack, _) in kit.ATTACKS.items()}
TWINS: tuple[str, ...] = tuple(kit.TWINS)
#: Those that need the user's terminal as standard input, and those that need a second sandbox.
TERMINAL = _of(terminal)
NEIGHBOURS = _of(neighbours)
