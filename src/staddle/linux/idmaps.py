"""Unused user ids, and mounts that translate owners to them.

Under root, a sandbox must not be root: as uid 0 it could write /proc/sys, and it would own every file of root
that it sees. So it becomes an id without an account. The granted files are shown through mounts on which
their owner *is* that id. Files that it creates there belong to the owner on disk.
"""

from __future__ import annotations

import errno
import os
import sys

from .userns import Obstacle

#: No convention assigns ids from here on: above all containers (up to 0x6FFFFFFF), below the foreign ids of
#: systemd and the sign bit. https://systemd.io/UIDS-GIDS/
FIRST_UNUSED = 0x70000000
_LAST_PID = 1 << 22

_unused: dict[int, int | None] = {}
_translations: dict[tuple[int, int, int], int] = {}
_mine: dict[int, int | None] = {}
_here: dict[tuple[int, str, int], tuple[int, int]] = {}


def unused_id(uid_map: str, gid_map: str, taken: frozenset[int] = frozenset(), pid: int = 0) -> int | None:
    """Return an id without an account, for both user and group; None if there is none here.

    `uid_map` and `gid_map` are from /proc/self: in a container only some ids exist. Different processes get
    different ids, so that two runs have no rights over each other.
    """
    candidate = FIRST_UNUSED + pid % _LAST_PID
    while candidate in taken:
        candidate += 1
    if _exists(uid_map, candidate) and _exists(gid_map, candidate):
        return candidate
    # A container: the highest existing ids are the least likely to be in use.
    last = min(_last(uid_map), _last(gid_map))
    for candidate in range(last, max(last - 256, 1000), -1):
        if candidate in taken or candidate in (65534, 65535):  # nobody, and the invalid id
            continue
        if _exists(uid_map, candidate) and _exists(gid_map, candidate):
            return candidate
    return None


def unused_id_here() -> int | None:
    """Return `unused_id` on this host, for this process: always the same."""
    pid = os.getpid()
    if pid not in _mine:  # a forked child has its own id
        maps = []
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}") as file:
                maps.append(file.read())
        _mine[pid] = unused_id(maps[0], maps[1], _accounts(), pid)
    return _mine[pid]


def id_for_sandbox() -> int | None:
    """Return an id for one sandbox; if there are many, two sandboxes have different ids."""
    uid = unused_id_here()
    if uid is None or uid < FIRST_UNUSED:
        return uid
    return FIRST_UNUSED + int.from_bytes(os.urandom(3), "little")


def unused_ids_here(count: int = 1 << 16) -> tuple[int, int]:
    """Return (first, number) of ids without an account: `count` if available, else one, else none.

    For this process, the result is always the same.
    """
    # The maps of a user namespace never change, and every opened sandbox needs this.
    key = os.getpid(), os.readlink("/proc/self/ns/user"), count
    if key not in _here:
        first = FIRST_UNUSED + os.getpid() % 0x7000 * count
        with open("/proc/self/uid_map") as uids, open("/proc/self/gid_map") as gids:
            maps = (uids.read(), gids.read())
        if all(_exists(text, first) and _exists(text, first + count - 1) for text in maps):
            _here[key] = first, count
        else:
            one = unused_id_here()
            _here[key] = (-1, 0) if one is None else (one, 1)
    return _here[key]


def extents(owner: int, unprivileged_uid: int) -> tuple[tuple[int, int, int], ...]:
    """Return an id map that shows `owner` as `unprivileged_uid` and every id below it as itself.

    Others keep their ids, as on a plain mount. The sandbox has the access of every other user to their files,
    and the owner's files with another group stay writable.
    """
    before, after = (0, 0, owner), (owner + 1, owner + 1, unprivileged_uid - owner - 1)
    return tuple(line for line in (before, (owner, unprivileged_uid, 1), after) if line[2] > 0)


