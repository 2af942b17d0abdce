"""System calls that confined programs may not make, each with the reason. This is the table to review.

This is a list of refusals, not of permissions. The namespaces or Landlock around the command are the
boundary. The filter refuses calls that these leave open, and calls that programs do not need. It refuses
calls newer than the table, so the list cannot fall behind the kernel.

The error is ENOSYS if libraries have a fallback for a kernel without the call. It is EPERM if the kernel
itself returns that without the right. For sockets it is the error of a protocol that is not built in.

Allowed on purpose: ptrace of processes that may be traced. Without it gdb, strace and every leak check of
AddressSanitizer fail, and the kernel runs the filter after a tracer changed the call. Also `landlock_*`,
`seccomp` without a listener, `rseq`, `memfd_create`, `execveat`, `inotify_*`, `get_mempolicy`, chmod and
chown, and the scheduler calls (limited by RLIMIT_RTPRIO and RLIMIT_NICE).
"""

from __future__ import annotations

from .. import syscalls
from .language import (
    BOTH,
    KILL,
    NOTIFY,
    PRETEND,
    RuleRow,
    SyscallRule,
    any_bit,
    given,
    names,
    none_of,
    one_of,
    other_bit,
    refuse,
)

EPERM, ENOSYS = refuse("EPERM"), refuse("ENOSYS")

#: A tracer writes this over the number of a call that it answers itself. The kernel then runs no call, and an
#: errno of ours would replace the tracer's answer.
NOT_A_CALL = 0xFFFF_FFFF

#: Unassigned numbers below the last known call. Calls have been added there before (uretprobe is 335 on
#: x86_64), and only 32-bit architectures use 403 to 423.
HOLES = {
    "aarch64": (range(244, 260), range(295, 424)),
    "x86_64": (range(337, 424),),
}

UNKNOWN = SyscallRule(
    (), ENOSYS, "a call that has not been judged yet, or an x32 number, which would dodge every other rule"
)


def unknown_numbers(machine: str) -> frozenset[int]:
    """The numbers that get the answer of UNKNOWN; the last stands for all above it."""
    holes = {number for hole in HOLES[machine] for number in hole}
    return frozenset(holes | {syscalls.LAST_KNOWN + 1})


MOUNTS_AND_NAMESPACES = (
    SyscallRule(
        names(
            "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig "
            "fsmount fspick mount_setattr setns"
        ),
        EPERM,
        "mount calls, old and new, could uncover what is masked; setns joins other namespaces",
    ),
    SyscallRule(
        ("statmount", "listmount"), ENOSYS, "a second way to read the mount table; libmount falls back"
    ),
    SyscallRule(
        ("unshare",),
        EPERM,
        "a new namespace hands out capabilities and their kernel surface; an unknown flag may be one",
        (
            other_bit(
                0,
                "flags",
                mask=BOTH,
                CLONE_VM=0x100,
                CLONE_FS=0x200,
                CLONE_FILES=0x400,
                CLONE_SIGHAND=0x800,
                CLONE_THREAD=0x1_0000,
                CLONE_SYSVSEM=0x4_0000,
            ),
        ),
    ),
    SyscallRule(
        ("clone",),
        EPERM,
        # CLONE_NEWTIME (0x80) is part of the exit signal here, and clone() does not honour it.
        "new namespaces, as with unshare; and CLONE_PARENT makes a child its reaper does not know",
        (
            any_bit(
                0,
                "flags",
                CLONE_PARENT=0x8000,
                CLONE_NEWNS=0x2_0000,
                CLONE_NEWCGROUP=0x0200_0000,
                CLONE_NEWUTS=0x0400_0000,
                CLONE_NEWIPC=0x0800_0000,
                CLONE_NEWUSER=0x1000_0000,
                CLONE_NEWPID=0x2000_0000,
                CLONE_NEWNET=0x4000_0000,
            ),
        ),
    ),
    SyscallRule(("clone3",), ENOSYS, "its flags are behind a pointer; glibc, Go and Rust fall back to clone"),
)

