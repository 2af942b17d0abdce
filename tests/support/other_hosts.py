"""Make this process see a host that refuses something, then become the given command.

    python other_hosts.py TRAIT[=VALUE]... -- COMMAND...

Traits stand for hosts we cannot have here: a container whose filter refuses namespaces, a
kernel without Landlock, a masked /proc, a bwrap that is missing or lies. They change only
this process and its children: a seccomp filter, or mounts in a namespace of their own.
Standard library only, and nothing of staddle: it must not share its mistakes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

NUMBERS = {
    "x86_64": {
        "clone": 56,
        "unshare": 272,
        "clone3": 435,
        "landlock_create_ruleset": 444,
        "mount_setattr": 442,
        "move_mount": 429,
        "seccomp": 317,
        "prctl": 157,
    },
    "aarch64": {
        "clone": 220,
        "unshare": 97,
        "clone3": 435,
        "landlock_create_ruleset": 444,
        "mount_setattr": 442,
        "move_mount": 429,
        "seccomp": 277,
        "prctl": 167,
    },
}[os.uname().machine]
NAMESPACES = 0x7E020080
NEWNS, NEWUSER = 0x20000, 0x10000000
libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def load_filter(rows: list[tuple[int, int, int, int]]) -> None:
    """Load a seccomp program; everything it does not answer is allowed."""
    program = b"".join(struct.pack("HBBI", *row) for row in rows)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(buffer))
    checked(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    checked(
        libc.syscall(ctypes.c_long(NUMBERS["seccomp"]), ctypes.c_long(1), ctypes.c_long(0), head), "seccomp"
    )


def refuse(name: str, number: int) -> None:
    """Answer every call of `name` with an error."""
    load_filter(
        [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBERS[name]), (6, 0, 0, 0x50000 | number), (6, 0, 0, 0x7FFF0000)]
    )


def no_filters() -> None:
    """A kernel without seccomp filters: neither of the two calls loads one."""
    load_filter(
        [
            (0x20, 0, 0, 0),
            (0x15, 0, 3, NUMBERS["prctl"]),
            (0x20, 0, 0, 16),
            (0x15, 0, 1, 22),  # PR_SET_SECCOMP
            (6, 0, 0, 0x50000 | errno.EINVAL),
            (6, 0, 0, 0x7FFF0000),
        ]
    )
    refuse("seccomp", errno.EINVAL)


def no_namespaces() -> None:
    """As a container runtime's default filter does: no new namespace by any call."""
    for name in ("unshare", "clone"):
        load_filter(
            [
                (0x20, 0, 0, 0),
                (0x15, 0, 3, NUMBERS[name]),
                (0x20, 0, 0, 16),
                (0x45, 0, 1, NAMESPACES & (~0x80 if name == "clone" else ~0)),
                (6, 0, 0, 0x50000 | errno.EPERM),
                (6, 0, 0, 0x7FFF0000),
            ]
        )
    refuse("clone3", errno.ENOSYS)


def own_mounts() -> None:
    """A mount namespace of our own; as an ordinary user inside a user namespace that maps us to ourselves."""
    uid, gid = os.getuid(), os.getgid()
    if os.geteuid() == 0:
        checked(libc.unshare(NEWNS), "unshare")
    else:
        checked(libc.unshare(NEWUSER | NEWNS), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    mount(None, "/", None, 0x4000 | (1 << 18))


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    encode = lambda text: None if text is None else os.fsencode(text)  # noqa: E731
    checked(
        libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), None),
        f"mount {target}",
    )


def masked_proc() -> None:
    """As containers mask it: parts of /proc covered, so the kernel refuses a new proc mount to users."""
    own_mounts()
    mount("tmpfs", "/proc/sys", "tmpfs", 1)
    mount("/dev/null", "/proc/keys", None, 4096)


def replaced(pair: str) -> None:
    """PATH:OTHER puts OTHER in the place of PATH."""
    path, _, other = pair.partition(":")
    own_mounts()
    mount(other, path, None, 4096)


def main() -> None:
    split = sys.argv.index("--")
    for trait in sys.argv[1:split]:
        name, _, value = trait.partition("=")
        if name == "no-namespaces":
            no_namespaces()
        elif name == "no-landlock":
            refuse("landlock_create_ruleset", errno.ENOSYS if value != "disabled" else errno.EOPNOTSUPP)
        elif name == "no-mount-attributes":  # Linux before 5.12
            refuse("mount_setattr", errno.ENOSYS)
        elif name == "no-move-mount":
            refuse("move_mount", errno.ENOSYS)
        elif name == "no-seccomp-filters":
            no_filters()
        elif name == "masked-proc":
            masked_proc()
        elif name == "replaced":
            replaced(value)
        else:
            raise SystemExit(f"no trait {name}")
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])  # noqa: S606


main()
