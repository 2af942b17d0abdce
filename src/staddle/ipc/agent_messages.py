"""Messages between the host program and the agent, and their transport.

Each socket is a SOCK_SEQPACKET pair, which keeps messages apart. A message is one letter, its kind, and a
record of its fields. A message that is too long for the socket travels in a memory file. Both sides refuse
everything that is not exactly a message. The host program trusts nothing that the agent sends.
"""

from __future__ import annotations

import os

from ..linux.fileio import memory_file
from . import wire
from .wire import Malformed, receive_last, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence
    from typing import Any, Literal

    #: Microseconds of CPU time, user and system; bytes read and written; the largest memory of one process,
    #: in bytes; the number of processes that were started (-1: unknown).
    UsageCounts = tuple[int, int, int, int, int, int]
    Who = tuple[int, int, tuple[int, ...]]
    #: The pid of a process, and the name that it has given itself.
    NamedProcess = tuple[int, bytes]
    #: The treatment of processes other than idle shells in a swap.
    Others = Literal["keep", "end", "refuse"]

# To the agent, on the main socket.
SHELL = b"S"  # program, environment, directory
SHELL_AS = b"Q"  # as SHELL, and the user
SPAWN = b"P"  # argv, environment, directory, rows, columns; three descriptors, or rows and columns
EXECUTE = b"X"  # as SPAWN; the host program waits for its end, and the starter may be its parent
SPAWN_WHOLE = b"T"  # as SPAWN; when the program has ended, its descendants are killed
SPAWN_AS = b"R"  # as SPAWN, and the user
SWAP = b"w"  # KEEP, END or REFUSE, the roots of trees, spared pids; a socket on which the new trees arrive
FILE_SERVER = b"c"  # the socket of a file server, and its code
FILE_SERVER_AS = b"C"  # as FILE_SERVER, and the user
NETWORK = b"N"  # request a socket for the sandbox's network, on which its sockets arrive
SUDO = b"d"  # make the pipe for requests of sudo, if there is none
LOOK = b"v"  # have an agent that enforces limits sample now, and report
WATCH = b"h"  # a filter for later processes; the socket that receives its listeners
END_ALL = b"K"  # kill everything in the sandbox except the agent, including shells
END_OTHERS = b"o"  # kill everything except the agent, idle shells, the file server and spared pids
PAUSE = b"z"  # stop (1) or continue (0) everything in the sandbox
COUNT = b"u"  # count processes; with 1, also their usage
# To the agent, on the socket of a process.
SIGNAL = b"k"  # number; whether also to everything below it
ATTACH = b"a"  # send the files of a shell again
RENEW = b"n"  # new pipes for the output of a shell
AGAIN = b"A"  # another shell like this one, which has ended or will
END_RUN = b"e"  # step, since when (clock ticks), the newest job before the run
PING = b"i"  # serial; comes back at once, to wake up the reader of the socket
# Between the agent and the process that starts programs (starter.py).
BECOME = b"B"  # argv, environment, directory; its three streams
BECAME = b"Y"  # pid; 0 if it could not be started, and at first: the starter is ready
FINISHED = b"y"  # wait status, whether the starter takes another, usage of the program
# From the agent, on the main socket, and after AGAIN on that of the shell.
OPENED = b"s"  # pid, paths; the socket, the control pipe, the files, and a pidfd if there is one
# From the agent, on the main socket.
STARTED = b"p"  # pid; the socket, and the master of its terminal
REFUSED = b"f"  # reason
SWAPPED = b"W"  # as OTHERS_ENDED
# A number that changes when any process has run, and the number of processes with a timer for SIGCONT.
PAUSED = b"Z"
LOOKED = b"V"
SUDO_READY = b"D"
WATCHED = b"H"
COUNTED = b"U"  # usage, as from usage.Count
ALL_ENDED = b"E"
OTHERS_ENDED = b"O"  # pid and name of each process that was killed and not started by another of these
LINE = b"L"
BUSY = b"b"  # others run, or a file is open for writing: nothing was exchanged
# From the agent, on the socket of a process.
FILES = b"F"  # paths; the files
ENDED = b"x"  # wait status, why it was not started, errno; usage, as from usage.Count
PONG = b"I"  # serial

#: `Others`: continue with the old trees, be killed before the new trees are mounted, or prevent the swap.
KEEP, END, REFUSE = b"keep", b"end", b"refuse"

_SPENT = (int,) * 6
_PROCESSES = [(int, bytes)]
#: A user of the sandbox: uid, gid, further groups. 0 is its root.
_WHO = (int, int, [int])

