"""The process that stands for a command in namespaces of our own: what the caller starts and waits for.

It starts the sandbox (see `namespace_init`), passes signals on, and ends as the command did. It runs
with the rights of its caller until the sandbox's first process exists, and with none after.
However it ends, everything inside ends with it, and so does the network gateway, if there is one.
"""

from __future__ import annotations

import os
import select

from ..ipc import namespace_spec
from ..ipc.status import ARGUMENTS, NotStarted, not_started, tell
from ..linux import process
from . import namespace_init
from . import parent as parent_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .gateway import CommandGateway

_LONGEST = 4096


def main(words: list[str]) -> NoReturn:
    """Be the launcher, with what is asked in the descriptor that `words` names. Never returns."""
    status = -1
    try:
        asked = _asked(words)
        status = asked.status
        code = _launch(asked)
    except BaseException as error:
        failure = not_started(error)
        code = failure.code
        tell(status, failure)
    os._exit(code)


def _asked(words: list[str]) -> namespace_spec.Surroundings:
    if len(words) != 1 or not words[0].isdecimal():
        raise NotStarted(ARGUMENTS, "usage: namespaces DESCRIPTOR")
    try:
        return namespace_spec.decode(parent_process.contents(int(words[0])))
    except (OSError, ValueError) as error:
        raise NotStarted(ARGUMENTS, f"nothing is asked for in descriptor {words[0]}: {error}") from None


def _launch(asked: namespace_spec.Surroundings) -> int:
    given = (asked.status, *asked.gateway, *asked.cgroup_fds, *(() if asked.tally < 0 else (asked.tally,)))
    process.close_from(3, keep=given)
    for fd in given:
        os.set_inheritable(fd, False)
    process.block_signals(namespace_init.HANDLED)
    namespace_init.open_streams()
    parent = os.getppid()
    parent_process.die_with(parent, asked.launcher, asked.status)
    gateway = _gateway(asked)
    try:
        first, told = namespace_init.start(asked, range(3), gateway)
        parent_process.die_with(parent, asked.launcher, asked.status)  # a change of identity has cleared it
        return _attend(first, told)
    finally:
        if gateway is not None:
            gateway.end()


def _gateway(asked: namespace_spec.Surroundings) -> CommandGateway | None:
    """Started in the host's network, while we are there."""
    if not asked.gateway:
        return None
    from .gateway import CommandGateway  # only for a policy that names something to reach

    gateway = CommandGateway(asked.gateway)
    os.close(asked.gateway[0])
    return gateway


def _attend(first: int, told: int) -> int:
    """Pass signals on until `first` has ended. Returns the command's exit status, or raises NotStarted."""
    signals = process.signal_descriptor(namespace_init.HANDLED)
    poll = select.poll()
    for fd in (told, signals):
        poll.register(fd, select.POLLIN)
    words: bytes | None = None
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if words is None and told in ready:
            words = os.read(told, _LONGEST)
            poll.unregister(told)
            if not words:
                _let_go_of_streams()
        for number in process.read_signals(signals):
            if number in namespace_init.PASSED_ON:
                if words is None:
                    # Nothing runs yet that could answer it. Our end takes everything along.
                    return 128 + number
                os.kill(first, number)  # our child, not waited for yet: the number is its own
        ended, status = os.waitpid(first, os.WNOHANG)
        if ended:
            break
    if words is None:
        words = os.read(told, _LONGEST)  # nobody is left who could write more
    if words:
        _, _, why = words.decode("utf-8", "replace").partition(" ")
        raise NotStarted(namespace_init.as_a_shell(status), why)
    return namespace_init.as_a_shell(status)


def _let_go_of_streams() -> None:
    """They are the command's: whoever is at the other end must notice when it closes them."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)
