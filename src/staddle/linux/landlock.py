"""Landlock: limit what a process may do to files, ports, sockets and other processes.

A ruleset *handles* rights: it refuses all of these unless a rule allows them for a path or a port. The kernel
added rights with its ABI versions, so they are a table. A pure function returns which of the requested rights
a kernel cannot enforce.

No ABI here covers stat, chmod, chown, utime, xattrs, chdir and O_PATH of files outside. See
https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, Self


#: kind: name: (bit, the ABI that added it, whether it applies to files that are not directories). ABI 1 to 7
#: are tested. Newer rights are from the kernel's documentation and never requested here. A kernel that has
#: them enforces the older rights in the same way.
RIGHTS: dict[str, dict[str, tuple[int, int, bool]]] = {
    "fs": {
        "execute": (1 << 0, 1, True),
        "write_file": (1 << 1, 1, True),
        "read_file": (1 << 2, 1, True),
        "read_dir": (1 << 3, 1, False),
        "remove_dir": (1 << 4, 1, False),
        "remove_file": (1 << 5, 1, False),
        "make_char": (1 << 6, 1, False),
        "make_dir": (1 << 7, 1, False),
        "make_reg": (1 << 8, 1, False),
        "make_sock": (1 << 9, 1, False),
        "make_fifo": (1 << 10, 1, False),
        "make_block": (1 << 11, 1, False),
        "make_sym": (1 << 12, 1, False),
        "refer": (1 << 13, 2, False),  # link and rename across directories
        "truncate": (1 << 14, 3, True),
        "ioctl_dev": (1 << 15, 5, True),
        "resolve_unix": (1 << 16, 9, True),
    },
    "net": {
        "bind_tcp": (1 << 0, 4, False),
        "connect_tcp": (1 << 1, 4, False),
        "bind_udp": (1 << 2, 10, False),
        "connect_send_udp": (1 << 3, 10, False),
    },
    "scope": {
        "abstract_unix_socket": (1 << 0, 6, False),
        "signal": (1 << 1, 6, False),
    },
}
NEWEST_RUN = 7

#: The ABI that added each right, of any kind.
SINCE = {name: row[1] for kind in RIGHTS.values() for name, row in kind.items()}

EVERYTHING = frozenset(name for name, since in SINCE.items() if since <= NEWEST_RUN)
FILES = frozenset(RIGHTS["fs"]) & EVERYTHING
TCP = frozenset({"bind_tcp", "connect_tcp"})
SCOPES = frozenset({"abstract_unix_socket", "signal"})

#: Rights to allow beneath a path. Device nodes are never made, and ioctl on devices is a separate decision.
READ = frozenset({"execute", "read_file", "read_dir"})
WRITE = FILES - {"make_char", "make_block", "ioctl_dev"}

_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2


def abi() -> int:
    """Return the kernel's Landlock version; 0 if there is none. `why_not` returns the reason."""
    return _probe()[0]


def why_not() -> str:
    """Return why `abi()` is 0; empty if it is not."""
    return _probe()[1]


def _probe() -> tuple[int, str]:
    try:
        return call("landlock_create_ruleset", None, 0, _VERSION), ""
    except OSError as error:
        reasons = {
            errno.ENOSYS: "this kernel has no Landlock (older than 5.13, or built without it)",
            errno.EOPNOTSUPP: "the kernel has Landlock but it is switched off (not in the lsm= list)",
        }
        return 0, reasons.get(error.errno or 0, f"Landlock is refused here ({os.strerror(error.errno or 0)})")


def weaken(asked: Iterable[str], version: int) -> tuple[frozenset[str], frozenset[str]]:
    """Split the requested rights into those that ABI `version` enforces and those that it cannot."""
    wanted = frozenset(asked)
    kept = frozenset(name for name in wanted if SINCE[name] <= version)
    return kept, wanted - kept


def bits(names: Iterable[str], kind: Literal["fs", "net", "scope"]) -> int:
    """Return the kernel's bits for the rights of one kind."""
    return sum(RIGHTS[kind][name][0] for name in frozenset(names) if name in RIGHTS[kind])


_FILE_BITS = sum(bit for bit, _, on_files in RIGHTS["fs"].values() if on_files)


def attributes(fs: int, net: int, scoped: int) -> bytes:
    """Return struct landlock_ruleset_attr, no longer than these rights need: old kernels refuse more."""
    whole = struct.pack("QQQ", fs, net, scoped)
    return whole if scoped else whole[:16] if net else whole[:8]


class Ruleset:
    """Rights that will be refused, and exceptions; in force after `restrict`."""

    def __init__(self, fs: int, net: int = 0, scoped: int = 0) -> None:
        attr = attributes(fs, net, scoped)
        self._handled_fs, self._handled_net = fs, net
        self.fd = call("landlock_create_ruleset", attr, len(attr), 0)

    def allow_beneath(self, fd: int, rights: int) -> None:
        """Allow `rights` on the open file or directory `fd`, and on everything below it."""
        allowed = rights & self._handled_fs
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            allowed &= _FILE_BITS
        if allowed:
            call("landlock_add_rule", self.fd, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)

    def allow_port(self, port: int, rights: int) -> None:
        """Allow `rights` for a TCP port, at every address."""
        if rights & self._handled_net:
            attr = struct.pack("QQ", rights & self._handled_net, port)
            call("landlock_add_rule", self.fd, _NET_PORT, attr, 0)

    def restrict(self) -> None:
        """Enforce it for this thread and its children, forever. Needs no_new_privs."""
        call("landlock_restrict_self", self.fd, 0)

    def close(self) -> None:
        """Close the ruleset. Restrictions stay in force."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