#: The fields of each kind, in the shapes of wire.py, and the allowed numbers of descriptors.
SHAPES: dict[bytes, tuple[tuple[object, ...], tuple[int, ...]]] = {
    SHELL: ((bytes, [bytes], bytes), (0,)),
    SHELL_AS: ((bytes, [bytes], bytes, _WHO), (0,)),
    SPAWN: (([bytes], [bytes], bytes, int, int), (0, 3)),
    SPAWN_WHOLE: (([bytes], [bytes], bytes, int, int), (3,)),
    SPAWN_AS: (([bytes], [bytes], bytes, int, int, _WHO), (0, 3)),
    EXECUTE: (([bytes], [bytes], bytes, int, int), (3,)),
    BECOME: (([bytes], [bytes], bytes), (3,)),
    BECAME: ((int,), (0,)),
    FINISHED: ((int, int, (int,) * 5), (0,)),
    SIGNAL: ((int, int), (0,)),
    ATTACH: ((), (0,)),
    RENEW: ((), (0,)),
    AGAIN: ((), (0,)),
    END_RUN: ((int, int, int), (0,)),
    PING: ((int,), (0,)),
    OPENED: ((int, [bytes]), (8, 9)),
    STARTED: ((int,), (1, 2)),
    REFUSED: ((bytes,), (0,)),
    FILES: (([bytes],), (6,)),
    ENDED: ((int, bytes, int, _SPENT), (0,)),
    PONG: ((int,), (0,)),
    SWAP: ((bytes, [bytes], [int]), (1,)),
    SWAPPED: ((_PROCESSES,), (0,)),
    FILE_SERVER: ((int,), (2,)),
    FILE_SERVER_AS: ((int, _WHO), (2,)),
    PAUSE: ((int,), (0,)),
    PAUSED: ((int, int), (0,)),
    END_ALL: ((), (0,)),
    ALL_ENDED: ((), (0,)),
    END_OTHERS: (([int],), (0,)),
    OTHERS_ENDED: ((_PROCESSES,), (0,)),
    WATCH: ((bytes,), (1,)),
    WATCHED: ((), (0,)),
    SUDO: ((), (0,)),
    SUDO_READY: ((), (0,)),
    LOOK: ((), (0,)),
    LOOKED: ((), (0,)),
    COUNT: ((int,), (0,)),
    COUNTED: ((_SPENT,), (0,)),
    NETWORK: ((), (0,)),
    LINE: ((), (1,)),
    BUSY: ((), (0,)),
}

#: The steps of ending a run, in this order: HOLD for a shell without its brake, TIDY after the run. Never
#: BRAKE and INTERRUPT at once: bash does not survive an interrupt in a trap that arrived while it read.
HOLD, BRAKE, INTERRUPT, TERMINATE, KILL, KILL_SHELL, TIDY = range(7)
#: The trap of a shell for SIGRTMAX, which runs once its program has ended. If only interrupted while it
#: waits, the shell would continue with the next program, unless the program died of the same signal. The trap
#: acts only while the shell reads a text: an interrupt in a trap that runs while it waits for lines kills it.
BRAKE_TRAP, BRAKE_SIGNAL = b"((${#BASH_SOURCE[@]})) && \\builtin kill -INT $$", 64

#: The most bytes that surely fit on a socket; longer bodies come in a memory file, the last descriptor.
LONGEST = 32 << 10
_ELSEWHERE = b"M"
#: An argument list and an environment up to the kernel's own limits, with a margin.
LONGEST_BODY = 16 << 20


class Message:
    """A received message: its letter, its fields and its descriptors, which the receiver closes."""

    def __init__(self, kind: bytes, fields: tuple[Any, ...], descriptors: list[int]) -> None:
        self.kind, self.fields, self.descriptors = kind, fields, descriptors

    def close(self) -> None:
        """Close the received descriptors."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def encode(kind: bytes, *fields: object) -> bytes:
    """Return the bytes of a message; Malformed if its fields do not fit its kind."""
    _check(kind, fields)
    return wire.encode(kind, fields)


def decode(data: bytes, descriptors: int = 0) -> tuple[bytes, tuple[Any, ...]]:
    """Return letter and fields of a message that came with so many descriptors, or raise Malformed."""
    kind = data[:1]
    if kind not in SHAPES:
        raise Malformed(f"there is no message {kind!r}")
    fields = wire.decode(kind, data, len(SHAPES[kind][0]))
    _check(kind, fields)
    if descriptors not in SHAPES[kind][1]:
        raise Malformed(f"{descriptors} descriptors came with {kind!r}")
    return kind, fields


def _check(kind: bytes, fields: tuple[object, ...]) -> None:
    shapes = SHAPES[kind][0]
    if len(fields) != len(shapes):
        raise Malformed(f"{kind!r} has {len(shapes)} fields, not {len(fields)}")
    if not all(wire.fits(field, shape) for field, shape in zip(fields, shapes, strict=True)):
        raise Malformed(f"the fields of {kind!r} are not what they should be")


# ---------------------------------------------------------------- on a socket


def send_message(socket: _socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send an encoded message. OSError if the other end is closed."""
    if len(data) <= LONGEST:
        send(socket, data, descriptors)
        return
    if len(data) > LONGEST_BODY:
        raise OSError(7, "arguments and environment are longer than any program can take")  # E2BIG
    body = memory_file(data)
    try:
        send(socket, _ELSEWHERE, (*descriptors, body))
    finally:
        os.close(body)


def receive_message(socket: _socket.socket, *, bodies: bool = False) -> Message | None:
    """Return the next message; None if the other end is closed. BlockingIOError if there is none yet.

    Only with `bodies` may it come in a memory file: the agent reads those of the host program, which accepts
    none itself.
    """
    data, descriptors, _ = receive_last(socket, LONGEST + 1)
    try:
        if data == _ELSEWHERE and descriptors and bodies:
            body = descriptors.pop()
            try:
                data = _contents(body)
            finally:
                os.close(body)
        if not data and not descriptors:
            return None
        kind, fields = decode(data, len(descriptors))
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise
    return Message(kind, fields, descriptors)


def _contents(body: int) -> bytes:
    size = os.fstat(body).st_size
    if size > LONGEST_BODY:
        raise Malformed("it is longer than it may be")
    data = bytearray()
    while len(data) < size and (chunk := os.pread(body, size - len(data), len(data))):
        data += chunk
    return bytes(data)
