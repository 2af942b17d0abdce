"""The process that stands for a command in a systemd unit: what the caller starts and waits for.

It starts systemd-run, hands the specification and its own three descriptors to the process inside
the unit over a socket pair, passes signals on, and ends as the command did. The pair is the
unit's standard input to begin with: it has no name, so there is nothing on disk that could be
found or left behind, and no other process can be at its other end. However this process ends, the
socket is closed with it, and the unit ends itself.
"""

from __future__ import annotations

import _socket
import os
import time

from ..ipc import systemd_spec
from ..ipc.descriptors import send
from ..ipc.status import ARGUMENTS, CONFINEMENT, NotStarted, tell
from ..linux import process
from . import parent as parent_process
from .child import HANDLED, Attendant
from .systemd_unit import ENDED, FAILED, LONGEST, SIGNAL, SPEC, STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: How long systemd-run may take to notice that the unit has ended.
_PATIENCE = 10.0
#: Seconds that a unit has to say that its command runs when a signal came before that.
_EARLY_PATIENCE = 1.0
#: What systemd means by the exit status of a unit whose process it could not start.
_NO_SUCH_START = {
    203: "EXEC: the interpreter or the helper is not visible to the manager",
    205: "LIMITS",
    216: "GROUP",
    217: "USER",
    218: "CAPABILITIES",
    219: "CGROUP",
    224: "PAM",
    225: "NETWORK: no network namespace could be made",
    226: "NAMESPACE: no user or mount namespace could be made",
    227: "NO_NEW_PRIVILEGES",
    237: "KEYRING",
}


def main(words: list[str]) -> NoReturn:
    """Be the client, with the specification in the descriptor that `words` names. Never returns."""
    status = -1
    try:
        file = _descriptor(words)
        spec = _spec(file)
        status = spec.status
        for fd in (status, *spec.gateway):
            os.set_inheritable(fd, False)
        code = _run(spec, file)
    except NotStarted as failure:
        code = failure.code
        tell(status, failure)
    except OSError as error:
        code = CONFINEMENT
        tell(status, NotStarted(code, str(error)))
    os._exit(code)


def _run(spec: systemd_spec.SystemdSpec, file: int) -> int:
    if not spec.gateway:
        return _Client(spec, file).run()
    from .gateway import CommandGateway  # only for a policy that names something to reach

    gateway = CommandGateway(spec.gateway)  # our child, in the host's network; the unit has none of it
    os.close(spec.gateway[0])
    try:
        return _Client(spec, file, gateway.descriptors()).run()
    finally:
        gateway.end()


def _descriptor(words: list[str]) -> int:
    if len(words) != 1 or not words[0].isdecimal():
        raise NotStarted(ARGUMENTS, "usage: systemd-client DESCRIPTOR")
    return int(words[0])


def _spec(file: int) -> systemd_spec.SystemdSpec:
    try:
        return systemd_spec.decode(parent_process.contents(os.dup(file)))
    except (OSError, ValueError) as error:
        raise NotStarted(ARGUMENTS, f"there is no specification in descriptor {file}: {error}") from None


