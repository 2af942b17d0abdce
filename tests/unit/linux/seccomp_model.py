"""What the filter must answer, written a second time and apart from the rule table.

Nothing here comes from `staddle`: the numbers are seccompy's, the constants Python's, and the
decisions are plain code. A slip in the table, in its constants or in the compiler shows as a
difference from this.
"""

from __future__ import annotations

import errno
import resource
import socket
import stat
import termios

from seccompy import AUDIT_ARCH_AARCH64, AUDIT_ARCH_X86_64, Action
from seccompy.syscalls import AARCH64_SYSCALLS, X86_64_SYSCALLS

ALLOW, KILL, NOTIFY = int(Action.ALLOW), int(Action.KILL_PROCESS), int(Action.USER_NOTIF)
ARCHITECTURE = {"aarch64": AUDIT_ARCH_AARCH64, "x86_64": AUDIT_ARCH_X86_64}
NEWEST = 469
CALLS = {
    # 403 to 423 are the calls with 64-bit time of 32-bit machines: this architecture lacks them
    "aarch64": {nr: name for name, nr in AARCH64_SYSCALLS.items() if nr <= NEWEST and not 403 <= nr <= 423},
    "x86_64": {nr: name for name, nr in X86_64_SYSCALLS.items() if nr <= NEWEST},
}
STREAMS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)


def fails(error: int) -> int:
    return int(Action.ERRNO) | error


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER_EPERM = words(
    """
    mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
    mount_setattr setns
    kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl
    quotactl_fd syslog vhangup settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
    iopl ioperm lookup_dcookie nfsservctl
    fanotify_init fanotify_mark name_to_handle_at open_by_handle_at
    bpf perf_event_open userfaultfd
    pidfd_getfd mbind set_mempolicy set_mempolicy_home_node move_pages migrate_pages
    """
)
NEVER_ENOSYS = words(
    """
    statmount listmount clone3
    modify_ldt uselib ustat sysfs _sysctl create_module get_kernel_syms query_module
    io_uring_setup io_uring_enter io_uring_register
    keyctl add_key request_key
    memfd_secret cachestat file_getattr file_setattr lsm_get_self_attr lsm_set_self_attr lsm_list_modules
    kcmp process_madvise process_mrelease
    """
)
SYSTEM_V = words(
    """
    shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
    """
)
SIGNAL_OR_READ = words(
    """
    kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open process_vm_readv process_vm_writev
    """
)


