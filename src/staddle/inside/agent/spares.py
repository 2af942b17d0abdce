"""Processes of the sandbox that are forked and confined ahead, and wait for the program they become.

    agent ══ control ══ template ── clone(CLONE_PARENT) ──> waiting process, a child of the agent
          ══ a socket of its own ═════════════════════════> the same

The template is a fork of the agent that has entered the sandbox's cgroups and user namespace as the
sandbox's user, without capabilities. Entering costs milliseconds, and is done once. Each waiting process
is a clone of it that confines and checks itself as every other process of the sandbox does, and then waits.
Neither can be looked into from inside. Whatever happens to them, the agent starts the program itself instead.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from ...ipc import agent_messages
from ...ipc.descriptors import receive, send
from ...linux import process
from ...linux.syscalls import call
from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from .processes import Become, SpawnSpec
    from .usage import Count

    #: Enters the sandbox; returns a function that confines a clone of this process, and one that execs.
    Enter = Callable[[], tuple[Callable[[], None], Become]]

_CLONE_PARENT = 0x8000
#: The template is made for the second program: a sandbox may run one and no more.
_WORTH_IT = 2
#: Milliseconds for what takes a fraction of one. A program in the sandbox may stop the template.
_PATIENCE = 200
#: A template that was ended or stopped so often is not made again.
_MOST_FAILURES = 3
#: After so many seconds without a program they are ended: they take as much memory as a session without them.
_IDLE = 5.0
_CLONE = b"c"
_CONCERNS_ALL = (agent_messages.END_ALL, agent_messages.END_OTHERS, agent_messages.PAUSE, agent_messages.SWAP)


class SpareProcesses:
    """The template and the process that waits, as the agent sees them."""

    def __init__(self, enter: Enter | None, count: Count) -> None:
        self._enter, self._count = enter, count
        self._asked = self._failures = 0
        self._template = self._waiting = 0  # pids
        self._used_at = 0.0
        self.took = False  # whether the last call of `take` found one
        self._is_coming = False  # whether a clone was asked for that has not been announced
        self._control: _socket.socket | None = None
        self._socket: _socket.socket | None = None

    @property
    def pids(self) -> tuple[int, int]:
        """The template and the process that waits; 0 for each that is not there."""
        return self._template, self._waiting

    def take(self, spec: SpawnSpec) -> tuple[int, int] | None:
        """Have the waiting process become `spec`; returns as processes.start, or None if none waits."""
        self._asked += 1
        self._used_at = time.monotonic()
        self.settle()
        self.took = self._socket is not None
        if self._socket is None:
            return None
        pid, self._waiting = self._waiting, 0
        socket, self._socket = self._socket, None
        report, report_to = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fields = spec.argv, spec.environment, spec.directory
            message = agent_messages.encode(agent_messages.BECOME, *fields)
            agent_messages.send_message(socket, message, (*spec.stdio, report_to))
        except OSError:
            os.close(report)  # it was killed
            return None
        finally:
            os.close(report_to)
            socket.close()
        self._count.mark(pid)
        return pid, report

    def refill(self) -> None:
        """Have another process wait, and make the template if that is worth it. Does not wait for either."""
        if self._enter is None or self._waiting or self._is_coming or self._failures >= _MOST_FAILURES:
            return
        if self._control is None and self._asked >= _WORTH_IT:
            self._make(self._enter)
        if self._control is not None:
            try:
                self._control.send(_CLONE, _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT)
            except OSError:
                self._fail()
            else:
                self._is_coming = True

    def settle(self) -> None:
        """Wait until a process that was asked for has its number: only then can processes be counted."""
        if not self._is_coming or self._control is None:
            return
        self._is_coming = False
        try:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(_PATIENCE):
                raise OSError
            said, descriptors = receive(self._control, 32)
            if not descriptors:
                raise OSError  # it has ended
        except OSError:
            self._fail()
            return
        self._waiting = int(said)
        self._socket = _socket.socket(fileno=descriptors[0])
        self._count.leave_out_one()

    def gone(self, pid: int) -> None:
        """A process has ended that the agent has not started for the host program."""
        if pid == self._waiting:
            self._forget()
        elif pid == self._template:
            self._template = 0
            self._fail()

    def patience(self) -> int | None:
        """End them, if no program was started for a while; else the milliseconds until then. None: never."""
        if self._control is None:
            return None
        left = self._used_at + _IDLE - time.monotonic()
        if left <= 0:
            self.end()
            return None
        return int(left * 1000) + 1

    def end_before(self, kind: bytes) -> None:
        """End them before a request that concerns all processes of the sandbox, or its mounts."""
        if self._control is not None and kind in _CONCERNS_ALL:
            self.end()

    def end(self) -> None:
        """End the template and the process that waits; the agent reaps them. Begin to count programs anew."""
        self.settle()
        for pid in self.pids:
            if pid:
                _kill(pid)
        if self._control is not None:
            self._control.close()
            self._control = None
        self._forget()
        self._asked = self._template = 0

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._waiting = None, 0

    def _fail(self) -> None:
        self._failures += 1
        self._is_coming = False
        self.end()

    def _make(self, enter: Enter) -> None:
        control, its_control = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._count.leave_out_one()
        try:
            spec = processes.SpawnSpec((), (), b"/", (null, null, null))
            self._template, report = processes.start(spec, lambda *_: _template(enter, its_control))
        except OSError:
            self._failures += 1
            control.close()
            return
        finally:
            os.close(null)
            its_control.close()
        os.close(report)  # why it could not be made is told by the next program, which is started without it
        self._control = control


def _kill(pid: int) -> None:
    """Kill a child of ours, and wait until it is dead, but not for one that is frozen."""
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


def _template(enter: Enter, control: _socket.socket) -> NoReturn:
    """Be the template: clone ourselves when we are asked to, and announce the clone."""
    confine, become = enter()
    # Nothing in the sandbox looks into us: we are a fork of the agent, and were more.
    process.dumpable(False)
    process.close_from(3, keep=(control.fileno(),))
    while control.recv(1) == _CLONE:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = call("clone", _CLONE_PARENT | process.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            control.close()
            theirs.close()
            _wait(confine, become, ours)
        send(control, b"%d" % pid, (theirs.fileno(),))
        ours.close()
        theirs.close()
    os._exit(0)


def _wait(confine: Callable[[], None], become: Become, socket: _socket.socket) -> NoReturn:
    """Be a clone of it: confine ourselves, wait, and become a program."""
    failure: BaseException | None = None
    try:
        os.setsid()
        process.subreaper()
        confine()
    except BaseException as error:
        failure = error
    message = agent_messages.receive_message(socket, bodies=True)
    if message is None:
        os._exit(0)
    *stdio, report_to = message.descriptors
    try:
        if failure is not None:
            raise failure
        for stream, fd in enumerate(stdio):
            os.dup2(fd, stream)
        become(*message.fields)
    except BaseException as error:
        os._exit(processes.report(error, report_to))