_DEVICES = "devices; character device 0:0 needs no capability, and to overlayfs it deletes a file below"
_DEVICE = {"a character device": 0o020000, "a block device": 0o060000}
DEVICES_AND_WHITEOUTS = (
    SyscallRule(
        ("mknod",),
        EPERM,
        _DEVICES,
        (one_of(1, "mode", mask=0o170000, **_DEVICE),),
    ),
    SyscallRule(("mknodat",), EPERM, _DEVICES, (one_of(2, "mode", mask=0o170000, **_DEVICE),)),
    SyscallRule(
        ("renameat2",),
        EPERM,
        "leaves an overlay whiteout (character device 0:0) behind, without mknod",
        (any_bit(4, "flags", RENAME_WHITEOUT=4),),
    ),
)

KERNEL_SURFACE = (
    SyscallRule(
        names(
            "kexec_load kexec_file_load init_module finit_module delete_module reboot acct swapon "
            "swapoff quotactl quotactl_fd syslog vhangup settimeofday adjtimex clock_settime "
            "clock_adjtime sethostname setdomainname iopl ioperm lookup_dcookie nfsservctl"
        ),
        EPERM,
        "administration of the machine: a second line behind having no capability",
    ),
    SyscallRule(
        names("modify_ldt uselib ustat sysfs _sysctl create_module get_kernel_syms query_module"),
        ENOSYS,
        "dead calls, and old x86 ones with a history of bugs",
    ),
    SyscallRule(
        ("fanotify_init", "fanotify_mark", "name_to_handle_at", "open_by_handle_at"),
        EPERM,
        "file handles open things past every path rule, some without a capability; inotify stays",
    ),
    SyscallRule(
        ("bpf", "perf_event_open", "userfaultfd"),
        EPERM,
        "large kernel surface; the sysctls that switch these off give the same error",
    ),
    SyscallRule(
        ("io_uring_setup", "io_uring_enter", "io_uring_register"),
        ENOSYS,
        "does the work of other calls without passing this filter; its users fall back",
    ),
    SyscallRule(
        ("keyctl", "add_key", "request_key"),
        ENOSYS,
        "keyrings are shared with the process that started the sandbox, whatever namespaces it has",
    ),
    SyscallRule(
        names(
            "memfd_secret cachestat file_getattr file_setattr lsm_get_self_attr lsm_set_self_attr "
            "lsm_list_modules"
        ),
        ENOSYS,
        "memory that no other process can see, a page cache side channel, and calls no program needs yet",
    ),
    SyscallRule(
        ("mbind", "set_mempolicy", "set_mempolicy_home_node", "move_pages", "migrate_pages"),
        EPERM,
        "NUMA placement has a history of kernel bugs; only numactl insists on it, get_mempolicy stays",
    ),
)

OTHER_PROCESSES = (
    SyscallRule(("pidfd_getfd",), EPERM, "takes descriptors out of other processes"),
    SyscallRule(
        ("kcmp", "process_madvise", "process_mrelease"),
        ENOSYS,
        "act on or compare other processes; allocators and drivers fall back",
    ),
)

_FIRST = "PID 1 of the sandbox, or of the container it runs in, is not the command's to touch"
PID_1 = (
    SyscallRule(
        names(
            "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open process_vm_readv "
            "process_vm_writev"
        ),
        EPERM,
        _FIRST,
        (one_of(0, "pid", **{"1": 1}),),
    ),
    SyscallRule(("ptrace",), EPERM, _FIRST, (one_of(1, "pid", **{"1": 1}),)),
)
PID_1_LIMITS = (SyscallRule(("prlimit64",), EPERM, _FIRST, (one_of(0, "pid", **{"1": 1}),)),)

