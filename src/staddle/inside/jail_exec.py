"""Run a confined command: read the specification, prepare with our own rights, drop them, exec."""

from __future__ import annotations

import errno
import fcntl
import os

from ..files import remove_tree
from ..ipc.exec_spec import ExecSpec, decode
from ..ipc.wire import ARGUMENTS, CONFINEMENT, NotStarted, tell
from ..linux import process
from . import confine
from . import namespace_launcher as parent_process
from .landlock import supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def jail_exec(words: list[str]) -> NoReturn:
    """Carry out the specification. Never returns."""
    status = -1
    try:
        if len(words) != 2 or words[0] != "jail-exec":
            raise NotStarted(ARGUMENTS, "usage: jail-exec DESCRIPTOR-OR-FILE")
        spec = _read(words[1])
        status = _status(spec.status)
        _start(spec, status)
    except NotStarted as failure:
        tell(status, failure)
        os._exit(failure.code)
    except OSError as error:
        tell(status, NotStarted(CONFINEMENT, str(error)))
        os._exit(CONFINEMENT)


def _start(spec: ExecSpec, status: int) -> NoReturn:
    """Prepare with the caller's rights, until `_become`. Every path that is opened here is from the plan."""
    if spec.tally >= 0:
        fcntl.fcntl(spec.tally, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    for fd in spec.proxy:
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    process.close_from(3, keep=(status, spec.tally, *spec.proxy))
    os.umask(0o022)
    # Blocked from here on: launcher and supervisor later read these signals from a descriptor.
    process.block_signals(supervisor.HANDLED)
    parent = os.getppid()
    _die_with(parent, spec, status)
    if spec.proxy:
        from .landlock import proxy

        proxy.start(spec, (status, spec.tally), lambda: _become(spec))
    if spec.uid >= 0:
        # Import all of it now: the user that we become may not be able to read this package.
        from ..linux import procfs  # noqa: F401
        from . import root_view
        from .landlock import connections  # noqa: F401

        if spec.tally >= 0:
            from ..limits import supervisor as limit_supervisor  # noqa: F401
        root_view.build(spec)
    remove_tree.make(spec.scratch, spec.uid, spec.gid)
    try:
        ruleset = confine.build_ruleset(spec)
        _become(spec)
        _die_with(parent, spec, status)  # a change of identity has cleared the death signal
        if spec.supervise:
            supervisor.launch(spec, ruleset, status, parent)
        confine.become_command(spec, ruleset, status, guardian=0)
    except BaseException:
        remove_tree.remove(spec.scratch)
        raise


def _become(spec: ExecSpec) -> None:
    if spec.uid >= 0:
        process.empty_bounding_set()
        process.become(spec.uid, spec.gid)
    try:
        process.new_session_keyring()
    except OSError:
        pass  # no keys in this kernel, or too many: the filter refuses every call that reads a key
    process.no_new_privs()
    process.drop_capabilities()
    # Other processes of this user must not read our memory, which may contain secrets of the environment.
    process.dumpable(False)


def _die_with(parent: int, spec: ExecSpec, status: int) -> None:
    if spec.launcher:
        number = supervisor.ORPHANED if spec.supervise else process.SIGKILL
        parent_process.die_with(parent, spec.launcher, status, number)


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
    """Return the descriptor for a report of failure. A successful exec closes it."""
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
        raise NotStarted(ARGUMENTS, f"status cannot be written to {where!r}: {error}") from None
