"""From the command line to the confined command: read, prepare with our own rights, let go of them."""

from __future__ import annotations

import errno
import fcntl
import os

from ..files import remove_tree
from ..ipc.exec_spec import ExecSpec, decode
from ..ipc.status import ARGUMENTS, CONFINEMENT, NotStarted, tell
from ..linux import process
from . import confine
from . import parent as parent_process
from .landlock import supervise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


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


def _start(instructions: ExecSpec, status: int) -> NoReturn:
    """With the caller's rights, until `_become`: whatever is opened here was named by the plan."""
    process.close_from(3, keep=(status,))
    os.umask(0o022)
    # Held back from here on: launcher and supervisor read them from a descriptor later.
    process.block_signals(supervise.HANDLED)
    parent = os.getppid()
    _die_with(parent, instructions, status)
    if instructions.uid >= 0:
        # All of it now: who we become may not be able to read this package.
        from ..linux import process_tree  # noqa: F401
        from . import root_view
        from .landlock import unix_sockets  # noqa: F401

        root_view.build(instructions)
    remove_tree.make(instructions.scratch, instructions.uid, instructions.gid)
    try:
        ruleset = confine.build_ruleset(instructions)
        _become(instructions)
        _die_with(parent, instructions, status)  # a change of identity has cleared it
        if instructions.supervise:
            supervise.launch(instructions, ruleset, status, parent)
        confine.become_command(instructions, ruleset, status, guardian=0)
    except BaseException:
        remove_tree.remove(instructions.scratch)
        raise


def _become(instructions: ExecSpec) -> None:
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


def _die_with(parent: int, instructions: ExecSpec, status: int) -> None:
    if instructions.launcher:
        number = supervise.ORPHANED if instructions.supervise else process.SIGKILL
        parent_process.die_with(parent, instructions.launcher, status, number)


def _read(where: str) -> ExecSpec:
    try:
        if where.startswith("/"):
            fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        else:
            fd = int(where)
        return decode(parent_process.contents(fd))
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