# Without a pid namespace, these calls reach the user's other processes.
HOST_PROCESSES = (
    SyscallRule(
        ("prlimit64",),
        EPERM,
        "a CPU limit put on another process of the same user kills it",
        (none_of(0, "pid", **{"0 (itself)": 0}),),
    ),
    SyscallRule(
        ("setpriority",), EPERM, "slows down every process of the user", (one_of(0, "which", PRIO_USER=2),)
    ),
    SyscallRule(
        ("ioprio_set",),
        EPERM,
        "starves every process of the user of input and output",
        (one_of(0, "which", IOPRIO_WHO_USER=3),),
    ),
)

SELF_MODIFICATION = (
    SyscallRule(
        ("personality",),
        EPERM,
        "READ_IMPLIES_EXEC, MMAP_PAGE_ZERO and foreign systems; gdb, setarch and sanitizers have theirs",
        (
            none_of(0, "persona", **{"the query": 0xFFFF_FFFF}),
            other_bit(0, "persona", ADDR_NO_RANDOMIZE=0x4_0000, UNAME26=0x2_0000, PER_LINUX32=8),
        ),
    ),
    SyscallRule(
        ("prctl",),
        EPERM,
        "forges a command line for the host's tools; core scheduling of others; a memory side channel",
        (one_of(0, "option", PR_SET_MM=35, PR_SCHED_CORE=62, PR_SET_MEMORY_MERGE=67),),
    ),
    SyscallRule(
        ("seccomp",),
        EPERM,
        "of two listeners the newer is asked: it could answer in place of staddle's",
        (one_of(0, "operation", SET_MODE_FILTER=1), any_bit(1, "flags", NEW_LISTENER=8)),
    ),
    SyscallRule(
        ("setrlimit",),
        PRETEND,
        "RLIMIT_CORE stays at one byte: only that also stops a core_pattern that runs a root program",
        (one_of(0, "resource", RLIMIT_CORE=4),),
    ),
    SyscallRule(
        ("prlimit64",),
        EPERM,
        "as setrlimit, but a filter cannot fill in the old limit, so it cannot pretend",
        (one_of(1, "resource", RLIMIT_CORE=4), given(2, "a new limit"), given(3, "room for the old one")),
    ),
    SyscallRule(
        ("prlimit64",),
        PRETEND,
        "as setrlimit; `ulimit -c 0` and ssh-agent continue because it succeeds",
        (one_of(1, "resource", RLIMIT_CORE=4), given(2, "a new limit")),
    ),
)

TERMINAL = (
    SyscallRule(
        ("ioctl",),
        EPERM,
        "typing into a terminal, pasting, taking the console, loading a line discipline",
        (one_of(1, "request", TIOCSTI=0x5412, TIOCLINUX=0x541C, TIOCCONS=0x541D, TIOCSETD=0x5423),),
    ),
)

_UNIX = {"AF_UNIX": 1}
_INET = {"AF_INET": 2, "AF_INET6": 10}
_NETLINK = {"AF_NETLINK": 16}


def _families(**families: int) -> SyscallRule:
    return SyscallRule(
        ("socket",),
        refuse("EAFNOSUPPORT"),
        "other families are kernel surface, and AF_VSOCK leaves every network namespace",
        (none_of(0, "family", **families),),
    )