def expected(profile: str, machine: str, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
    """The answer to one call."""
    if architecture != ARCHITECTURE[machine]:
        return KILL
    if number == 0xFFFFFFFF:  # a tracer has answered it
        return ALLOW
    name = CALLS[machine].get(number)
    if name is None:
        return fails(errno.ENOSYS)
    low = tuple(argument % 2**32 for argument in arguments)
    kind, nosuid = profile.removesuffix("-nosuid"), profile.endswith("-nosuid")
    answer = _by_kind(kind, name, low, arguments)
    if answer == ALLOW and nosuid:
        return _setuid(name, low)
    return answer


def _by_kind(kind: str, name: str, low: tuple[int, ...], full: tuple[int, ...]) -> int:
    if name in NEVER_EPERM:
        return fails(errno.EPERM)
    if name in NEVER_ENOSYS or (name in SYSTEM_V and kind.startswith("landlock")):
        return fails(errno.ENOSYS)
    if _is_eperm(kind, name, low, full[0]):
        return fails(errno.EPERM)
    if name in ("setrlimit", "prlimit64"):
        return _core_limit(name, low, full)
    if name == "socket":
        return _socket(kind, *low[:3])
    if name == "socketpair":
        if low[0] != socket.AF_UNIX:
            return fails(errno.EAFNOSUPPORT)
        if kind.startswith("landlock") and low[1] % 16 not in STREAMS:
            return fails(errno.EPERM)
    if name == "connect" and kind.startswith("landlock"):
        return NOTIFY
    if name == "listen" and kind == "landlock-tcp":
        return NOTIFY
    if name == "setsockopt" and kind != "landlock" and low[1:3] == (socket.IPPROTO_TCP, 31):
        return fails(errno.ENOPROTOOPT)
    flags = {"sendto": 3, "sendmmsg": 3, "sendmsg": 2}.get(name)
    if kind == "landlock-tcp" and flags is not None and low[flags] & socket.MSG_FASTOPEN:
        return fails(errno.EOPNOTSUPP)
    return ALLOW


def _is_eperm(kind: str, name: str, low: tuple[int, ...], first: int) -> bool:
    """The calls that are fine with some arguments and EPERM with others."""
    if name == "unshare":
        # all but THREAD, SYSVSEM, SIGHAND, FILES, FS, VM
        return first & ~(0x00010000 | 0x00040000 | 0x00000800 | 0x00000400 | 0x00000200 | 0x00000100) != 0
    if name == "clone":
        # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; PARENT
        return low[0] & 0x7E020000 != 0 or low[0] & 0x8000 != 0
    if name in ("mknod", "mknodat"):
        mode = low[1] if name == "mknod" else low[2]
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    if name == "renameat2":
        return low[4] & (1 << 2) != 0
    if name in SIGNAL_OR_READ:
        return low[0] == 1
    if name == "ptrace":
        return low[1] == 1
    if name == "prlimit64":
        return low[0] == 1 if kind == "namespaces" else low[0] != 0
    if name == "setpriority":
        return kind != "namespaces" and low[0] == 2
    if name == "ioprio_set":
        return kind != "namespaces" and low[0] == 3
    if name == "personality":
        return low[0] != 0xFFFFFFFF and low[0] | 0x0040000 | 0x0020000 | 8 != 0x0060008
    if name == "prctl":
        return low[0] in (35, 62, 67)
    if name == "seccomp":
        return low[0] == 1 and low[1] & 8 == 8
    if name == "ioctl":
        return low[1] in (termios.TIOCSTI, termios.TIOCLINUX, termios.TIOCCONS, termios.TIOCSETD)
    return False


def _core_limit(name: str, low: tuple[int, ...], full: tuple[int, ...]) -> int:
    if name == "setrlimit":
        return fails(0) if low[0] == resource.RLIMIT_CORE else ALLOW
    if low[1] != resource.RLIMIT_CORE or full[2] == 0:
        return ALLOW
    return fails(0) if full[3] == 0 else fails(errno.EPERM)


def _socket(kind: str, family: int, type_: int, protocol: int) -> int:
    if family == socket.AF_UNIX:
        wrong = kind.startswith("landlock") and type_ % 16 not in STREAMS
        return fails(errno.EPERM) if wrong else ALLOW
    if kind == "landlock":
        return fails(errno.EAFNOSUPPORT)
    if kind == "landlock-tcp":
        return _tcp_socket(family, type_, protocol)
    if family == socket.AF_NETLINK:
        return ALLOW if protocol == socket.NETLINK_ROUTE else fails(errno.EPROTONOSUPPORT)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return fails(errno.EAFNOSUPPORT)
    if type_ % 16 not in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        return fails(errno.ESOCKTNOSUPPORT)
    if protocol not in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return fails(errno.EPROTONOSUPPORT)
    return ALLOW


def _tcp_socket(family: int, type_: int, protocol: int) -> int:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return fails(errno.EAFNOSUPPORT)
    if type_ % 16 != socket.SOCK_STREAM:
        return fails(errno.ESOCKTNOSUPPORT)
    return ALLOW if protocol in (0, socket.IPPROTO_TCP) else fails(errno.EPROTONOSUPPORT)


def _setuid(name: str, low: tuple[int, ...]) -> int:
    if name == "openat2":
        return fails(errno.ENOSYS)
    if name in ("open", "openat"):
        flags, mode = low[1:3] if name == "open" else low[2:4]
        if not flags & 0o20000100:  # __O_TMPFILE, O_CREAT
            return ALLOW
    elif name in ("chmod", "fchmod", "creat", "mknod"):
        mode = low[1]
    elif name in ("fchmodat", "fchmodat2", "mknodat"):
        mode = low[2]
    else:
        return ALLOW
    return fails(errno.EPERM) if mode & (stat.S_ISUID | stat.S_ISGID) else ALLOW
