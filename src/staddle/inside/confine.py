"""Confine the command's own process, in the one order that works, until it becomes the command.

The caller has only the rights of the sandbox's user. Each step either succeeds or ends the process, so that
no failed step leads to exec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ..ipc.wire import CONFINEMENT, NotStarted
from ..limits.process_attributes import narrow_cpus
from ..linux import process
from ..linux.landlock import RIGHTS, Ruleset
from ..linux.openat2 import open_without_symlinks
from ..linux.seccomp import NEW_LISTENER, WAIT_KILLABLE, load
from .child import execute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ..ipc.exec_spec import ExecSpec


def build_ruleset(spec: ExecSpec) -> Ruleset | None:
    """Build the Landlock rules on descriptors, while we may still open every granted path."""
    if not (spec.handled_fs or spec.handled_net or spec.scoped):
        return None
    try:
        ruleset = Ruleset(spec.handled_fs, spec.handled_net, spec.scoped)
    except OSError as error:
        raise NotStarted(CONFINEMENT, f"Landlock could not be used: {error}") from None
    for path, rights, optional in spec.rules:
        _allow(ruleset, os.fsdecode(path), rights, bool(optional))
    for port, rights in spec.ports:
        ruleset.allow_port(port, rights)
    for stream in range(3):
        _allow_again(ruleset, stream)
    return ruleset


def _allow_again(ruleset: Ruleset, stream: int) -> None:
    """Let the command reopen the file of a standard stream (/dev/stdin), with that stream's access."""
    fs = RIGHTS["fs"]
    try:
        if not stat.S_ISREG(os.fstat(stream).st_mode):
            return
        mode = fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE
        reading = fs["read_file"][0] if mode != os.O_WRONLY else 0
        writing = fs["write_file"][0] | fs["truncate"][0] if mode != os.O_RDONLY else 0
        ruleset.allow_beneath(stream, reading | writing)
    except OSError:
        pass  # it is closed, or a file without a path (a memfd), which needs no rule


def _allow(ruleset: Ruleset, path: str, rights: int, optional: bool) -> None:
    try:
        # By descriptor, and through no link. The plan's paths contain no links, so a link here was planted
        # since, and the rule would apply to its target.
        fd = open_without_symlinks(path, os.O_PATH)
    except OSError as error:
        if optional and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return
        why = (
            "a link has been put in its way" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)
        )
        raise NotStarted(CONFINEMENT, f"{path!r} cannot be granted: {why}") from None
    try:
        ruleset.allow_beneath(fd, rights)
    except OSError as error:
        raise NotStarted(CONFINEMENT, f"{path!r} cannot be granted: {error}") from None
    finally:
        os.close(fd)


#: If the hard limit on open files is at least this, a command gets a lower limit than the processes around
#: it.
_MANY_FILES = 512


def become_command(
    spec: ExecSpec,
    ruleset: Ruleset | None,
    status: int,
    guardian: int,
    broker: int = -1,
    *,
    last: Callable[[], None] = lambda: None,
    kept: int = 0,
) -> NoReturn:
    """Confine this process and exec the command. Raises only NotStarted.

    `last` is called as the final check once the process is confined. It keeps the capabilities in `kept`.
    """
    open_files = confine(spec, ruleset, guardian, broker, kept=kept)
    last()
    if open_files:  # last, because the steps before may need more files than this
        _checked("limits cannot be set", process.set_rlimits, {process.RLIMIT_NOFILE: open_files})
    execute(spec.argv, dict(item.split(b"=", 1) for item in spec.environment))


def confine(
    spec: ExecSpec, ruleset: Ruleset | None, guardian: int, broker: int = -1, *, kept: int = 0
) -> tuple[int, int] | None:
    """Confine this process, except for its limit on open files, which is returned for the caller to set.

    `guardian` is the process that must be our parent (0: any). On the channel `broker`, it waits for the
    filter's listener. Our first connect() waits until it has received that.
    """
    _leave_session()
    _checked("it stays a real-time process", process.leave_real_time)
    if guardian:
        process.death_signal(process.SIGKILL)
        if os.getppid() != guardian:
            raise NotStarted(CONFINEMENT, "the supervisor has exited")
    os.umask(spec.umask & 0o777)
    _enter_directory(spec.directory)
    limits = {resource: (soft, hard) for resource, soft, hard in spec.rlimits}
    open_files = limits.pop(process.RLIMIT_NOFILE, None)
    _checked("limits cannot be set", process.set_rlimits, limits)
    if spec.processors:
        _checked("its CPUs cannot be chosen", narrow_cpus, spec.processors)
    _checked("no_new_privs cannot be set", process.no_new_privs)
    if any(held & ~kept for held in process.capabilities()):
        _checked("capabilities cannot be dropped", process.drop_capabilities)
    if ruleset:
        if spec.names_threads:
            _checked("its threads cannot have names", _allow_thread_names, ruleset)
        _checked("Landlock does not take the rules", ruleset.restrict)
        ruleset.close()
    if spec.filter:
        listener = _load_filter(spec)
        if spec.brokered:
            _checked("the filter has no supervisor", process.send_descriptor, broker, listener)
        if not process.is_filtered():
            raise NotStarted(CONFINEMENT, "the system call filter was loaded, but is not on")
    process.default_signals()
    return open_files or fewer_files()


def _allow_thread_names(ruleset: Ruleset) -> None:
    """Let this process write the names of its threads. CUDA does not start if it cannot.

    A child has other files, and no rule could allow those without the files of all processes of the user.
    """
    threads = os.open("/proc/self/task", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ruleset.allow_beneath(threads, RIGHTS["fs"]["write_file"][0] | RIGHTS["fs"]["truncate"][0])
    finally:
        os.close(threads)


def fewer_files() -> tuple[int, int] | None:
    """Return the limit on open files of a command whose policy sets none; None if it is low already.

    Descriptors that it sends and no process receives count against all processes of its user. The processes
    around it have a higher limit, so that they can still send some.
    """
    soft, hard = process.rlimit(process.RLIMIT_NOFILE)
    return (soft, hard - hard // 4) if hard >= _MANY_FILES else None


def _enter_directory(directory: bytes) -> None:
    """Enter the directory in which the command starts; raise NotStarted if that fails."""
    try:
        os.chdir(directory)
    except OSError as error:
        why = f"{os.fsdecode(directory)!r} cannot be entered: {error.strerror}"
        raise NotStarted(CONFINEMENT, why, error.errno) from None


def _leave_session() -> None:
    """Leave the controlling terminal, so that a process inside cannot push input into it."""
    try:
        os.setsid()
    except PermissionError:
        if os.getsid(0) != os.getpid():  # a group leader cannot leave; a session leader has left already
            raise NotStarted(
                CONFINEMENT, "the terminal cannot be left by the leader of a process group"
            ) from None


def _load_filter(spec: ExecSpec) -> int:
    flags = NEW_LISTENER | WAIT_KILLABLE if spec.brokered else 0
    try:
        try:
            return load(spec.filter, flags)
        except OSError as error:
            if not flags or error.errno != errno.EINVAL:
                raise
            # Before Linux 5.19, a signal may interrupt a connection that is being made.
            return load(spec.filter, NEW_LISTENER)
    except OSError as error:
        busy = flags and error.errno == errno.EBUSY
        why = "another supervisor listens to a filter around this process already" if busy else str(error)
        raise NotStarted(CONFINEMENT, why) from None


def _checked(what: str, step: Callable[..., None], *args: object) -> None:
    try:
        step(*args)
    except OSError as error:
        raise NotStarted(CONFINEMENT, f"{what}: {error}") from None