class _Client:
    """One unit, from its start to its end."""

    def __init__(self, spec: systemd_spec.SystemdSpec, file: int, gateway: tuple[int, ...] = ()) -> None:
        """`gateway` are the descriptors that lead to the network gateway, if there is one."""
        self._spec = spec
        self._output = b""
        self._started = False
        self._early = 0  # a signal that came before we knew that the command runs
        self._failure: NotStarted | None = None
        self._code: int | None = None
        process.block_signals(HANDLED)
        parent_process.die_with(os.getppid(), spec.launcher, spec.status)
        self._control, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._words, words = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._words, False)
        self._starter = self._start(theirs.fileno(), words)
        theirs.close()
        os.close(words)
        self._hand_over(file, gateway)

    def _start(self, stdin: int, output: int) -> int:
        us = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            process.death_signal(process.SIGKILL)
            if os.getppid() == us:
                os.dup2(stdin, 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                process.close_from(3)
                process.default_signals()
                environment = dict(item.split(b"=", 1) for item in self._spec.starter_environment)
                os.execve(self._spec.starter[0], self._spec.starter, environment)  # noqa: S606
        except OSError as error:
            os.write(2, f"{os.fsdecode(self._spec.starter[0])}: {error.strerror}".encode())
        finally:
            os._exit(CONFINEMENT)

    def _hand_over(self, file: int, gateway: tuple[int, ...]) -> None:
        """Send the specification and our descriptors, and let go of these: the command's ends are its own.

        All but standard error: that it could not be started may have to be told there.
        """
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        stdio = [fd if _is_open(fd) else null for fd in range(3)]
        send(self._control, SPEC, (*stdio, file, *gateway))
        for fd in (0, 1):
            os.dup2(null, fd)
        os.close(file)

    def run(self) -> int:
        """Wait for the end, and return the command's exit status. Raises NotStarted."""
        attendant = Attendant(self._starter)
        control, deadline = self._control.fileno(), 0.0

        def patience() -> float | None:
            nonlocal deadline
            if self._failure is None and self._code is None and not self._early:
                deadline = 0.0
                return None
            deadline = deadline or time.monotonic() + (_EARLY_PATIENCE if self._early else _PATIENCE)
            left = deadline - time.monotonic()
            if left <= 0 and self._early:
                os._exit(128 + self._early)
            if left <= 0:
                attendant.stop()
            return max(0.0, left) * 1000

        def read_words(_: int) -> None:
            if not self._collect():
                attendant.leave(self._words)

        def read_control(_: int) -> None:
            if not self._receive_message():
                attendant.leave(control)

        attendant.serve(self._words, read_words)
        attendant.serve(control, read_control)
        return self._conclude(attendant.run(self._pass_on, patience))

    def _collect(self) -> bool:
        try:
            chunk = os.read(self._words, 65536)
        except BlockingIOError:
            return False  # the manager may still hold the other end
        self._output = (self._output + chunk)[-LONGEST:]
        return bool(chunk)

    def _receive_message(self) -> bool:
        try:
            message = self._control.recv(2 * LONGEST, _socket.MSG_DONTWAIT)
        except OSError:
            message = b""
        kind, rest = message[:1], message[1:]
        if kind == STARTED:
            self._started, self._early = True, 0
        elif kind == ENDED:
            self._code = int(rest)
        elif kind == FAILED:
            code, _, why = rest.decode("utf-8", "replace").partition(" ")
            self._failure = NotStarted(int(code), why)
        return bool(message)

    def _pass_on(self, number: int) -> None:
        if not self._started:
            # Nothing may run yet that could answer it: the unit knows. Our end takes its end along.
            if self._early:
                os._exit(128 + number)
            self._early = number
        try:
            self._control.send(SIGNAL + b"%d" % number, _socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the unit has ended, and systemd-run is about to say so

    def _conclude(self, status: int | None) -> int:
        while self._receive_message():  # what was said before systemd-run ended
            pass
        while self._collect():
            pass
        if self._failure:
            raise self._failure
        if self._code is not None:
            return self._code
        if self._early:
            return 128 + self._early
        if self._started:
            return 128 + process.SIGKILL  # the unit was stopped, and with it the command
        if status is None:
            _, status = os.waitpid(self._starter, 0)
        raise NotStarted(CONFINEMENT, self._why_not(os.waitstatus_to_exitcode(status)))

    def _why_not(self, code: int) -> str:
        said = " ".join(self._output.decode("utf-8", "replace").split())
        if code in _NO_SUCH_START:
            why = f"systemd could not start the unit ({code}/{_NO_SUCH_START[code]})"
            return f"{why}: {said}" if said else why
        return f"systemd-run: {said}" if said else f"systemd-run ended with {code} and printed no reason"


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
