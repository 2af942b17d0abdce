"""Being root inside: with a root's rights over what is the sandbox's, and none over anything else.

The capabilities count in a user namespace of the sandbox, and for files only where an owner is
known there. No mount, no network and no process of ours belongs to it. What is not among them
is not needed to install packages: no devices, no tracing, no administration.
"""

from __future__ import annotations

import os

from ...linux import process, userns
from ...linux.syscalls import call

#: chown, dac_override, fowner, fsetid, kill, setgid, setuid.
RIGHTS = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7
#: Who is who, where there is one id for everybody: the sandbox's user is its root, too.
MAPS = (("uid_map", b"0 0 1"), ("gid_map", b"0 0 1"))


def enter_alone() -> None:
    """Be in a new user namespace in which the one id that there is has the name 0.

    Called by a child of the agent. It can be looked into for a moment, as far as the kernel goes by
    ids; but a process in another user namespace of the sandbox has no right to.
    """
    process.dumpable(True)  # else our own maps would be closed to us
    call("unshare", userns.CLONE_NEWUSER)
    for name, text in (("setgroups", b"deny"), *MAPS):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
