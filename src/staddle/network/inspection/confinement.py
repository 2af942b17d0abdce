"""Confine the inspector: it uses the connections that it is given, and creates none.

It reads hostile requests and responses, and has secrets and the key of the sandbox's authority. An attacker
who takes over this process can open no file and no socket, so they reach only connections that the gateway
has allowed already.
"""

from __future__ import annotations

import struct

from ...linux import syscalls
from ...linux.seccomp import load
from ...linux.seccomp.language import names
from ..gateway.confinement import drop_rights

#: The most open descriptors.
FILES = 1024

#: The system calls that CPython, OpenSSL and the loop need once all modules are loaded. Others fail.
CALLS = names(
    "brk clock_gettime close epoll_ctl epoll_pwait epoll_pwait2 epoll_wait exit exit_group fcntl futex "
    "getpeername getpid getrandom getsockname getsockopt gettid madvise mmap mprotect mremap munmap read "
    "recvfrom recvmsg restart_syscall rt_sigprocmask rt_sigreturn sendmsg sendto setsockopt shutdown write"
)
_FIONBIO, _MADE_EXECUTABLE = 0x5421, 4
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # EPERM


def program(machine: str | None = None) -> bytes:
    """Return the seccomp filter as bytes for the kernel. Pure.

    Memory never becomes executable, and ioctl only switches whether a socket blocks.
    """
    machine = machine or syscalls.architecture()
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, syscalls.AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, 0))
    for name in CALLS:
        number = syscalls.number(name, machine)
        if number is None:
            continue
        if name in ("mmap", "mprotect"):
            code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, 32), (_ANY_BIT, 0, 1, _MADE_EXECUTABLE)]
            code += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        else:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    number = syscalls.number("ioctl", machine)
    if number is not None:
        code += [(_EQUAL, 0, 3, number), (_LOAD, 0, 0, 24), (_EQUAL, 0, 1, _FIONBIO), (_RETURN, 0, 0, _ALLOW)]
    code.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def confine() -> None:
    """Drop all rights. Call it after all modules, authorities and contexts are loaded."""
    drop_rights(FILES)
    load(program())
