"""Confine the gateway: it can use the sockets that it has or creates, and nothing else.

The gateway reads data from sandboxes and from the internet. An attacker who takes over this process can open
no file, start no program, and neither signal nor inspect another process. It can create only TCP and UDP
sockets.
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

#: The system calls that CPython and the loop need once all modules are loaded. Every other call fails.
CALLS = names(
    "accept4 brk clock_gettime close connect epoll_ctl epoll_pwait epoll_pwait2 epoll_wait exit exit_group "
    "fcntl futex getpeername getpid getrandom getsockname getsockopt madvise mmap mprotect mremap "
    "munmap pipe2 read recvfrom recvmsg restart_syscall rt_sigprocmask rt_sigreturn sendmsg sendto "
    "setsockopt shutdown splice write"
)
#: System calls that are allowed only for some values of an argument, as (argument, mask, values).
CHECKED = {
    "socket": ((0, 0xFFFFFFFF, (2, 10)), (1, 0xF, (1, 2))),  # AF_INET, AF_INET6; stream, datagram
    "ioctl": ((1, 0xFFFFFFFF, (0x5421,)),),  # FIONBIO, which setblocking() uses
}

_LOAD, _AND, _RETURN, _EQUAL = 0x20, 0x54, 0x06, 0x15
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # EPERM


def program(machine: str | None = None) -> bytes:
    """Return the seccomp filter as bytes for the kernel. Pure."""
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
            # A matching value jumps over the other values and the refusal after them.
            body += [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
            body += [(_RETURN, 0, 0, _REFUSE)]
        body += [(_RETURN, 0, 0, _ALLOW)]
        code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def confine() -> int:
    """Drop all rights. Call it after all modules are loaded and before the first byte is read.

    Returns the limit of open descriptors.
    """
    files = drop_rights(_FILES, kept=frozenset(("connect_tcp",)))  # a connection needs two descriptors
    load(program())
    return files


def drop_rights(most_files: int, kept: frozenset[str] = frozenset()) -> int:
    """Drop all rights of this process. A system call filter comes after it.

    Landlock, if the kernel has it, refuses everything except `kept`: a second layer behind the filter.
    Returns the limit of open descriptors.
    """
    # No core file may contain relayed data.
    process.set_rlimits({process.RLIMIT_CORE: (0, 0), process.RLIMIT_NOFILE: (most_files, most_files)})
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if os.geteuid() == 0:
        try:
            process.become(_NOBODY, _NOBODY)
        except OSError as error:
            # Root in a user namespace may have no other ids; its capabilities are dropped below.
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
    process.no_new_privs()
    if any(process.capabilities()):
        process.drop_capabilities()
    process.dumpable(False)
    abi = landlock.abi()
    if abi:
        asked, _ = landlock.weaken(landlock.EVERYTHING - kept, abi)
        fs, net, scope = (landlock.bits(asked, kind) for kind in ("fs", "net", "scope"))
        with landlock.Ruleset(fs, net, scope) as ruleset:
            ruleset.restrict()
    return files
