"""Calls of a process on itself before exec, and on its children; facts from /proc.

Thin bindings: each does one thing and raises OSError when the kernel refuses.
"""

from __future__ import annotations

import _thread
import errno
import os
import struct

from . import procfs
from .syscalls import call, ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    T = TypeVar("T")

# Signal numbers, the same on x86_64 and aarch64. Importing `signal` takes half as long as an interpreter's
# start.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGUSR2, SIGPIPE, SIGTERM, SIGCHLD = 1, 2, 3, 9, 12, 13, 15, 17
SIGSTOP = 19
LAST_SIGNAL = 64

RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_NICE, RLIMIT_RTPRIO = 1, 4, 7, 8, 13, 14
UNLIMITED = -1

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_SECCOMP = 1, 4, 15, 21
PR_CAPBSET_DROP, PR_SET_SECUREBITS = 24, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
CAPABILITY_VERSION_3 = 0x20080522
#: noroot, no ambient raise, and every switch locked, except for keeping capabilities over a change of ids.
#: There are none to keep, and programs that ask for it (setpriv, ping) give up if refused.
SECUREBITS = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7
_SIG_BLOCK, _SIG_UNBLOCK, SIG_SETMASK = 0, 1, 2
_O_CLOEXEC = 0o2000000


def _prctl(option: int, *args: int) -> int:
    return call("prctl", option, *args, *(0,) * (4 - len(args)))


# Privileges.


def no_new_privs() -> None:
    """From now on no exec gains privileges: setuid bits and file capabilities have no effect."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def empty_bounding_set() -> None:
    """Drop every capability from the bounding set, for this process and its children. Needs CAP_SETPCAP."""
    _prctl(PR_SET_SECUREBITS, SECUREBITS)
    _bound(0)


def keep_capabilities(kept: int) -> None:
    """Keep the capabilities in the bit set `kept`, and no others, even for root after an exec.

    Needs CAP_SETPCAP. A process that becomes another user loses them, as on any machine.
    """
    _bound(kept)
    clear_capabilities(kept)


def _bound(kept: int) -> None:
    try:
        for capability in range(64):
            if not kept >> capability & 1:
                _prctl(PR_CAPBSET_DROP, capability)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: past the last capability of this kernel
            raise


def drop_capabilities() -> None:
    """Drop every effective, permitted, inheritable and ambient capability, even as root.

    The bounding set is emptied too if that is permitted. Otherwise it grants nothing once no_new_privs is
    set.
    """
    try:
        empty_bounding_set()
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    clear_capabilities()


def clear_capabilities(kept: int = 0) -> None:
    """Drop all capabilities except the bit set `kept`; the bounding set stays as it is."""
    _prctl(PR_CAP_AMBIENT, 4)  # clear all
    call("capset", *packed_capabilities(kept))
    if capabilities() != (kept, kept, 0):
        raise OSError(errno.EPERM, "capabilities are left after dropping them all")


def packed_capabilities(kept: int) -> tuple[bytes, bytes]:
    """Return the two structures with which capset(2) keeps the bit set `kept`."""
    low, high = kept & 0xFFFFFFFF, kept >> 32
    return struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", low, low, 0, high, high, 0)


def last_capability() -> int:
    """Return the number of the last capability that this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
        return int(file.read())


def is_filtered() -> bool:
    """Whether a system call filter is active."""
    return _prctl(PR_GET_SECCOMP) == 2