def translation(owner: int, group: int, unprivileged_uid: int) -> int:
    """Return a user namespace for `mounts.map_ids` that shows `owner` and `group` as `unprivileged_uid`.

    No process runs in it. A short-lived child makes it, once per process and pair. Needs CAP_SETUID and
    CAP_SETGID. The cache owns the descriptor: do not close it.
    """
    key = (owner, group, unprivileged_uid)
    if key not in _translations:
        from ..interrupts import uninterrupted  # an exception from a signal handler would leave the child

        uids, gids = extents(owner, unprivileged_uid), extents(group, unprivileged_uid)
        _translations[key] = uninterrupted(lambda: _make(uids, gids))
    return _translations[key]


def _make(uids: tuple[tuple[int, int, int], ...], gids: tuple[tuple[int, int, int], ...]) -> int:
    # A spawned child, not a forked one: our caller may have threads and gigabytes. `cat` answers from inside
    # the new namespace, and ends when we close the pipe, for whatever reason.
    to_child, from_child = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    pid = 0
    try:
        actions = [(os.POSIX_SPAWN_DUP2, to_child[0], 0), (os.POSIX_SPAWN_DUP2, from_child[1], 1)]
        pid = os.posix_spawn("/usr/bin/unshare", ["unshare", "--user", "/bin/cat"], {}, file_actions=actions)
        os.close(from_child[1])
        from_child = (from_child[0], -1)
        os.write(to_child[1], b"?")
        if os.read(from_child[0], 1) != b"?":
            raise OSError(errno.EPERM, "no user namespace can be made to translate owners")
        _write_map(f"/proc/{pid}/uid_map", uids)
        _write_map(f"/proc/{pid}/gid_map", gids)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (*to_child, *from_child):
            if fd >= 0:
                os.close(fd)
        if pid:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass  # the host program reaps every child itself


def _write_map(path: str, lines: tuple[tuple[int, int, int], ...]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"".join(b"%d %d %d\n" % line for line in lines))
    finally:
        os.close(fd)


def _exists(id_map: str, number: int) -> bool:
    return any(first <= number < first + count for first, count in _ranges(id_map))


def _last(id_map: str) -> int:
    return max((first + count - 1 for first, count in _ranges(id_map)), default=-1)


def _ranges(id_map: str) -> list[tuple[int, int]]:
    lines = (line.split() for line in id_map.splitlines())
    return [(int(inside), int(count)) for inside, _, count in (line for line in lines if len(line) == 3)]


def _accounts() -> frozenset[int]:
    """Return the ids in the local account files; ids of directory services are far below FIRST_UNUSED."""
    found: set[int] = set()
    for name, columns in (("/etc/passwd", (2, 3)), ("/etc/group", (2,))):
        try:
            with open(name, "rb") as file:
                for line in file:
                    cells = line.split(b":")
                    found.update(int(cells[c]) for c in columns if c < len(cells) and cells[c].isdigit())
        except OSError:
            continue
    return frozenset(found)


#: Capabilities to become another user, and to show that user the granted files.
_CAPABILITIES = {"CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_ADMIN": 21}


def unprivileged_uid() -> int | Obstacle | None:
    """Return an id without an account for root's sandbox; None for an ordinary user, who keeps the own id.

    Real root is never inside.
    """
    if sys.platform != "linux":
        return Obstacle("namespaces are a matter of Linux", "choose backend='seatbelt' on macOS")
    if os.geteuid() != 0:
        return None
    from .process import capabilities

    effective, _, _ = capabilities()
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        return Obstacle(
            f"root lacks the capabilities {', '.join(missing)}: the sandbox would run as root",
            "run staddle as an ordinary user, or as root with all capabilities; of a container, "
            "`staddle doctor --container` prints the options to start it with",
        )
    return unused_id_here() or Obstacle(
        "no other id exists in this user namespace: the sandbox would have to run as root",
        "run staddle as an ordinary user",
    )