_NO_ULP = SyscallRule(
    ("setsockopt",),
    refuse("ENOPROTOOPT"),
    "loads kernel TLS and SMC modules; its users fall back",
    (one_of(1, "level", IPPROTO_TCP=6), one_of(2, "option", TCP_ULP=31)),
)
ALL_SOCKETS = (
    _families(**_UNIX, **_INET, **_NETLINK),
    SyscallRule(
        ("socket",),
        refuse("EPROTONOSUPPORT"),
        "of netlink only what lists interfaces; netfilter, xfrm, audit and generic are kernel surface",
        (one_of(0, "family", **_NETLINK), none_of(2, "protocol", NETLINK_ROUTE=0)),
    ),
    SyscallRule(
        ("socket",),
        refuse("ESOCKTNOSUPPORT"),
        "raw and packet sockets, DCCP, SCTP",
        (one_of(0, "family", **_INET), none_of(1, "type", mask=15, SOCK_STREAM=1, SOCK_DGRAM=2)),
    ),
    SyscallRule(
        ("socket",),
        refuse("EPROTONOSUPPORT"),
        "ICMP, SCTP, UDP-Lite, and MPTCP, which Landlock's TCP rules do not see; Go falls back",
        (
            one_of(0, "family", **_INET),
            none_of(2, "protocol", **{"the default": 0, "IPPROTO_TCP": 6, "IPPROTO_UDP": 17}),
        ),
    ),
    _NO_ULP,
)
# The process that decides connect() decides where a TCP socket sends, except for the one flag that connects.
_FAST_OPEN = {"MSG_FASTOPEN": 0x2000_0000}
_CONNECTS = "connects without connect(); its users fall back"
TCP_SOCKETS = (
    _families(**_UNIX, **_INET),
    SyscallRule(
        ("socket",),
        refuse("ESOCKTNOSUPPORT"),
        "a datagram socket sends to any address without connect(); raw and packet sockets, DCCP, SCTP",
        (one_of(0, "family", **_INET), none_of(1, "type", mask=15, SOCK_STREAM=1)),
    ),
    SyscallRule(
        ("socket",),
        refuse("EPROTONOSUPPORT"),
        "SCTP, and MPTCP, which Landlock's TCP rules do not see; Go falls back",
        (one_of(0, "family", **_INET), none_of(2, "protocol", **{"the default": 0, "IPPROTO_TCP": 6})),
    ),
    _NO_ULP,
    SyscallRule(
        ("sendto", "sendmmsg"), refuse("EOPNOTSUPP"), _CONNECTS, (any_bit(3, "flags", **_FAST_OPEN),)
    ),
    SyscallRule(("sendmsg",), refuse("EOPNOTSUPP"), _CONNECTS, (any_bit(2, "flags", **_FAST_OPEN),)),
    SyscallRule(
        ("listen",),
        NOTIFY,
        # Landlock decides about bind(), but listen() on a socket without a port occupies one of the host's.
        "the supervisor has UNIX sockets listen in the caller's place, and refuses all others; "
        "a filter cannot see a socket's family",
    ),
)
NO_NETWORK_SOCKETS = (_families(**_UNIX),)
PAIRS = (
    SyscallRule(
        ("socketpair",),
        refuse("EAFNOSUPPORT"),
        "no other family has a use for it",
        (none_of(0, "family", **_UNIX),),
    ),
)

# Without a mount namespace every UNIX socket file of the host has a name, and before ABI 9 Landlock does not
# check connect(). A stream or seqpacket socket sends only to its peer: the kernel refuses or ignores an
# address in sendto or sendmsg. So deciding connect() decides everything. A datagram socket, and each end of a
# datagram pair, can get another address with every sendto or sendmsg, which no filter can read.
_CONNECTED = {"SOCK_STREAM": 1, "SOCK_SEQPACKET": 5}
SUPERVISED_UNIX_SOCKETS = (
    SyscallRule(
        ("socket",),
        EPERM,
        "a datagram socket sends to any path without connect()",
        (one_of(0, "family", **_UNIX), none_of(1, "type", mask=15, **_CONNECTED)),
    ),
    SyscallRule(
        ("socketpair",),
        EPERM,
        "either end of a datagram pair can be aimed at any path",
        (none_of(1, "type", mask=15, **_CONNECTED),),
    ),
    SyscallRule(
        ("connect",),
        NOTIFY,
        # The caller can change the address and the descriptor until the kernel reads them again. So no
        # connect(), of any apparent family, may continue: the supervisor makes the connection itself, on its
        # own copies. Without a supervisor the kernel returns ENOSYS, and nothing connects.
        "the supervisor compares a socket's path with the policy and connects in the caller's place; "
        "network connections pass through it too, for a filter cannot see a socket's family",
    ),
)

