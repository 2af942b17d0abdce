"""Root in a sandbox with one id: giving a file or a process to another user succeeds, and does nothing.

An ordinary user's sandbox has one id, which is its user and its root, and owns every file. Packages that
create an account for their service, and archives with many owners, ask for other ids. They would fail
halfway. So for root's commands, a second filter makes these calls succeed without effect. A filter can only
remove abilities: none of these calls grants a right.
"""

from __future__ import annotations

import struct

from ...linux.seccomp import load
from ...linux.syscalls import AUDIT_ARCH, COLUMN, NUMBERS, architecture

#: The calls that change the owner of a file or of a process.
CALLS = (
    *("chown", "fchown", "fchownat", "lchown", "setgid", "setgroups", "setregid", "setresgid", "setresuid"),
    *("setreuid", "setuid"),
)
_ALLOW, _SUCCEED = 0x7FFF_0000, 0x0005_0000  # the second fails with error number 0
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_INSTRUCTION = struct.Struct("=HBBI")


def program(machine: str) -> bytes:
    """Return the filter for an architecture.

    It leaves other calling conventions to the first filter. Pure.
    """
    numbers = [number for name in CALLS if (number := NUMBERS[name][COLUMN[machine]]) is not None]
    rows = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IF_EQUAL, 0, len(numbers) + 1, AUDIT_ARCH[machine])]
    rows.append((_LOAD, 0, 0, _NUMBER_AT))
    rows += [(_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _SUCCEED)]
    return b"".join(_INSTRUCTION.pack(*row) for row in rows)


def pretend_owners() -> None:
    """Load the filter into this process and its children, after no_new_privs and the first filter."""
    load(program(architecture()))
