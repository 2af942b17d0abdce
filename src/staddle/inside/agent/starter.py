"""A process of the sandbox that was confined ahead, and starts programs.

    agent ══ socket ══ starter ── posix_spawn ──> program

It is a fork of the agent, confined and verified like every other process of the sandbox, and its programs
inherit that. Entering the sandbox costs milliseconds, and happens once. It is the parent of one program at a
time, reaps that program's orphans, and reports its end to the agent. If orphans still run then, it exits, and
the agent inherits them. No process inside can trace it. If it dies, the agent reaps the program, and starts
the next program itself.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import time

from ...ipc import agent_messages
from ...ipc.wire import Malformed
from ...linux import process
from ..child import spawn
from . import process_tree, processes, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Container
    from typing import NoReturn

    from ...ipc.agent_messages import UsageCounts
    from .processes import SpawnSpec

#: It is made for the second program, because many sandboxes run only one.
_WORTH_IT = 2
#: Milliseconds for a step that takes a fraction of one. A program in the sandbox may stop the starter.
_PATIENCE = 1000
#: After so many failures it is not made again.
_MOST_FAILURES = 3
#: After so many seconds without a program it is killed, to free its memory.
_IDLE = 5.0
_CONCERNS_ALL = (agent_messages.END_ALL, agent_messages.END_OTHERS, agent_messages.PAUSE, agent_messages.SWAP)


class ProgramStarter:
    """The agent's view of the starter: there is none, it waits, or it is the parent of a program."""

    def __init__(self, confine: Callable[[], None] | None, count: usage.Count, poll: select.poll) -> None:
        """`confine` confines a fork of the agent. `poll` polls the starter's socket."""
        self._confine, self._count, self._poll = confine, count, poll
        self._asked = self._failures = 0
        self._used_at = 0.0
        self._socket: _socket.socket | None = None
        self._is_ready = False  # it has reported that it is confined, and waits
        #: Its pid, and the pid of the program below it (0: none).
        self.pid = self.program = 0

    def fileno(self) -> int:
        """Readable when its program, or it, has ended; -1 while there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def take(self, spec: SpawnSpec, known: Container[int]) -> int:
        """Have it start a program; return the pid, or 0 if the agent has to start the program.

        `known` are the agent's other children. OSError if it is unclear whether the program was started.
        """
        self._asked += 1
        self._used_at = time.monotonic()
        if not self._is_ready and self._has_said(0):
            self.heard()
        if self._socket is None or self.program or not self._is_ready:
            return 0
        newest = usage.last_pid()
        fields = spec.argv, spec.environment, spec.directory
        try:
            agent_messages.send_message(
                self._socket, agent_messages.encode(agent_messages.BECOME, *fields), spec.stdio
            )
        except OSError:
            self._fail()  # it was killed
            return 0
        message = self._receive(_PATIENCE)
        if message is not None and message.kind == agent_messages.BECAME:
            (self.program,) = message.fields
            return self.program
        self._fail()
        # It was stopped or killed, maybe by the program, which then is our child and runs.
        found = [pid for pid in process_tree.children() if pid > newest and pid not in known]
        found = [pid for pid in found if os.getsid(pid) == pid]
        if len(found) > 1:
            raise OSError(errno.EINTR, "the process that was to start it was stopped or killed")
        return found[0] if found else 0

    def refill(self) -> None:
        """Make a starter, if there is none and it is worth it. Does not wait for it."""
        if (
            self._confine is not None
            and self._socket is None
            and self._asked >= _WORTH_IT
            and self._failures < _MOST_FAILURES
        ):
            self._make(self._confine)

    def heard(self) -> tuple[int, int, UsageCounts] | None:
        """Return (pid, status, usage) of its program that has ended; None if it is ready, or dead itself.

        If it is dead, its program is the agent's child, unless the starter had reaped it already.
        """
        message, pid = self._receive(0), self.program
        if not self._is_ready and message is not None and message.kind == agent_messages.BECAME:
            self._is_ready = True
            return None
        if message is None or message.kind != agent_messages.FINISHED or not pid:
            self._fail()
            return (pid, process.SIGKILL, (0,) * 6) if pid and not processes.is_child(pid) else None
        self.program = 0
        self._used_at = time.monotonic()
        status, stays, spent = message.fields
        if not stays:
            self._forget()
        return pid, status, self._count.add(pid, spent)

    def stopped(self, pid: int) -> None:
        """Handle a stopped child of the agent. If it is the starter, the agent has to reap its program."""
        if pid and pid == self.pid:
            self._fail()

    def patience(self) -> int | None:
        """Kill it if no program was started for a while; else return the milliseconds until then, or None."""
        if self._socket is None or self.program:
            return None
        left = self._used_at + _IDLE - time.monotonic()
        if left <= 0:
            self.end()
            return None
        return int(left * 1000) + 1

    def end_before(self, kind: bytes) -> None:
        """Kill it before a request that concerns all processes of the sandbox, or its mounts."""
        if self._socket is not None and kind in _CONCERNS_ALL:
            self.end()

    def end(self) -> None:
        """Kill it; the agent reaps it and its program. Count programs anew."""
        if self.pid:
            _kill(self.pid)
        self._forget()
        self._asked = 0

    def _has_said(self, patience: int) -> bool:
        if self._socket is None:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(patience))

    def _receive(self, patience: int) -> agent_messages.Message | None:
        try:
            if self._socket is not None and self._has_said(patience):
                return agent_messages.receive_message(self._socket)
        except (Malformed, OSError):
            pass
        return None

    def _forget(self) -> None:
        if self._socket is not None:
            self._poll.unregister(self._socket.fileno())
            self._socket.close()
        process_tree.HIDDEN.discard(self.pid)
        self._socket, self.pid, self.program, self._is_ready = None, 0, 0, False

    def _fail(self) -> None:
        self._failures += 1
        self.end()

    def _make(self, confine: Callable[[], None]) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._count.leave_out_one()
        try:
            spec = processes.SpawnSpec((), (), b"/", (null, null, null))
            self.pid, report = processes.start(spec, lambda *_: _serve(confine, theirs))
        except OSError:
            self._failures += 1
            ours.close()
            return
        finally:
            os.close(null)
            theirs.close()
        os.close(report)  # if it fails, the agent starts the next program and reports the reason
        self._socket = ours
        self._count.ours.add(self.pid)
        process_tree.HIDDEN.add(self.pid)
        self._poll.register(ours.fileno(), select.POLLIN)


def _kill(pid: int) -> None:
    """Kill a child of ours, and wait until it is dead, but not forever if it is frozen."""
    try:
        os.kill(pid, process.SIGKILL)
        handle = process.pidfd_open(pid)
    except OSError:
        return  # it has ended, or a filter forbids the handle
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(_PATIENCE)
    finally:
        os.close(handle)


def _serve(confine: Callable[[], None], socket: _socket.socket) -> NoReturn:
    """Be the starter: start a program on request, and wait for its end."""
    process.dumpable(True)  # else root would own our counters
    moved = usage.IoCounters()
    # No process in the sandbox may trace us: we are a fork of the agent. Until here, our other user namespace
    # prevented that.
    process.dumpable(False)
    confine()
    process.dumpable(False)  # a change of user may have reset it
    process.close_from(3, keep=(socket.fileno(), moved.fd))
    agent_messages.send_message(socket, agent_messages.encode(agent_messages.BECAME, 0))
    while message := agent_messages.receive_message(socket, bodies=True):
        moved.begin()
        argv, environment, directory = message.fields
        try:
            os.chdir(directory)
            pid = spawn(argv, dict(item.split(b"=", 1) for item in environment), message.descriptors)
        except (OSError, NotImplementedError):
            pid = 0  # the agent tries it, and reports why it fails
        os.chdir(b"/")  # a directory can be removed and unmounted while we wait
        message.close()
        agent_messages.send_message(socket, agent_messages.encode(agent_messages.BECAME, pid))
        if pid:
            status, used = _wait(pid)
            spent = (*usage.times(used), *moved.since(), used.ru_maxrss << 10)
            stays = not _has_children()
            said = agent_messages.encode(agent_messages.FINISHED, status, int(stays), spent)
            agent_messages.send_message(socket, said)
            if not stays:
                break
    os._exit(0)


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    """Wait for the end of `pid`, and reap every process that ends before."""
    while True:
        # WNOWAIT first: if we are killed while we wait, the child's status must not be lost.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None:
            _, status, used = os.wait4(ended.si_pid, 0)
            if ended.si_pid == pid:
                return status, used


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