# Without an ipc namespace these are the host's.
NO_SYSTEM_V = (
    SyscallRule(
        names(
            "shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink"
        ),
        ENOSYS,
        "shared memory, semaphores and queues of the user's other processes",
    ),
)

_SETUID = {"S_ISUID": 0o4000, "S_ISGID": 0o2000}
# O_TMPFILE takes a mode like O_CREAT, and linkat() gives the file a name afterwards.
_CREATES = {"O_CREAT": 0o100, "O_TMPFILE": 0o20000000}
_NO_SETUID = (
    "a set-user-ID file in a host directory gives its owner's permissions to every process that runs it"
)
# mkdir and mkdirat are not here: the kernel drops these bits from their mode.
NO_SETUID_FILES = (
    SyscallRule(("chmod", "fchmod", "creat", "mknod"), EPERM, _NO_SETUID, (any_bit(1, "mode", **_SETUID),)),
    SyscallRule(("fchmodat", "fchmodat2", "mknodat"), EPERM, _NO_SETUID, (any_bit(2, "mode", **_SETUID),)),
    SyscallRule(
        ("open",), EPERM, _NO_SETUID, (any_bit(1, "flags", **_CREATES), any_bit(2, "mode", **_SETUID))
    ),
    SyscallRule(
        ("openat",), EPERM, _NO_SETUID, (any_bit(2, "flags", **_CREATES), any_bit(3, "mode", **_SETUID))
    ),
    SyscallRule(
        ("openat2",),
        ENOSYS,
        "could make a set-user-ID file: its mode is behind a pointer; callers fall back",
    ),
)

_ALWAYS = MOUNTS_AND_NAMESPACES + DEVICES_AND_WHITEOUTS + KERNEL_SURFACE + OTHER_PROCESSES
_ITSELF = SELF_MODIFICATION + TERMINAL
_LANDLOCK = _ALWAYS + PID_1 + HOST_PROCESSES + _ITSELF + NO_SYSTEM_V + PAIRS + SUPERVISED_UNIX_SOCKETS

_KINDS = {
    # bwrap and our own namespaces: pid, network, ipc and mount namespaces are there
    "namespaces": _ALWAYS + PID_1 + PID_1_LIMITS + _ITSELF + ALL_SOCKETS + PAIRS,
    # no namespace at all
    "landlock": _LANDLOCK + NO_NETWORK_SOCKETS,
    "landlock-tcp": _LANDLOCK + TCP_SOCKETS,
    "landlock-open": _LANDLOCK + ALL_SOCKETS,
}

#: Profile by name. "-nosuid" is for plans that let the command write to a host directory.
RULES: dict[str, tuple[SyscallRule, ...]] = {
    name + suffix: kind + extra
    for name, kind in _KINDS.items()
    for suffix, extra in (("", ()), ("-nosuid", NO_SETUID_FILES))
}


FOREIGN = RuleRow(
    ("any call of another architecture",), "", KILL.text, "its numbers mean other calls than the rules do"
)


def describe_rules(profile: str, machine: str) -> tuple[RuleRow, ...]:
    """Return every rule in the order in which they are tried, with the calls of this machine."""
    numbers = f"any unassigned number, and all above {syscalls.LAST_KNOWN}"
    listed = [FOREIGN, RuleRow((numbers,), "", UNKNOWN.answer.text, UNKNOWN.why)]
    for rule in RULES[profile]:
        calls = tuple(name for name in rule.calls if syscalls.number(name, machine) is not None)
        if calls:
            condition = " and ".join(check.text() for check in rule.checks)
            listed.append(RuleRow(calls, condition, rule.answer.text, rule.why))
    return tuple(listed)
