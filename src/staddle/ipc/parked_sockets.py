"""Sockets of idle sandboxes, parked in other processes when this one has as many files open as it may.

    ticket = PARKED.hold((fd, …))     hand copies over; ours can be closed
    ticket.take()                     have them back
    ticket.drop()                     they are closed: the same as if ours were

The processes (`descriptor_holder.py`) are started when they are needed, have the same limit of open files as
this one, and end when nothing is open any more that could be parked. When this program ends, however it ends,
they end with it, and what they hold is closed: a sandbox does not outlive its host program for being parked.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys
import threading
from itertools import count
from weakref import WeakSet

from ..interrupts import uninterrupted
from ..linux import open_files
from ..linux.process import SIGKILL, pidfd_open, pidfd_send_signal
from ..linux.userns import reap
from . import descriptor_holder
from .descriptors import close_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class ParkableClient(Protocol):
        """The owner of sockets that are not needed while it is idle."""

        def park_sockets(self) -> bool:
            """Park them; False when it is not idle, or has parked them already."""
            ...


_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
#: Descriptors of a holder that are its own, and room for those of one message.
_RESERVED = 8 + descriptor_holder.MOST
#: Seconds for an answer: it has nothing else to do.
_PATIENCE = 10.0


_GONE = "the process that kept its sockets was killed, or does not answer"


class HolderLost(OSError):
    """The process that holds descriptors of this one was killed, or does not answer."""


class HolderProcess:
    """One process that holds descriptors. Not thread-safe."""

    def __init__(self) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        argv = [os.path.realpath(sys.executable), "-I", "-S", descriptor_holder.__file__, str(os.getpid())]
        actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        try:
            # A process group of its own: Ctrl-C is not for it.
            self.pid = os.posix_spawn(argv[0], argv, _ENVIRONMENT, file_actions=actions, setpgroup=0)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(_PATIENCE)
        self._socket = ours
        self.room = open_files.hard_limit() - _RESERVED

    def ask(self, letter: bytes, number: int, descriptors: Sequence[int] = ()) -> list[int] | None:
        """The descriptors that come with the answer; None when it refuses. HolderLost when there is none."""
        try:
            descriptor_holder.send(self._socket, letter, number, list(descriptors))
            said, about, found = descriptor_holder.receive(self._socket)
        except OSError as error:
            self._socket.close()  # a late answer would be taken for another one's
            raise HolderLost(errno.ECONNRESET, f"{_GONE} ({error})") from None
        if (said, about) == (letter, number):
            return found
        close_all(found)
        if not said:
            raise HolderLost(errno.ECONNRESET, _GONE)
        return None

    def close(self) -> None:
        """End it: what it holds is closed."""
        self._socket.close()
        try:
            pidfd = pidfd_open(self.pid)
        except OSError:
            return  # reaped by the program around us already
        pidfd_send_signal(pidfd, SIGKILL)  # it may be stopped
        os.close(pidfd)
        reap(self.pid)

    def forsake(self) -> None:
        """Close our end in a fork of the program; it is the parent's."""
        self._socket.close()


class Ticket:
    """Descriptors that a holder has for us. To be taken or dropped once."""

    def __init__(self, parking: ParkedSockets, holder: HolderProcess, number: int, size: int) -> None:
        self._parking, self._holder, self._number, self._size = parking, holder, number, size

    def take(self) -> list[int]:
        """Have the descriptors back. OSError: EMFILE when there is no room for them here, or HolderLost."""
        return uninterrupted(self._take)

    def _take(self) -> list[int]:
        found = self._ask(descriptor_holder.TAKE, 0)
        if found is None or len(found) != self._size:
            close_all(found or ())
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.drop()  # not before: what had no room here is still there
        return found

    def drop(self) -> None:
        """Close them."""
        try:
            self._ask(descriptor_holder.DROP, self._size)
        except HolderLost:
            pass  # they are closed

    def is_connected(self) -> bool:
        """Whether the other end of the first one is open."""
        try:
            return self._ask(descriptor_holder.ASK, 0) is not None
        except HolderLost:
            return False

    def _ask(self, letter: bytes, freed: int) -> list[int] | None:
        return uninterrupted(lambda: self._parking.ask(self._holder, letter, self._number, freed))


class ParkedSockets:
    """All holders of this process, and the owners of sockets that could be parked. Thread-safe."""

    def __init__(self) -> None:
        self._holders: list[HolderProcess] = []
        #: Those that have sockets open which can be parked while they are idle. A new one is added here.
        self.clients: WeakSet[ParkableClient] = WeakSet()
        self._numbers = count(1)
        self._lock = threading.Lock()

    def forget(self, client: ParkableClient) -> None:
        """`client` is closed. With the last one the holders end."""
        self.clients.discard(client)
        holders: list[HolderProcess] = []
        if self._holders and not self.clients:
            with self._lock:
                holders, self._holders = self._holders, []
        for holder in holders:
            holder.close()

    def park_all(self) -> bool:
        """Have all clients that are idle park their sockets; whether any did."""
        while True:
            try:
                clients = list(self.clients)
                break
            except RuntimeError:
                continue  # another thread has added one that moment
        parked = False
        for client in clients:
            try:
                parked = client.park_sockets() or parked
            except OSError:
                break  # no holder can be started, or one was killed: there is no more room than there was
        return parked

    def hold(self, descriptors: Sequence[int]) -> Ticket:
        """Hand copies of these to a holder. OSError when none can be started."""
        return uninterrupted(lambda: self._hold(descriptors))

    def _hold(self, descriptors: Sequence[int]) -> Ticket:
        number = next(self._numbers)
        with self._lock:
            holder = next((one for one in self._holders if one.room >= len(descriptors)), None)
            if holder is None:
                holder = HolderProcess()
                self._holders.append(holder)
            try:
                if holder.ask(descriptor_holder.HOLD, number, descriptors) is None:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            except OSError:
                holder.room = 0  # it is full, or gone: the next ones are held by another
                raise
            holder.room -= len(descriptors)
        return Ticket(self, holder, number, len(descriptors))

    def ask(self, holder: HolderProcess, letter: bytes, number: int, freed: int) -> list[int] | None:
        """Ask for something that frees so much room if it is done."""
        with self._lock:
            found = holder.ask(letter, number)
            if found is not None:
                holder.room += freed
            return found

    def after_fork(self) -> None:
        """In a fork of the program: the holders are its parent's."""
        self._lock = threading.Lock()
        holders, self._holders = self._holders, []
        self.clients = WeakSet()
        for holder in holders:
            holder.forsake()


PARKED = ParkedSockets()
os.register_at_fork(after_in_child=PARKED.after_fork)


def taken_back(ticket: Ticket) -> list[int]:
    """Have parked descriptors back; others are parked for them, if need be. OSError as `Ticket.take`."""
    try:
        return ticket.take()
    except OSError as error:
        if error.errno != errno.EMFILE or not PARKED.park_all():
            raise
        return ticket.take()