def capabilities() -> tuple[int, int, int]:
    """Return the effective, permitted and inheritable sets, as bits."""
    header, data = struct.pack("Ii", CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    call("capget", header, ctypes.addressof(data))
    low = struct.unpack_from("III", data.raw, 0)
    high = struct.unpack_from("III", data.raw, 12)
    return low[0] | high[0] << 32, low[1] | high[1] << 32, low[2] | high[2] << 32


def become(uid: int, gid: int, groups: tuple[int, ...] = ()) -> None:
    """Become `uid` and `gid`, in these groups only, forever. This clears the death signal."""
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    is_other = os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3
    if is_other or sorted(os.getgroups()) != sorted(groups):
        raise OSError(errno.EPERM, f"still not uid {uid} after changing to it")


def new_session_keyring() -> None:
    """Replace the inherited session keyring with an empty one."""
    call("keyctl", 1, None)  # KEYCTL_JOIN_SESSION_KEYRING, without a name


def dumpable(yes: bool) -> None:
    """Set whether processes of the same user may trace this one, and whether it owns its /proc files."""
    _prctl(PR_SET_DUMPABLE, int(yes))


def set_command_line(text: bytes) -> None:
    """Make /proc show `text` as the command line and name of this process and its forks.

    The kernel reads a command line from the memory of the process, where we overwrite it.
    """
    name = ctypes.create_string_buffer(text[:15])
    _prctl(PR_SET_NAME, ctypes.addressof(name))
    with open("/proc/self/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    begin, end = int(words[45]), int(words[46])  # arg_start and arg_end: see proc(5)
    ctypes.memmove(begin, text[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def set_rlimits(limits: Mapping[int, tuple[int, int]]) -> None:
    """Set (soft, hard) by resource number (UNLIMITED: no limit). Never above our hard limit."""
    for resource, packed in packed_rlimits(limits):
        call("prlimit64", 0, resource, packed, None)


def packed_rlimits(limits: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield (resource, struct rlimit64) for each limit, never above our hard limit."""
    for resource, (soft, hard) in limits.items():
        _, ceiling = rlimit(resource)
        new_hard = min(hard & 0xFFFFFFFFFFFFFFFF, ceiling)
        yield resource, struct.pack("QQ", min(soft & 0xFFFFFFFFFFFFFFFF, new_hard), new_hard)


def rlimit(resource: int) -> tuple[int, int]:
    """Return the (soft, hard) limit of this process by resource number."""
    found = ctypes.create_string_buffer(16)
    call("prlimit64", 0, resource, None, ctypes.addressof(found))
    soft, hard = struct.unpack("QQ", found.raw)
    return soft, hard


# Parents and children.


def death_signal(number: int) -> None:
    """Get this signal when the thread that started us ends. A change of ids clears it."""
    _prctl(PR_SET_PDEATHSIG, number)


def subreaper() -> None:
    """Become the parent of every orphaned descendant."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def pidfd_open(pid: int, flags: int = 0) -> int:
    """Return a descriptor of this process, which never refers to another process with a reused pid."""
    return call("pidfd_open", pid, flags)


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Signal exactly the process of `pidfd`."""
    call("pidfd_send_signal", pidfd, number, None, 0)


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """Return our own copy of descriptor `fd` of that process. Needs the right to trace it."""
    return call("pidfd_getfd", pidfd, fd, 0)


def close_from(first: int, keep: Iterable[int] = ()) -> None:
    """Close every descriptor from `first` on, except those in `keep`."""
    for fd in sorted({fd for fd in keep if fd >= first}):
        if fd > first:
            call("close_range", first, fd - 1, 0)
        first = fd + 1
    call("close_range", first, 0x7FFFFFFF, 0)


# Passing descriptors to another process, without the socket module.

_AF_UNIX, _SOCK_SEQPACKET, _SOL_SOCKET, _SCM_RIGHTS, _MSG_CMSG_CLOEXEC = 1, 5, 1, 1, 0x40000000
# The structures of sendmsg(2) as words of eight bytes; the types are made here, once.
_Word, _Vector, _Control, _Message = (ctypes.c_uint64 * count for count in (1, 2, 3, 7))
_CONTROL_LENGTH = 16 + 4  # a header and one descriptor
_RIGHTS = _SOL_SOCKET | _SCM_RIGHTS << 32


def descriptor_channel() -> tuple[int, int]:
    """Return two ends, closed by exec; `send_descriptor` on one end queues for the other."""
    ends = _Word()
    call("socketpair", _AF_UNIX, _SOCK_SEQPACKET | _O_CLOEXEC, 0, ctypes.addressof(ends))
    return ends[0] & 0xFFFFFFFF, ends[0] >> 32


def send_descriptor(channel: int, fd: int) -> None:
    """Send a copy of `fd`, which stays open in flight even if we end."""
    control = _Control(_CONTROL_LENGTH, _RIGHTS, fd)
    sent_at_any_rate(lambda: _message("sendmsg", channel, control, 0))


def sent_at_any_rate(send: Callable[[], T]) -> T:
    """Call `send`, which sends descriptors; retry if too many descriptors of this user are in flight.

    The kernel counts the descriptors of all processes of a user, and compares the sender's soft limit on open
    files. The retry uses the hard limit, which is above that of any program in a sandbox.
    """
    try:
        return send()
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
    soft, hard = rlimit(RLIMIT_NOFILE)
    call("prlimit64", 0, RLIMIT_NOFILE, struct.pack("QQ", hard, hard), None)
    try:
        return send()
    finally:
        call("prlimit64", 0, RLIMIT_NOFILE, struct.pack("QQ", soft, hard), None)


def receive_descriptor(channel: int) -> int | None:
    """Return the received descriptor, closed by exec; None if the other end was closed without one."""
    control = _Control()
    if _message("recvmsg", channel, control, _MSG_CMSG_CLOEXEC) and control[0] == _CONTROL_LENGTH:
        return control[2] & 0xFFFFFFFF
    return None


def _message(name: str, channel: int, control: ctypes.Array[ctypes.c_uint64], flags: int) -> int:
    data = _Word()
    vector = _Vector(ctypes.addressof(data), 1)
    where = ctypes.addressof(control)
    message = _Message(0, 0, ctypes.addressof(vector), 1, where, ctypes.sizeof(control), 0)
    return call(name, channel, ctypes.addressof(message), flags)


# Signals, without the signal module.


def block_signals(numbers: Iterable[int]) -> None:
    """Block these signals; `signal_descriptor` reports them."""
    call("rt_sigprocmask", _SIG_BLOCK, _mask(numbers), None, 8)


def unblock_signals(numbers: Iterable[int]) -> None:
    """Unblock these signals."""
    call("rt_sigprocmask", _SIG_UNBLOCK, _mask(numbers), None, 8)


def ignored_signals() -> frozenset[int]:
    """Return the signals that this process ignores, for example under nohup."""
    with open("/proc/self/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"SigIgn:"))
    bits = int(line.split()[1], 16)
    return frozenset(number for number in range(1, LAST_SIGNAL + 1) if bits >> (number - 1) & 1)


def leave_real_time() -> None:
    """Leave real-time scheduling, if the host program has it: a confined process must not.

    It would run before everything else on the host, and could not enter a cgroup with CPU shares.
    """
    if is_real_time():
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def is_real_time() -> bool:
    """Whether this process has real-time scheduling."""
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def default_signals() -> None:
    """Reset all signals to their defaults and unblock them, as a new program expects.

    Pending signals take effect now. An interpreter's own handler would otherwise catch a signal that is meant
    for the program.
    """
    action = bytes(32)  # SIG_DFL, no flags, empty mask: all zero whatever the layout
    ignored, caught = _status_masks(b"SigIgn:", b"SigCgt:")
    changed = ignored | caught
    for number in range(1, LAST_SIGNAL + 1):
        if changed >> (number - 1) & 1:
            call("rt_sigaction", number, action, None, 8)
    call("rt_sigprocmask", SIG_SETMASK, bytes(8), None, 8)


def _status_masks(*names: bytes) -> list[int]:
    """Return the signal sets in these fields of our own status."""
    fd = os.open("/proc/self/status", os.O_RDONLY | _O_CLOEXEC)
    try:
        text = os.read(fd, 1 << 16)
    finally:
        os.close(fd)
    starts = [text.index(name) + len(name) for name in names]
    return [int(text[at : text.index(b"\n", at)], 16) for at in starts]


def signal_descriptor(numbers: Iterable[int]) -> int:
    """Return a descriptor that becomes readable when one of these blocked signals arrives."""
    return call("signalfd4", -1, _mask(numbers), 8, _O_CLOEXEC | os.O_NONBLOCK)


def read_signals(descriptor: int) -> list[int]:
    """Return the signals that arrived."""
    try:
        data = os.read(descriptor, 128 * 16)
    except BlockingIOError:
        return []
    return [struct.unpack_from("I", data, at)[0] for at in range(0, len(data), 128)]


def _mask(numbers: Iterable[int]) -> bytes:
    return sum(1 << (number - 1) for number in set(numbers)).to_bytes(8, "little")


def exit_status(status: int) -> int:
    """Return the exit status that a shell shows for a wait status: 128 + N for signal N."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


# Facts from /proc.

#: Indices of fields in /proc/PID/stat, counted from the field after the name.
STATE, PARENT, STARTED = 0, 1, 19


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name; none if the process is gone."""
    try:
        fields = split_stat(_read(f"{procfs.directory(pid)}/stat", 2048))
    except OSError:
        return []
    if procfs.is_outer() and len(fields) > PARENT:
        fields[PARENT] = b"%d" % procfs.number(int(fields[PARENT]))
    return fields


def split_stat(text: bytes, most: int = -1) -> list[bytes]:
    """Return the fields of a stat file after the name, the first `most` of them split."""
    # A process chooses its own name in parentheses, which may contain anything.
    return text.rpartition(b")")[2].split(None, most)


def start_time(pid: int) -> int:
    """Return the start time of a process in ticks since boot; 0 if it is gone."""
    fields = stat_fields(pid)
    return int(fields[STARTED]) if len(fields) > STARTED else 0


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    fields = stat_fields(pid)
    return int(fields[PARENT]) if len(fields) > PARENT else 0


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    return stat_fields(pid)[:1] in ([], [b"Z"], [b"X"])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by a signal or a tracer; False if it is gone."""
    fields = stat_fields(pid) if pid else []
    return bool(fields) and fields[0] in (b"T", b"t")


def mount_id(fd: int) -> bytes:
    """Return the id of the mount of an open file; empty if the kernel does not show it."""
    words = _read(f"/proc/self/fdinfo/{fd}", 1024).partition(b"mnt_id:")[2].split(None, 1)
    return words[0] if words else b""


def _read(path: str, most: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def umask() -> int:
    """Return the umask without changing it, because another thread may be creating a file."""
    try:
        with open("/proc/self/status", "rb") as file:
            return int(next(line.split()[1] for line in file if line.startswith(b"Umask:")), 8)
    except (OSError, StopIteration):
        return 0o022


# Children of a program that ignores SIGCHLD.

_SIG_DFL, _SIG_IGN, _SA_NOCLDWAIT = 0, 1, 2
#: The kernel's struct: handler, flags, restorer, mask.
_ACTION = struct.Struct("QQQQ")


class Reaping:
    """A context in which the kernel keeps the exit status of children for us. Thread-safe.

    If a program ignores SIGCHLD, as pre-fork servers do, waiting for a child of ours would return nothing,
    and our children would inherit that. In this context, SIGCHLD has its default action.
    """

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._entered, self._before = 0, b""

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                now = _sigchld()
                handler, flags, *_ = _ACTION.unpack(now)
                if handler == _SIG_IGN or flags & _SA_NOCLDWAIT:
                    _sigchld(_ACTION.pack(_SIG_DFL if handler == _SIG_IGN else handler, 0, 0, 0))
                    self._before = now

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            before, self._before = self._before, self._before if self._entered else b""
            if not self._entered and before:
                _sigchld(before)


REAPING = Reaping()


def _sigchld(action: bytes = b"") -> bytes:
    """Set the action for SIGCHLD, if `action` is given; return the action before."""
    before = ctypes.create_string_buffer(_ACTION.size)
    call("rt_sigaction", SIGCHLD, action or None, ctypes.addressof(before), 8)
    return before.raw
