"""System calls by name: the numbers per architecture, and one way to call them.

Numbers are data. A call that an architecture does not have is None there. Every call goes through `call`,
which raises OSError like Python's own functions. So no return value is overlooked.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes as ctypes  # noqa: PLC0414 - others import it from here
    from collections.abc import Sequence


def _load_ctypes() -> object:
    """Import ctypes without threading: from Python 3.14 on it imports sysconfig, for other platforms.

    To keep the start fast, a placeholder replaces sysconfig while ctypes is loaded. It imports the real
    module on first use. If threads may be running, nothing is replaced.
    """
    if "ctypes" in sys.modules or "sysconfig" in sys.modules or "threading" in sys.modules:
        import ctypes

        return ctypes
    placeholder = type(sys)("sysconfig")
    placeholder.__getattr__ = lambda name: getattr(__import__("sysconfig"), name)  # type: ignore[method-assign]
    sys.modules["sysconfig"] = placeholder
    try:
        import ctypes
    finally:
        del sys.modules["sysconfig"]
    return ctypes


if not TYPE_CHECKING:
    ctypes = _load_ctypes()

#: name: (aarch64, x86_64)
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (None, 156),
    "accept4": (242, 288),
    "acct": (89, 163),
    "add_key": (217, 248),
    "adjtimex": (171, 159),
    "bpf": (280, 321),
    "brk": (214, 12),
    "cachestat": (451, 451),
    "capget": (90, 125),
    "capset": (91, 126),
    "chdir": (49, 80),
    "chmod": (None, 90),
    "chown": (None, 92),
    "chroot": (51, 161),
    "clock_adjtime": (266, 305),
    "clock_gettime": (113, 228),
    "clock_settime": (112, 227),
    "clone": (220, 56),
    "clone3": (435, 435),
    "close": (57, 3),
    "close_range": (436, 436),
    "connect": (203, 42),
    "creat": (None, 85),
    "create_module": (None, 174),
    "delete_module": (106, 176),
    "dup3": (24, 292),
    "epoll_ctl": (21, 233),
    "epoll_pwait": (22, 281),
    "epoll_pwait2": (441, 441),
    "epoll_wait": (None, 232),
    "execve": (221, 59),
    "execveat": (281, 322),
    "exit": (93, 60),
    "exit_group": (94, 231),
    "fanotify_init": (262, 300),
    "fanotify_mark": (263, 301),
    "fchmod": (52, 91),
    "fchmodat": (53, 268),
    "fchmodat2": (452, 452),
    "fchown": (55, 93),
    "fchownat": (54, 260),
    "fcntl": (25, 72),
    "file_getattr": (468, 468),
    "file_setattr": (469, 469),
    "finit_module": (273, 313),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futex": (98, 202),
    "get_kernel_syms": (None, 177),
    "getgroups": (158, 115),
    "getpeername": (205, 52),
    "getpid": (172, 39),
    "getppid": (173, 110),
    "getrandom": (278, 318),
    "getresgid": (150, 120),
    "getresuid": (148, 118),
    "getsockname": (204, 51),
    "getsockopt": (209, 55),
    "gettid": (178, 186),
    "init_module": (105, 175),
    "inotify_init1": (26, 294),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (29, 16),
    "ioperm": (None, 173),
    "iopl": (None, 172),
    "ioprio_set": (30, 251),
    "kcmp": (272, 312),
    "kexec_file_load": (294, 320),
    "kexec_load": (104, 246),
    "keyctl": (219, 250),
    "kill": (129, 62),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (None, 94),
    "linkat": (37, 265),
    "listen": (201, 50),
    "listmount": (458, 458),
    "lookup_dcookie": (18, 212),
    "lsm_get_self_attr": (459, 459),
    "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460),
    "madvise": (233, 28),
    "mbind": (235, 237),
    "memfd_create": (279, 319),
    "memfd_secret": (447, 447),
    "migrate_pages": (238, 256),
    "mkdir": (None, 83),
    "mkdirat": (34, 258),
    "mknod": (None, 133),
    "mknodat": (33, 259),
    "mmap": (222, 9),
    "modify_ldt": (None, 154),
    "mount": (40, 165),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (239, 279),
    "mprotect": (226, 10),
    "mq_open": (180, 240),
    "mq_unlink": (181, 241),
    "mremap": (216, 25),
    "msgctl": (187, 71),
    "msgget": (186, 68),
    "msgrcv": (188, 70),
    "msgsnd": (189, 69),
    "munmap": (215, 11),
    "name_to_handle_at": (264, 303),
    "nfsservctl": (42, 180),
    "open": (None, 2),
    "open_by_handle_at": (265, 304),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (56, 257),
    "openat2": (437, 437),
    "perf_event_open": (241, 298),
    "personality": (92, 135),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pipe2": (59, 293),
    "pivot_root": (41, 155),
    "ppoll": (73, 271),
    "prctl": (167, 157),
    "prlimit64": (261, 302),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (270, 310),
    "process_vm_writev": (271, 311),
    "ptrace": (117, 101),
    "query_module": (None, 178),
    "quotactl": (60, 179),
    "quotactl_fd": (443, 443),
    "read": (63, 0),
    "readlinkat": (78, 267),
    "reboot": (142, 169),
    "recvfrom": (207, 45),
    "recvmsg": (212, 47),
    "renameat2": (276, 316),
    "request_key": (218, 249),
    "restart_syscall": (128, 219),
    "rt_sigaction": (134, 13),
    "rt_sigprocmask": (135, 14),
    "rt_sigqueueinfo": (138, 129),
    "rt_sigreturn": (139, 15),
    "rt_tgsigqueueinfo": (240, 297),
    "sched_setaffinity": (122, 203),
    "sched_setscheduler": (119, 144),
    "seccomp": (277, 317),
    "semctl": (191, 66),
    "semget": (190, 64),
    "semop": (193, 65),
    "semtimedop": (192, 220),
    "sendmmsg": (269, 307),
    "sendmsg": (211, 46),
    "sendto": (206, 44),
    "set_mempolicy": (237, 238),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (162, 171),
    "setgid": (144, 106),
    "setgroups": (159, 116),
    "sethostname": (161, 170),
    "setns": (268, 308),
    "setpriority": (140, 141),
    "setregid": (143, 114),
    "setresgid": (149, 119),
    "setresuid": (147, 117),
    "setreuid": (145, 113),
    "setrlimit": (164, 160),
    "setsid": (157, 112),
    "setsockopt": (208, 54),
    "settimeofday": (170, 164),
    "setuid": (146, 105),
    "shmat": (196, 30),
    "shmctl": (195, 31),
    "shmget": (194, 29),
    "shutdown": (210, 48),
    "signalfd4": (74, 289),
    "socket": (198, 41),
    "socketpair": (199, 53),
    "splice": (76, 275),
    "statfs": (43, 137),
    "statmount": (457, 457),
    "swapoff": (225, 168),
    "swapon": (224, 167),
    "syncfs": (267, 306),
    "sysfs": (None, 139),
    "syslog": (116, 103),
    "tgkill": (131, 234),
    "tkill": (130, 200),
    "umask": (166, 95),
    "umount2": (39, 166),
    "uname": (160, 63),
    "unshare": (97, 272),
    "uprobe": (None, 336),
    "uretprobe": (None, 335),
    "uselib": (None, 134),
    "userfaultfd": (282, 323),
    "ustat": (None, 136),
    "vfork": (None, 58),
    "vhangup": (58, 153),
    "write": (64, 1),
}

#: The column of NUMBERS, and the value the kernel reports in seccomp_data.arch (AUDIT_ARCH_*).
COLUMN = {"aarch64": 0, "x86_64": 1}
AUDIT_ARCH = {"aarch64": 0xC00000B7, "x86_64": 0xC000003E}
#: The newest call in the tables (Linux 6.18, file_setattr).
LAST_KNOWN = 469

# PyDLL keeps the GIL, so that no other thread runs between a call and reading errno.
_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_Long, _Unsigned = ctypes.c_long, ctypes.c_ulong  # the latter accepts a negative number by its bits
_syscall.restype = _Long


_machine = ""


def architecture() -> str:
    """Return the machine's architecture; OSError if we have no numbers for it."""
    global _machine  # noqa: PLW0603 - asked once: it stays the same, and is needed for every call
    if not _machine:
        machine = os.uname().machine
        if machine not in COLUMN:
            raise OSError(38, f"no system call table for {machine}; staddle runs on {', '.join(COLUMN)}")
        _machine = machine
    return _machine


def number(name: str, machine: str | None = None) -> int | None:
    """Return the number of the call `name`; None if the architecture does not have it."""
    return NUMBERS[name][COLUMN[machine or architecture()]]


def call(name: str, *args: int | bytes | None) -> int:
    """Make the system call `name`. Integers are passed as unsigned longs, bytes as pointers."""
    nr = number(name)
    if nr is None:
        raise OSError(38, f"{name} does not exist on {architecture()}")
    result: int = _syscall(_Long(nr), *[_Unsigned(a) if isinstance(a, int) else a for a in args])
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def plain(number: int, args: Sequence[int]) -> int:
    """Make the system call `number` with integers; return its result, or its error as a negative number."""
    result: int = _syscall(_Long(number), *[_Unsigned(arg) for arg in args])
    return result if result >= 0 else -ctypes.get_errno()
