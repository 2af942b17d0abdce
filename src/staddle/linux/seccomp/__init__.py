"""The system call filter: which calls a confined command may not make.

    load(program("namespaces"))      the last thing before exec, after no_new_privs

The rules are a table (`rules.py`). When the table changes, `python -m staddle.linux.seccomp` compiles it to
classic BPF (`compiler.py`) and writes the bytes that are shipped in `prebuilt/`. A run only reads and loads
them, so it imports neither the table nor the compiler.

A filter is inherited and can never be removed. It cannot read memory behind pointers, so it does not check
paths, addresses and extended attributes.
"""

from __future__ import annotations

import errno
import os
import struct

from .. import syscalls
from ..syscalls import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .language import RuleRow

#: The profiles for bwrap and our own namespaces; and for Landlock without a network, with TCP connections
#: that are decided one by one, and with an open network. "-nosuid" is for plans that let the
#: command write to a host directory.
PROFILES = (
    "namespaces",
    "namespaces-nosuid",
    "landlock",
    "landlock-nosuid",
    "landlock-tcp",
    "landlock-tcp-nosuid",
    "landlock-open",
    "landlock-open-nosuid",
)

#: Flags of `load`. The "landlock" profiles need a listener: without one, connect() is ENOSYS.
ALL_THREADS = 1
NEW_LISTENER = 1 << 3
#: Once the supervisor has read a request, only a fatal signal interrupts the caller (Linux 5.19).
WAIT_KILLABLE = 1 << 5

_SET_MODE_FILTER = 1
_INSTRUCTION = 8  # bytes of a struct sock_filter
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # classic BPF: a word at an offset; a constant; the answer
_ERRNO = 0x0005_0000


def program(profile: str, machine: str | None = None, *, keeps_processors: bool = False) -> bytes:
    """Return the compiled filter of `profile`, ready to be loaded.

    With `keeps_processors`, processes cannot change their CPU affinity, because it replaces a CPU limit.
    """
    machine = machine or syscalls.architecture()
    with open(prebuilt_path(profile, machine), "rb") as file:
        whole = file.read()
    return _refusing("sched_setaffinity", machine) + whole if keeps_processors else whole


def _refusing(name: str, machine: str) -> bytes:
    """Return instructions that refuse one call (EPERM), to put before a program: its jumps are relative."""
    number = syscalls.number(name, machine)
    instructions = (
        (_LOAD, 0, 0, 0),  # seccomp_data begins with the number
        (_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    )
    return b"".join(struct.pack("<HBBI", *each) for each in instructions)


def prebuilt_path(profile: str, machine: str) -> str:
    """Return the path of the shipped bytes of a filter."""
    if profile not in PROFILES:
        raise ValueError(f"no filter profile {profile!r}; there are {', '.join(PROFILES)}")
    if machine not in syscalls.COLUMN:
        raise ValueError(f"no filter for {machine!r}; there are those for {', '.join(syscalls.COLUMN)}")
    return os.path.join(os.path.dirname(__file__), "prebuilt", f"{machine}-{profile}.bpf")


def load(program: bytes, flags: int = 0) -> int:
    """Apply the filter to this thread and its children. Returns the listener if `flags` request one.

    no_new_privs must be set already. Raises OSError if the filter is not in force.
    """
    if not program or len(program) % _INSTRUCTION:
        raise ValueError(f"{len(program)} bytes are no filter: it comes in whole instructions of 8")
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, their address
    header = struct.pack("@HP", len(program) // _INSTRUCTION, ctypes.addressof(instructions))
    try:
        result = syscalls.call("seccomp", _SET_MODE_FILTER, flags, header)
    except OSError as error:
        why = "no_new_privs is not set" if error.errno == errno.EACCES else os.strerror(error.errno or 0)
        raise OSError(error.errno, f"the system call filter was not loaded: {why}") from None
    if result and not flags & NEW_LISTENER:
        # ALL_THREADS returns the thread that has another filter; then no thread has ours.
        raise OSError(errno.ESRCH, f"the system call filter was not loaded: thread {result} has its own")
    return result


def describe(profile: str, machine: str | None = None) -> tuple[RuleRow, ...]:
    """Return the rules of `profile` in words: calls, condition, answer, why."""
    from .rules import describe_rules

    machine = machine or syscalls.architecture()
    prebuilt_path(profile, machine)  # for its error about an unknown name
    return describe_rules(profile, machine)
