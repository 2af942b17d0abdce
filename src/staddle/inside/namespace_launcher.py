"""The process that stands for a command of the namespaces backend: the caller starts it and waits for it.

It starts the sandbox (see `namespace_init`), passes signals on, and exits with the command's status. It has
the rights of its caller until the sandbox's first process exists, and none after that. When it ends, for
whatever reason, everything inside ends with it, and so does the network gateway.
"""

from __future__ import annotations

import errno
import os
import select

from ..ipc import namespace_spec
from ..ipc.wire import ARGUMENTS, CONFINEMENT, Malformed, NotStarted, not_started, tell
from ..linux import process
from ..linux.process import exit_status
from . import namespace_init
from .child import HANDLED, Attendant, release_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .gateway import CommandGateway

_LONGEST = 4096


def main(words: list[str]) -> NoReturn:
    """Be the launcher, as specified in the descriptor that `words` names. Never returns."""
    status = -1
    try:
        spec = _spec(words)
        status = spec.status
        code = _launch(spec)
    except BaseException as error:
        failure = not_started(error)
        code = failure.code
        tell(status, failure)
    os._exit(code)


def _spec(words: list[str]) -> namespace_spec.NamespaceSpec:
    if len(words) != 1 or not words[0].isdecimal():
        raise NotStarted(ARGUMENTS, "usage: namespaces DESCRIPTOR")
    try:
        return namespace_spec.decode(contents(int(words[0])))
    except (OSError, ValueError) as error:
        raise NotStarted(ARGUMENTS, f"nothing is asked for in descriptor {words[0]}: {error}") from None


def _launch(spec: namespace_spec.NamespaceSpec) -> int:
    given = (spec.status, *spec.gateway, *spec.cgroup_fds, *(() if spec.tally < 0 else (spec.tally,)))
    process.close_from(3, keep=given)
    for fd in given:
        os.set_inheritable(fd, False)
    process.block_signals(HANDLED)
    namespace_init.open_streams()
    parent = os.getppid()
    die_with(parent, spec.launcher, spec.status)
    gateway = _gateway(spec)  # not in the unit: its memory and its threads are not the command's
    try:
        if spec.unit:
            from . import systemd_unit  # only for that backend

            systemd_unit.enter(spec)
        first, report = namespace_init.start(spec, range(3), gateway)
        # A change of identity has cleared the death signal.
        die_with(parent, spec.launcher, spec.status)
        return _attend(first, report)
    finally:
        if gateway is not None:
            gateway.end()


def _gateway(spec: namespace_spec.NamespaceSpec) -> CommandGateway | None:
    """Start the gateway while we are in the host's network; None if the policy needs none."""
    if not spec.gateway:
        return None
    from .gateway import CommandGateway  # only for a policy with network access

    gateway = CommandGateway(spec.gateway)
    os.close(spec.gateway[0])
    return gateway


def _attend(first: int, report: int) -> int:
    """Pass signals on until `first` has ended. Returns the command's exit status, or raises NotStarted."""
    words: list[bytes] = []  # the message on `report`: empty when the command was exec'd
    early: list[int] = []  # signals that arrived before that
    attendant = Attendant(first)

    def read(_: int) -> None:
        words.append(os.read(report, _LONGEST))
        attendant.leave(report)
        if not words[0]:
            release_streams()

    def pass_on(number: int) -> None:
        attendant.serve_now(report)  # the sender may have seen the command start before we did
        if words:
            os.kill(first, number)  # our child is not reaped yet, so its pid is still its own
        else:
            # No command runs yet that could handle it. Our end ends everything.
            early.append(number)
            attendant.stop()

    attendant.serve(report, read)
    status = attendant.run(pass_on)
    if status is None:
        return 128 + early[0]
    said = words[0] if words else os.read(report, _LONGEST)  # no process is left that could write more
    if said:
        _, _, why = said.decode("utf-8", "replace").partition(" ")
        raise NotStarted(exit_status(status), why)
    return exit_status(status)


# The process that started ours: read its specification, and end when it ends.


#: More than a thousand paths of the longest kind need; a larger file is not ours.
_LONGEST_SPEC = 64 << 20


def contents(file: int) -> bytes:
    """Return the contents of the memory file, and close it. OSError or Malformed if it cannot be read."""
    size = os.fstat(file).st_size
    if size > _LONGEST_SPEC:
        raise Malformed("they are too long")
    data = bytearray()
    while chunk := os.pread(file, size + 1 - len(data), len(data)):
        data += chunk
    os.close(file)
    return bytes(data)


def die_with(parent: int, launcher: int, status: int, number: int = process.SIGKILL) -> None:
    """Get the signal `number` when `parent` ends; NotStarted if it has ended already.

    `parent` was our parent a moment ago. `launcher` is the process that prepared this start, usually the
    parent itself.
    """
    process.death_signal(number)
    if os.getppid() != parent or (parent != launcher and _is_deserted(launcher, status)):
        raise NotStarted(CONFINEMENT, "the process that started this has exited")


def _is_deserted(launcher: int, status: int) -> bool:
    """Whether a reaper has adopted us: the launcher is gone, and the status pipe has no reader."""
    if launcher == os.getpid():
        return False  # it became us by exec
    return status >= 0 and _is_up(status, 0) and _has_ended(launcher)


def _has_ended(pid: int) -> bool:
    """Whether there is no such process, or only a zombie."""
    try:
        descriptor = process.pidfd_open(pid)
    except OSError as error:
        return error.errno == errno.ESRCH
    try:
        return _is_up(descriptor, select.POLLIN)
    finally:
        os.close(descriptor)


def _is_up(descriptor: int, events: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(0))
