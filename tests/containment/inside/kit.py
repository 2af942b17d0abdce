"""What attacks are made of: how one is declared, and how it says what happened.

An attack returns when it got through, with what it saw. It raises OSError when the kernel
refused, and `Refused` when there was nothing to be had. `reached` names errors that show
that a call was carried out: its arguments are chosen to be useless, so that an attack that
gets through on the test machine does nothing.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple  # not a dataclass: that takes longer to import than an attack

from .syscalls import call, number

__all__ = [
    "ATTACKS",
    "TWINS",
    "Attack",
    "Refused",
    "World",
    "address",
    "attack",
    "call",
    "libc",
    "number",
    "twin",
]

libc = ctypes.CDLL(None, use_errno=True)

#: Where things are and how they are called, made by the host side for one run.
World = dict


class Refused(Exception):
    """There was nothing to be had: not there, empty, not ours."""


class Attack(NamedTuple):
    """One way to reach out, the protection that must stop it, and how it shows that it was stopped."""

    name: str
    protection: str
    #: The errors with which it may be refused, and "nothing" for Refused, "SIGSYS" for a kill by the filter.
    refused: frozenset[str]
    #: Errors that mean the call was carried out.
    reached: frozenset[str]
    #: How it is shown that the attack works where nothing confines it:
    #: "plain": as the same user; "contained": with all capabilities in namespaces of its own;
    #: "root": as root only, the kernel refuses others anyway; "": it cannot be shown harmlessly.
    control: str
    #: The benign twin that must work inside.
    twin: str
    #: Answers of a kernel that was built without what is attacked; then the control shows that much.
    optional: frozenset[str] = frozenset()
    #: A sentence of docs/backends.md, when getting through is a limit that is documented there.
    limit: str = ""
    #: Only what changed outside counts, not the attack's own answer.
    silent: bool = False
    #: Runs in a sandbox of its own, in namespaces of its own: it may end every process it can see.
    solo: bool = False


ATTACKS: dict[str, tuple[Attack, object]] = {}
TWINS: dict[str, object] = {}


def attack(
    protection: str,
    refused: str,
    *,
    name: str = "",
    reached: str = "",
    control: str = "plain",
    optional: str = "",
    limit: str = "",
    twin: str = "forks-and-threads",
    silent: bool = False,
    solo: bool = False,
):
    """Declare the decorated function as an attack on `protection`."""

    def declare(function):
        called = name or function.__name__.replace("_", "-")
        assert called not in ATTACKS, called
        ATTACKS[called] = (
            Attack(
                called,
                protection,
                frozenset(refused.split()),
                frozenset(reached.split()),
                control,
                twin,
                frozenset(optional.split()),
                limit,
                silent,
                solo,
            ),
            function,
        )
        return function

    return declare


def twin(function):
    """Declare the decorated function as something that must work inside."""
    TWINS[function.__name__.replace("_", "-")] = function
    return function


def address(buffer) -> int:
    """The address of a ctypes buffer, for a system call that takes a pointer."""
    return ctypes.addressof(buffer)


def checked(result: int) -> int:
    """The result of a C library call, or its error."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
