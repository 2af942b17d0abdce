"""System calls that name a file or a UNIX socket: what each does to it, and the filter that reports them.

`program` only reports calls: its answer for each call in the table is "ask the listener", for all others
"allow". A filter that refuses a call is stricter, and wins.
"""

from __future__ import annotations

import struct

from .._value import Value
from .syscalls import AUDIT_ARCH, COLUMN, architecture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    #: What a call does to its path; "open" depends on flags, "open2" on flags in memory.
    CallKind = Literal["open", "open2", "run", "connect", "change", "create"]


class WatchedCall(Value):
    """One call: its kind, and the numbers of its arguments: the path, its directory (-1: none), the flags.

    `also` are the path and directory of a second path that it changes.
    """

    kind: CallKind
    path: int
    directory: int = -1
    flags: int = -1
    also: tuple[int, int] | None = None


#: name: (aarch64, x86_64), the call. "change" needs the file, "create" makes it.
_TABLE: dict[str, tuple[int | None, int | None, WatchedCall]] = {
    "open": (None, 2, WatchedCall("open", 0, flags=1)),
    "creat": (None, 85, WatchedCall("create", 0)),
    "openat": (56, 257, WatchedCall("open", 1, 0, 2)),
    "openat2": (437, 437, WatchedCall("open2", 1, 0, 2)),
    "execve": (221, 59, WatchedCall("run", 0)),
    "execveat": (281, 322, WatchedCall("run", 1, 0)),
    "connect": (203, 42, WatchedCall("connect", 1, flags=2)),
    "truncate": (45, 76, WatchedCall("change", 0)),
    "rename": (None, 82, WatchedCall("change", 0, also=(1, -1))),
    "renameat": (38, 264, WatchedCall("change", 1, 0, also=(3, 2))),
    "renameat2": (276, 316, WatchedCall("change", 1, 0, also=(3, 2))),
    "mkdir": (None, 83, WatchedCall("create", 0)),
    "mkdirat": (34, 258, WatchedCall("create", 1, 0)),
    "mknod": (None, 133, WatchedCall("create", 0)),
    "mknodat": (33, 259, WatchedCall("create", 1, 0)),
    "rmdir": (None, 84, WatchedCall("change", 0)),
    "unlink": (None, 87, WatchedCall("change", 0)),
    "unlinkat": (35, 263, WatchedCall("change", 1, 0)),
    "symlink": (None, 88, WatchedCall("create", 1)),
    "symlinkat": (36, 266, WatchedCall("create", 2, 1)),
    "link": (None, 86, WatchedCall("create", 1)),
    "linkat": (37, 265, WatchedCall("create", 3, 2)),
    "chmod": (None, 90, WatchedCall("change", 0)),
    "fchmodat": (53, 268, WatchedCall("change", 1, 0)),
    "fchmodat2": (452, 452, WatchedCall("change", 1, 0)),
}

_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOTIFY = 0x7FFF_0000, 0x7FC0_0000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_INSTRUCTION = struct.Struct("=HBBI")


def calls(machine: str | None = None) -> dict[int, WatchedCall]:
    """Return the calls by their numbers on this architecture."""
    column = COLUMN[machine or architecture()]
    return {row[column]: row[2] for row in _TABLE.values() if row[column] is not None}  # type: ignore[misc]


def program(machine: str | None = None) -> bytes:
    """Return the filter. Calls of another architecture are not reported: the sandbox's own filter refuses."""
    numbers = sorted(calls(machine))
    rows = [(_LOAD, 0, 0, _ARCHITECTURE_AT)]
    rows.append((_IF_EQUAL, 0, len(numbers) + 1, AUDIT_ARCH[machine or architecture()]))
    rows.append((_LOAD, 0, 0, _NUMBER_AT))
    rows += [(_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    return b"".join(_INSTRUCTION.pack(*row) for row in rows)
