"""The process that systemd starts for us: it makes the confinement and stays until the end.

    systemd ── unit ── first ── command
                │        │
                │        └ PID 1 of the sandbox: reaps, passes signals on to everybody
                └ outside of the sandbox's processes: has the socket to the client

The unit's standard input is one end of a socket pair; the other is with the client, who sends
the specification and the command's three descriptors, and gets reports. When the client is
gone, killed or not, the socket is closed, and this process ends everything: the kernel kills
`first` with it, and with `first` every process of the sandbox.
"""

from __future__ import annotations

import _socket
import os

from ..ipc import systemd_spec
from ..ipc.descriptors import receive
from ..ipc.status import CONFINEMENT, NotStarted, written
from ..ipc.wire import Malformed
from ..linux import process
from ..linux.fileio import read_if_there
from ..linux.process import exit_status
from . import namespace_init
from . import parent as parent_process
from .child import HANDLED, Attendant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .gateway import CommandGateway

#: Messages. To us, once and first: descriptors come with it, the command's three, the specification, and
#: two that lead to the gateway, where there is one. Then signals to pass on.
SPEC, SIGNAL = b"o", b"k"
#: From us: a failure and its words, the command's first instruction, its exit status.
FAILED, STARTED, ENDED = b"f", b"s", b"x"
LONGEST = 4096


def main() -> NoReturn:
    """Be the unit. Never returns."""
    control = _socket.socket(fileno=0)
    try:
        code = _unit(control)
    except (NotStarted, Malformed, OSError) as error:
        code = error.code if isinstance(error, NotStarted) else CONFINEMENT
        _send(control, FAILED + written(code, str(error)))
    os._exit(code)


def _unit(control: _socket.socket) -> int:
    stdio, spec, gateway = _receive(control)
    process.block_signals(HANDLED)
    _check_unit(spec)
    first, report = namespace_init.start(spec, stdio, gateway)
    for fd in (*stdio, *(gateway.descriptors() if gateway else ())):
        os.close(fd)
    return _attend(control, first, report)


def _receive(
    control: _socket.socket,
) -> tuple[tuple[int, ...], systemd_spec.SystemdSpec, CommandGateway | None]:
    """The command's descriptors, the specification, and the gateway. Only the client holds the other end."""
    message, received = receive(control, 16, most=7)
    if message != SPEC or len(received) < 4:
        os._exit(CONFINEMENT)  # the client has ended before it asked for anything
    *stdio, file = received[:4]
    outward = received[4:]
    spec = systemd_spec.decode(parent_process.contents(file))
    if len(outward) != len(spec.gateway):
        raise NotStarted(CONFINEMENT, "the network gateway is missing")
    if not outward:
        return tuple(stdio), spec, None
    from .gateway import CommandGateway  # only for a policy that names something to reach

    return tuple(stdio), spec, CommandGateway.elsewhere(*outward)


def _check_unit(spec: systemd_spec.SystemdSpec) -> None:
    """See that the properties did what they say: some mean nothing in some managers."""
    if b"\nNoNewPrivs:\t1\n" not in read_if_there("/proc/self/status"):
        raise NotStarted(CONFINEMENT, "systemd ignored NoNewPrivileges=yes")
    for name, inode in spec.foreign:
        kind = os.fsdecode(name)
        if os.stat(f"/proc/self/ns/{kind}").st_ino == inode:
            raise NotStarted(CONFINEMENT, f"systemd did not give the unit its own {kind} namespace")
    if not spec.bounds:
        return
    own = next(
        (line[3:] for line in read_if_there("/proc/self/cgroup").splitlines() if line[:3] == b"0::"), b"/"
    )
    for name, most in spec.bounds:
        path = f"/sys/fs/cgroup{os.fsdecode(own)}/{os.fsdecode(name)}"
        if not _is_bounded(read_if_there(path), most):
            raise NotStarted(CONFINEMENT, f"systemd did not set the limit in {path}")


def _is_bounded(text: bytes, most: int) -> bool:
    """Whether a control group file says at most `most`: a number, or for cpu.max a quota and a period."""
    words = text.split()
    if not words or not all(word.isdigit() for word in words):
        return False
    return int(words[0]) <= (most * int(words[1]) // 1000 if len(words) > 1 else most)


def _attend(control: _socket.socket, first: int, report: int) -> int:
    """Pass signals on and report to the client, until `first` or the client has ended; our exit status."""
    words: list[bytes] = []  # the message on `report`: empty when the command was exec'd
    instead: list[int] = []  # our exit status where it is not the command's
    attendant = Attendant(first)

    def read(_: int = 0) -> None:
        words.append(os.read(report, LONGEST))
        attendant.leave(report)
        _send(control, FAILED + words[0] if words[0] else STARTED)

    def serve_client(_: int) -> None:
        message = _receive_message(control)
        if not message:
            os.kill(first, process.SIGKILL)
            os.waitpid(first, 0)
            instead.append(128 + process.SIGKILL)
            attendant.stop()
        elif message[:1] == SIGNAL and message[1:].isdigit():
            pass_on(int(message[1:]))

    def pass_on(number: int) -> None:
        attendant.serve_now(report)  # whoever signals may have seen it start before we did
        if words and not instead:
            os.kill(first, number)
        elif not words:
            instead.append(128 + number)  # nothing runs yet that could answer it; our end takes all along
            attendant.stop()

    attendant.serve(report, read)
    attendant.serve(control.fileno(), serve_client)
    status = attendant.run(pass_on)
    if status is None:
        return instead[0]
    if not words:
        read()  # no process is left that could write more
    code = exit_status(status)
    if not words[0]:
        _send(control, ENDED + b"%d" % code)
    return code


# ---------------------------------------------------------------- small things


def _send(control: _socket.socket, message: bytes) -> None:
    try:
        control.send(message[:LONGEST], _socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it has ended; reading the socket tells so


def _receive_message(control: _socket.socket) -> bytes:
    try:
        return control.recv(LONGEST)
    except OSError:
        return b""
