"""From the command line to the confined command: read, prepare with our own rights, let go of them."""

from __future__ import annotations

import errno
import fcntl
import os
import select

from ..linux import process
from . import confine, scratch, supervise
from .instructions import Instructions, Malformed, decode
from .status import ARGUMENTS, CONFINEMENT, NotStarted, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: More than a thousand paths of the longest kind need; a larger file is not ours.
_LONGEST = 64 << 20


def jail_exec(words: list[str]) -> NoReturn:
    """Do as the instructions say. Never returns."""
    status = -1
    try:
        if len(words) != 2 or words[0] != "jail-exec":
            raise NotStarted(ARGUMENTS, "usage: jail-exec DESCRIPTOR-OR-FILE")
        instructions = _read(words[1])
        status = _status(instructions.status)
        _start(instructions, status)
    except NotStarted as failure:
        tell(status, failure)
        os._exit(failure.code)
    except OSError as error:
        tell(status, NotStarted(CONFINEMENT, str(error)))
        os._exit(CONFINEMENT)


def _start(instructions: Instructions, status: int) -> NoReturn:
    """With the caller's rights, until `_become`: whatever is opened here was named by the plan."""
    process.close_from(3, keep=(status,))
    os.umask(0o022)
    # Held back from here on: whoever is in charge later takes them from a descriptor.
    process.block_signals(supervise.HANDLED)
    parent = os.getppid()
    _die_with(parent, instructions, status)
    if instructions.uid >= 0:
        # All of it now: who we become may not be able to read this package.
        from ..linux import tree  # noqa: F401
        from . import unix_sockets, view  # noqa: F401

        view.build(instructions)
    scratch.make(instructions.scratch, instructions.uid, instructions.gid)
    try:
        ruleset = confine.build_ruleset(instructions)
        _become(instructions)
        _die_with(parent, instructions, status)  # a change of identity has cleared it
        if instructions.supervise:
            supervise.launch(instructions, ruleset, status, parent)
        confine.become_command(instructions, ruleset, status, guardian=0)
    except BaseException:
        scratch.remove(instructions.scratch)
        raise


def _become(instructions: Instructions) -> None:
    if instructions.uid >= 0:
        process.empty_bounding_set()
        process.become(instructions.uid, instructions.gid)
    try:
        process.new_session_keyring()
    except OSError:
        pass  # no keys in this kernel, or too many: the filter refuses every call that reads one
    process.no_new_privs()
    process.drop_capabilities()
    # No other process of this user reads our memory: it may hold secrets of the environment.
    process.dumpable(False)


def _die_with(parent: int, instructions: Instructions, status: int) -> None:
    """Be told when the process that started us ends; notice when it did before we asked."""
    if not instructions.launcher:
        return
    number = supervise.ORPHANED if instructions.supervise else process.SIGKILL
    process.death_signal(number)
    if os.getppid() != parent or (parent != instructions.launcher and _is_deserted(instructions, status)):
        raise NotStarted(CONFINEMENT, "the process that started this has ended")


def _is_deserted(instructions: Instructions, status: int) -> bool:
    """Whether our parent is one that took us over: who asked is gone, and nobody holds the other end."""
    if instructions.launcher == os.getpid():
        return False  # it became us
    try:
        os.kill(instructions.launcher, 0)
    except ProcessLookupError:
        return _is_broken(status)
    except OSError:
        pass
    return False


def _is_broken(status: int) -> bool:
    if status < 0:
        return False
    poll = select.poll()
    poll.register(status, 0)
    return bool(poll.poll(0))


def _read(where: str) -> Instructions:
    try:
        if where.startswith("/"):
            fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        else:
            fd = int(where)
        size = os.fstat(fd).st_size
        if size > _LONGEST:
            raise Malformed("they are too long")
        data = bytearray()
        while chunk := os.pread(fd, size + 1 - len(data), len(data)):
            data += chunk
        os.close(fd)
        return decode(bytes(data))
    except (OSError, ValueError) as error:
        raise NotStarted(ARGUMENTS, f"there are no instructions at {where!r}: {error}") from None


def _status(where: bytes) -> int:
    """The descriptor for bad news. It is closed by exec, which is the good news."""
    if not where:
        return -1
    try:
        if where.startswith(b"/"):
            return os.open(where, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        fd = int(where)
        if fd < 3:
            raise OSError(errno.EBADF, "standard streams are the command's")
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        return fd
    except (OSError, ValueError) as error:
        raise NotStarted(ARGUMENTS, f"status cannot be told at {where!r}: {error}") from None
