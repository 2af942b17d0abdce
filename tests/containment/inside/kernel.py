"""Calls that reach parts of the kernel which no program here needs.

The arguments are useless on purpose: an attack that is let through gets EFAULT, EINVAL or
EBADF from the kernel, and nothing happens. The answers of the filter itself are tested rule
by rule elsewhere; these show that it is on for the confined command.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal

from .kit import Refused, World, address, attack, call, number

NO = "EPERM ENOSYS"
BAD = 1  # an address that nothing is mapped at

#: name of the call: (arguments, errors that show it was carried out, control)
CALLS: dict[str, tuple[tuple[int | bytes, ...], str, str]] = {
    "io_uring_setup": ((1, BAD), "EFAULT", "plain"),
    "io_uring_enter": ((-1, 0, 0, 0, 0, 0), "EBADF ENOTSUP EOPNOTSUPP", "plain"),
    "io_uring_register": ((-1, 0, 0, 0), "EBADF EINVAL", "plain"),
    "bpf": ((99, BAD, 8), "EFAULT EINVAL", "root"),
    "perf_event_open": ((BAD, 0, -1, -1, 0), "EFAULT", "plain"),
    "userfaultfd": ((1,), "EINVAL", "plain"),
    "name_to_handle_at": ((-100, b"/\0", BAD, BAD, 0), "EFAULT", "plain"),
    "open_by_handle_at": ((-100, BAD, 0), "EFAULT", "root"),
    "fanotify_init": ((0x80000000, 0), "EINVAL", "root"),
    "memfd_secret": ((0x80,), "EINVAL", "plain"),
    "pidfd_getfd": ((-1, 0, 0), "EBADF", "plain"),
    "process_madvise": ((-1, BAD, 1, 0, 0), "EBADF EFAULT EINVAL", "plain"),
    "kcmp": ((-1, -1, 0, 0, 0), "ESRCH", "plain"),
    "mbind": ((0, 4096, 99, 0, 0, 0), "EINVAL", "plain"),
    "set_mempolicy": ((99, 0, 0), "EINVAL", "plain"),
    "migrate_pages": ((-1, 1, BAD, BAD), "EFAULT ESRCH EINVAL", "plain"),
    "add_key": ((BAD, BAD, 0, 0, 0), "EFAULT", "plain"),
    "keyctl": ((999, 0, 0, 0, 0), "ENOTSUP EOPNOTSUPP", "plain"),
    "request_key": ((BAD, BAD, 0, 0), "EFAULT", "plain"),
    "kexec_load": ((0, 0, 0, 0xFFFF), "EINVAL", "root"),
    "init_module": ((BAD, 0, BAD), "EFAULT ENOEXEC", "root"),
    "finit_module": ((-1, BAD, 0), "EBADF EFAULT", "root"),
    "delete_module": ((BAD, 0), "EFAULT", "root"),
    "reboot": ((0, 0, 0, 0), "EINVAL", "root"),
    "swapon": ((BAD, 0), "EFAULT", "root"),
    "swapoff": ((BAD,), "EFAULT", "root"),
    "acct": ((BAD,), "EFAULT", "root"),
    "quotactl": ((0xFFFF0000, BAD, 0, 0), "EFAULT EINVAL ENODEV", "root"),
    "syslog": ((9999, 0, 0), "EINVAL", "root"),
    "settimeofday": ((BAD, 0), "EFAULT", "plain"),
    "clock_settime": ((0, BAD), "EFAULT", "plain"),
    "adjtimex": ((BAD,), "EFAULT", "plain"),
    "sethostname": ((BAD, 9999), "EINVAL", "contained"),
    "setdomainname": ((BAD, 9999), "EINVAL", "contained"),
    "lookup_dcookie": ((0, BAD, 0), "EINVAL", "root"),
    "vhangup": ((), "", ""),
    "personality": ((0x0400000,), "", "plain"),  # READ_IMPLIES_EXEC, of a child that ends at once
}


def _declare_calls() -> None:
    for name, (arguments, reached, control) in CALLS.items():

        def made(world: World, name=name, arguments=arguments) -> int:
            return call(name, *arguments)

        attack("filter", NO, name=f"call-{name}", reached=reached, control=control, optional="ENOSYS")(made)


_declare_calls()


@attack("filter", NO)
def install_a_filter_with_a_listener(world: World) -> int:
    """seccomp(SET_MODE_FILTER, NEW_LISTENER): to answer the calls of other processes."""
    program = ctypes.create_string_buffer(
        (6).to_bytes(2, "little") + bytes(2) + (0x7FFF0000).to_bytes(4, "little")
    )
    head = (ctypes.c_uint64 * 2)(1, ctypes.addressof(program))
    call("prctl", 38, 1, 0, 0, 0)
    return call("seccomp", 1, 8, address(head))


@attack("filter", "EPERM ENOSYS SIGSYS nothing", optional="nothing")
def call_by_the_32_bit_interface(world: World) -> int:
    """int 0x80 reaches another table of calls: a filter that does not check for it sees wrong numbers."""
    if number("ioperm") is None:
        raise Refused("not on this architecture")
    # mov eax, 20 (getpid of i386); int 0x80; ret
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(where)()
    if answer != os.getpid():
        raise OSError(38, "the kernel has no such interface")
    return answer


@attack("filter", "ENOSYS EPERM", optional="ENOSYS")
def call_by_the_x32_interface(world: World) -> int:
    from .kit import libc

    if libc.syscall(ctypes.c_long(0x40000000 | (number("getpid") or 0))) < 0:
        raise OSError(ctypes.get_errno(), "x32")
    return 0


@attack("filter", "nothing")
def dump_core(world: World) -> str:
    """A piped core_pattern runs a program of the host as root; only a limit of exactly 1 stops it."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (OSError, ValueError):
        pass
    if resource.getrlimit(resource.RLIMIT_CORE) == (1, 1):
        raise Refused("the limit is 1 and stays 1")
    return repr(resource.getrlimit(resource.RLIMIT_CORE))


@attack("filter", "EPERM EIO ENOTTY EACCES ENOENT ENXIO", twin="usual-devices")
def type_into_a_terminal_of_our_own(world: World) -> str:
    """TIOCSTI on a pseudo terminal that we control: the filter refuses it on every terminal."""
    import fcntl
    import pty
    import termios

    _, other = pty.openpty()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    fcntl.ioctl(other, termios.TIOCSCTTY, 0)
    fcntl.ioctl(other, termios.TIOCSTI, b"x")
    return "typed"


@attack("filter", "EPERM", twin="usual-devices")
def type_with_high_bits_set(world: World) -> str:
    """The kernel looks at the low 32 bits of the request only; so must the filter."""
    import fcntl
    import pty
    import termios

    _, other = pty.openpty()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    fcntl.ioctl(other, termios.TIOCSCTTY, 0)
    call("ioctl", other, (1 << 32) | termios.TIOCSTI, b"x\0")
    return "typed"


@attack("filter", "EPERM", control="plain", twin="usual-devices")
def change_the_line_discipline(world: World) -> str:
    """TIOCSETD loads kernel modules by number."""
    import fcntl
    import pty

    _, other = pty.openpty()
    fcntl.ioctl(other, 0x5423, (0).to_bytes(4, "little"))  # N_TTY: the one it has
    return "changed"
