"""Namespaces that catch what gets through: for controls, and for sandboxes with a protection switched off."""

from __future__ import annotations

import os
import sys

PROGRAM = os.path.abspath(__file__)


def around(*, contained: bool) -> list[str]:
    """A command prefix. `contained`: every namespace, with all capabilities in them.

    Otherwise a mount namespace only, and for an ordinary user, who cannot mount, nothing.
    """
    if contained:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        spaces = [
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--uts",
            "--cgroup",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        return ["unshare", *user, *spaces, "--"]
    if os.geteuid() == 0:
        return ["unshare", "--mount", "--propagation", "private", "--"]
    return []


def same_user() -> list[str]:
    """A command prefix: every namespace but that of the user, who stays the same and gets no rights."""
    return [sys.executable, "-I", "-S", PROGRAM]


def _enter(command: list[str]) -> None:
    """Runs as whoever started it; the command runs as the same user, in namespaces of its own."""
    import ctypes
    import fcntl
    import signal
    import socket
    import struct

    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    uid, gid = os.getuid(), os.getgid()
    spaces = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount, uts, ipc, pid, net
    checked(libc.unshare(spaces | (0 if uid == 0 else 0x10000000)))
    if uid:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os.kill(child, signal.SIGKILL))
        _, status = os.waitpid(child, 0)
        sys.exit(_as_a_shell(status))
    libc.prctl(1, signal.SIGKILL)
    checked(libc.mount(b"none", b"/", None, ctypes.c_ulong(0x44000), None))  # private, all the way down
    checked(libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(14), None))
    with socket.socket() as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 1))  # the loopback is up
    init = os.fork()  # PID 1 only waits: what dies in here must not end the namespace early
    if init:
        while True:
            pid, status = os.wait()
            if pid == init:
                os._exit(_as_a_shell(status))
    os.execvp(command[0], command)  # noqa: S606 - no shell, on purpose


def _as_a_shell(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    _enter(sys.argv[1:])
