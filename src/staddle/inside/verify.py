"""Verify the sandbox of a single command before the command exists.

Every step that builds it raises when the kernel refuses. This finds a kernel, or an emulation of one, that
reports success and does nothing. The first process runs it from inside, at every start. The command's own
process verifies its later steps itself (see `confine`).
"""

from __future__ import annotations

import os

from ..ipc.wire import CONFINEMENT, NotStarted
from ..linux.fileio import read_whole
from ..linux.procfs import status_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..ipc.namespace_spec import NamespaceSpec


def around(spec: NamespaceSpec, kept: int = 0) -> None:
    """Raise NotStarted if a protection is missing; the capabilities in `kept` are expected."""
    missing = wrong(
        spec, {name: read_whole(f"/proc/self/{name}") for name in ("status", "uid_map", "mountinfo")}, kept
    )
    missing += shared(spec.foreign)
    if spec.host and os.fsencode(os.uname().nodename) != spec.host:
        missing.append("its own host name")
    refuse_without(missing)


def wrong(spec: NamespaceSpec, seen: dict[str, bytes], kept: int = 0) -> list[str]:
    """Return the missing protections, from the files of /proc/self. Pure."""
    id_map = seen["uid_map"].split()
    found = {
        "being its PID 1": _number(seen["status"]) == b"1",
        **rights(seen["status"], kept),
        "a user of its own": len(id_map) == 3 and id_map[::2] == [b"%d" % spec.uid, b"1"],
        "being another user than root": len(id_map) == 3 and id_map[1] != b"0",
        "a root of its own": own_root(seen["mountinfo"]),
        "a /proc of its own, or one that cannot be written": bool(spec.outer_processes)
        == is_read_only(seen["mountinfo"], b"/proc"),
    }
    return absent(found)


def _number(status: bytes) -> bytes:
    """Return the pid in the process's own pid namespace, even if /proc is that of an outer one."""
    words = status_field(status, b"NSpid")
    return words[-1] if words else b""


def rights(status: bytes, kept: int = 0) -> dict[str, bool]:
    """Whether a process has dropped all capabilities except `kept`, by its /proc/PID/status. Pure."""
    lines = status.split(b"\n")
    capabilities = [line.split() for line in lines if line.startswith(b"Cap")]
    return {
        "an end to new privileges": b"NoNewPrivs:\t1" in lines,
        "an end to all capabilities": len(capabilities) >= 5
        and not any(int(row[1], 16) & ~kept for row in capabilities),
    }


def is_read_only(mountinfo: bytes, path: bytes) -> bool:
    """Whether the mount at `path` is read-only. Pure."""
    rows = [row.split(b" ") for row in mountinfo.split(b"\n")]
    return any(len(row) > 5 and row[4] == path and b"ro" in row[5].split(b",") for row in rows)


def own_root(mountinfo: bytes) -> bool:
    """Whether the root is a file system of ours. Pure."""
    return any(b" / / " in row and b" - tmpfs " in row for row in mountinfo.split(b"\n"))


def shared(foreign: Iterable[tuple[bytes, int]]) -> list[str]:
    """Return the missing namespaces: those that we share with the outside."""
    return [
        f"a {os.fsdecode(kind)} namespace of its own"
        for kind, inode in foreign
        if os.stat(b"/proc/self/ns/" + kind).st_ino == inode
    ]


def absent(found: dict[str, bool]) -> list[str]:
    """Return the names of the protections that were not found."""
    return [what for what, is_there in found.items() if not is_there]


def refuse_without(missing: list[str]) -> None:
    """Raise NotStarted if a protection is missing."""
    if missing:
        raise NotStarted(CONFINEMENT, f"the sandbox would be without {', '.join(missing)}")
