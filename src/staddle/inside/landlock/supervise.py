"""The two processes that stay while a command runs, so that nothing survives either of them.

    launcher      what the caller started: passes signals on, ends as the command did
      └ warden    in a session of its own: starts the command, answers its connect() calls,
          │       ends everything at the end, removes the private directories
          └ command

If the launcher is killed, the warden sees its end of a pipe close and ends everything. If
the warden is killed, the command dies with it and the launcher, who inherits what is left,
ends that. Both run as the sandbox's user, outside its Landlock rules and filter; nothing
inside can signal, trace or read either.
"""

from __future__ import annotations

import gc
import os
import select

from ...files import remove_tree
from ...ipc.status import CONFINEMENT, NotStarted, tell
from ...linux import process
from .. import confine
from ..kill_all import Descendants, share_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ...ipc.exec_spec import Instructions
    from ...linux.landlock import Ruleset
    from .unix_sockets import Broker

PASSED_ON = (process.SIGHUP, process.SIGINT, process.SIGQUIT, process.SIGTERM)
#: Sent by the kernel when the thread that started the launcher ends. Not one that people send.
ORPHANED = process.LAST_SIGNAL
HANDLED = (*PASSED_ON, process.SIGCHLD, ORPHANED)
#: Milliseconds until we look again whether a connection can be made, when too many are being made.
_BUSY = 20


def launch(instructions: Instructions, ruleset: Ruleset | None, status: int, parent: int) -> NoReturn:
    """Be the launcher: start the warden, pass signals on to it, end as it ends."""
    process.subreaper()
    lifeline, ours = os.pipe2(os.O_CLOEXEC)
    warden = os.fork()
    if warden == 0:
        os.close(ours)
        _guarded(status, lambda: _watch(instructions, ruleset, status, lifeline))
    os.close(lifeline)
    if status >= 0:
        os.close(status)
    if ruleset:
        ruleset.close()
    _let_go_of_streams()
    signals = process.signal_descriptor(HANDLED)
    ended = None
    while ended is None:
        _wait_for(signals)
        for number in process.read_signals(signals):
            if number in PASSED_ON:
                os.kill(warden, number)  # our child, not waited for yet: the number is its own
            elif number == ORPHANED and os.getppid() != parent and ours >= 0:
                os.close(ours)  # the warden ends everything
                ours = -1
        ended = _reap().get(warden, ended)
    if ended < 0:
        # Killed from outside. The command died with it; what else there is, is our child now.
        Descendants().end()
        remove_tree.remove(instructions.scratch)
    os._exit(_exit_status(ended))


def _watch(instructions: Instructions, ruleset: Ruleset | None, status: int, lifeline: int) -> int:
    """Be the warden. Returns the command's exit status when nothing of it is left."""
    os.setsid()  # whoever kills the launcher's process group does not kill us
    process.subreaper()
    descendants = Descendants()
    try:
        descendants = share_scope(instructions)
        command, broker = _start(instructions, ruleset, status)
        return _exit_status(_attend(command, broker, descendants, lifeline))
    finally:
        descendants.end()
        remove_tree.remove(instructions.scratch)


def _start(instructions: Instructions, ruleset: Ruleset | None, status: int) -> tuple[int, Broker | None]:
    ours, theirs = process.descriptor_channel() if instructions.brokered else (-1, -1)
    warden = os.getpid()
    command = os.fork()
    if command == 0:
        _guarded(status, lambda: confine.become_command(instructions, ruleset, status, warden, theirs))
    for fd in (theirs, status):
        if fd >= 0:
            os.close(fd)
    if ruleset:
        ruleset.close()
    if ours < 0:
        return command, None
    from .unix_sockets import Broker  # while the command's process is busy

    listener = process.receive_descriptor(ours)
    os.close(ours)
    # None: its process has failed, and said why.
    return command, None if listener is None else Broker(listener, instructions)


def _attend(command: int, broker: Broker | None, descendants: Descendants, lifeline: int) -> int:
    """Answer and pass on until the command, or the launcher, has ended."""
    gc.enable()  # the one of us that lives long and works
    _let_go_of_streams()
    signals = process.signal_descriptor(HANDLED)
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    while True:
        is_free = broker is None or broker.is_free()
        if broker:
            poll.register(broker.listener, select.POLLIN if is_free else 0)
        for fd, event in poll.poll(None if is_free else _BUSY):
            if fd == lifeline:
                return -process.SIGKILL
            if fd == signals:
                for number in process.read_signals(signals):
                    if number in PASSED_ON:
                        descendants.send(number)
            elif broker and event & select.POLLIN:
                broker.receive()
            elif broker and event:
                poll.unregister(broker.listener)  # nobody is under the filter any more
                broker = None
        ended = _reap().get(command)
        if ended is not None:
            return ended


def _let_go_of_streams() -> None:
    """They are the command's: whoever is at the other end must notice when it closes them."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


def _guarded(status: int, work: Callable[[], int]) -> NoReturn:
    """The whole life of a forked process: it never returns into what its parent was doing."""
    try:
        code = work()
    except NotStarted as failure:
        tell(status, failure)
        code = failure.code
    except BaseException as error:
        tell(status, NotStarted(CONFINEMENT, f"{type(error).__name__}: {error}"))
        code = CONFINEMENT
    os._exit(code)


def _wait_for(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()


def _reap() -> dict[int, int]:
    """Every child that has ended: its pid, and its exit status or minus the signal."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        pass
    return ended


def _exit_status(ended: int) -> int:
    return ended if ended >= 0 else 128 - ended
