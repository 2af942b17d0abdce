"""Confine the gateway: it can use the sockets that it has or makes, and nothing else.

It reads what sandboxes and strangers on the internet send. Should one of them take it over,
there is nothing in this process to take: no file can be opened, no program started, no other
process touched or looked into, and of sockets only TCP and UDP can be made.
"""

from __future__ import annotations

import errno
import os
import resource
import struct

from ...linux import landlock, process, syscalls
from ...linux.seccomp import load
from ...linux.seccomp.language import names

_NOBODY, _FILES = 65534, 8192

#: All that CPython and the loop need once everything is loaded. Every other call fails.
CALLS = names(
    "accept4 brk clock_gettime close connect epoll_ctl epoll_pwait epoll_pwait2 epoll_wait exit exit_group "
    "fcntl futex getpeername getpid getrandom getsockname getsockopt madvise mmap mprotect mremap "
    "munmap pipe2 read recvfrom recvmsg restart_syscall rt_sigprocmask rt_sigreturn sendmsg sendto "
    "setsockopt shutdown splice write"
)
#: Calls that are allowed with some values of one argument only: (argument, mask, values) each.
CHECKED = {
    "socket": ((0, 0xFFFFFFFF, (2, 10)), (1, 0xF, (1, 2))),  # AF_INET, AF_INET6; stream, datagram
    "ioctl": ((1, 0xFFFFFFFF, (0x5421,)),),  # FIONBIO, which setblocking() uses
}

_LOAD, _AND, _RETURN, _EQUAL = 0x20, 0x54, 0x06, 0x15
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # EPERM


def program(machine: str | None = None) -> bytes:
    """The filter, as the kernel takes it. Pure."""
    machine = machine or syscalls.architecture()
    code = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, syscalls.AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    for name in CALLS:
        number = syscalls.number(name, machine)
        if number is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for name, checks in CHECKED.items():
        number = syscalls.number(name, machine)
        if number is None:
            continue
        body = []
        for argument, mask, values in checks:
            body += [(_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask)]
            # A value that fits jumps over the others and the refusal behind them.
            body += [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
            body += [(_RETURN, 0, 0, _REFUSE)]
        body += [(_RETURN, 0, 0, _ALLOW)]
        code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def confine() -> int:
    """Give up everything. Called once all modules are loaded and before the first byte is read.

    Returns how many descriptors there may be.
    """
    # Two descriptors for every connection, and no core file of what passes through.
    process.set_rlimits({process.RLIMIT_CORE: (0, 0), process.RLIMIT_NOFILE: (_FILES, _FILES)})
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if os.geteuid() == 0:
        try:
            process.become(_NOBODY, _NOBODY)
        except OSError as error:
            # A root that has no other ids is one of a user namespace: its rights go below.
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
    process.no_new_privs()
    if any(process.capabilities()):
        process.drop_capabilities()
    process.dumpable(False)
    _no_files()
    load(program())
    return files


def _no_files() -> None:
    """Landlock, where there is one: a second line behind the filter, which lets nothing be opened."""
    abi = landlock.abi()
    if not abi:
        return
    asked, _ = landlock.weaken(landlock.EVERYTHING - {"connect_tcp"}, abi)
    fs, net, scope = (landlock.bits(asked, kind) for kind in ("fs", "net", "scope"))
    with landlock.Ruleset(fs, net, scope) as ruleset:
        ruleset.restrict()
