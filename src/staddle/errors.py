"""All errors of staddle, in one tree.

    StaddleError
    ├── PolicyError                a rule, host name, size or file that is not valid
    │   └── PathEscape             a path that leaves its declared directory
    ├── PolicyNotEnforceable       the policy is valid, but this host or backend cannot enforce it
    ├── BackendError
    │   ├── UnknownBackend         no backend has this name
    │   ├── BackendUnavailable     it exists, but cannot confine anything here
    │   │   └── LandlockUnavailable this kernel has no Landlock, or one that is too old
    │   └── LaunchFailed           the confinement could not be set up; the command did not start
    │       ├── TooManyOpenFiles   this process has reached its limit (also a LayerError)
    │       └── ThreadUnavailable  this process cannot start a thread that the call needs
    ├── AuditFailed                a line of an audit log could not be written
    ├── AlreadyWrapped             wrap() of a wrapped command, or a second start of one
    ├── PathNotAllowed             a file beneath the working directory that no rule allows
    ├── CommandEnded               a command was ended early; carries its output
    │   ├── CommandTimeout         its timeout ended it (also a CommandFailed)
    │   └── CommandCancelled       a caller ended it
    ├── CommandNotFound            the program does not exist in the sandbox's view
    ├── CommandRefused             a rule forbids the command; nothing was started
    ├── CommandNotUnderstood       a script that cannot be parsed, so no rule can be checked
    ├── ExtraMissing               a part of staddle needs a package that is not installed
    ├── CommandFailed              a captured or checked command failed, or a CommandTimeout
    ├── InvalidCall                an invalid argument: a NUL, a negative time
    ├── SessionError
    │   ├── SandboxClosed          it was closed, and nothing runs in it any more
    │   │   └── SandboxLost        it ended by itself: something killed it
    │   ├── SessionBusy            it waits for the caller itself
    │   ├── UserUnavailable        this sandbox does not have the user's id
    │   │   └── RootUnavailable    this sandbox has no root
    │   ├── WaitTimeout            a background process did not do in time what was awaited
    │   └── PoolExhausted          no sandbox became free in time
    ├── WorkspaceError             a workspace is missing, or not in the state for this
    │   └── WorkspaceBusy          another process has locked it
    ├── LayerError                 a problem with a sandbox's changes, or with their storage
    │   ├── CommitRefused          nothing was written: conflicts, or names that need a review
    │   ├── CommitFailed           the host refused a step; everything was reverted
    │   └── ArchiveRefused         a file that is not an archive of a layer, or a malicious one
    ├── BaseError                  a problem with an imported base: unknown, or the name is taken
    ├── FleetError                 a problem with a fleet of machines
    │   ├── FleetBusy              no machine has room, or too many requests are waiting
    │   ├── FleetLost              the head of the cluster does not answer, or the fleet is closed
    │   └── TransferFailed         content did not arrive as it was sent
    ├── GitError
    │   ├── GitRefused             git was not started: the repository could make it do harm
    │   └── GitFailed              git was started and failed
    └── UsageError                 an invalid command line

A failing command is a result, never an exception. Every error tells what happened, why, and how to fix it, as
three attributes; `str()` joins them into one sentence. The command line prints them on separate lines, with
its options in place of Python's names.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .enforcement import Gap


def rendered(what: str, why: str = "", fix: str = "", *, lines: bool = False) -> str:
    """Format an error as one sentence, or with `lines` as what, `cause:` and `fix:` on separate lines."""
    if lines:
        parts = (what, *(f"  {name}: {text}" for name, text in (("cause", why), ("fix", fix)) if text))
        return "\n".join(parts)
    text = f"{what}: {why}" if why else what
    return f"{text}; {fix}" if fix else text


class StaddleError(Exception):
    """Base class: `what` happened, `why`, and the `fix`, as attributes and as one sentence."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what, why, fix)

    def __str__(self) -> str:
        return rendered(self.what, self.why, self.fix)

    def __reduce__(self) -> tuple[object, ...]:
        # By content: calling __init__ would lose its keywords between processes.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class PolicyError(StaddleError, ValueError):
    """A policy, or a value in it, is not valid."""


class PathEscape(PolicyError):
    """A declared path leads elsewhere through a link that a sandbox could have created."""


class PolicyNotEnforceable(StaddleError):
    """Part of the policy cannot be enforced here. Nothing was started."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", gaps: tuple[Gap, ...] = ()) -> None:
        super().__init__(what, why=why, fix=fix)
        self.gaps = gaps


class BackendError(StaddleError):
    """A backend is not available, or could not start the command."""


class UnknownBackend(BackendError, ValueError):
    """No backend has this name."""


class BackendUnavailable(BackendError):
    """This backend cannot confine anything on this host."""


class LandlockUnavailable(BackendUnavailable):
    """The kernel has no Landlock, or one too old to enforce writable_paths."""


class LaunchFailed(BackendError):
    """The confinement could not be set up, so the command did not start."""


class AuditFailed(StaddleError):
    """A line of the audit log could not be written. Nothing starts without its line."""


class AlreadyWrapped(StaddleError):
    """The command is already confined, or was already started."""


class PathNotAllowed(StaddleError):
    """The path is beneath its directory, but no rule allows the operation. Nothing was changed."""


class CommandEnded(StaddleError):
    """The command was ended before its own end, with all processes that it started.

    `result` is a `staddle.CommandResult` with the output so far; None only if no output was collected.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", result: Any = None) -> None:
        super().__init__(what, why=why, fix=fix)
        self.result = result


class CommandCancelled(CommandEnded):
    """A caller ended the command."""


class CommandNotFound(StaddleError):
    """The program does not exist, or the policy hides it. `status` is a shell's exit status for that."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", status: int = 127) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status


class CommandRefused(StaddleError):
    """A rule forbids this command. Nothing was started.

    `program` is the program ("" if only running it would show it), `owner` the tool to use instead, `reason`
    the rule's reason.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        program: str = "",
        owner: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.program, self.owner, self.reason = program, owner, reason


class CommandNotUnderstood(StaddleError):
    """A script that is not bash, or is longer than the parser reads. Nothing was started."""


class ExtraMissing(StaddleError, ImportError):
    """A feature needs a package that the base install lacks. `fix` tells how to install it."""


class CommandFailed(StaddleError):
    """A command that had to succeed failed. `status` is a shell's exit status for that.

    `result` is the `staddle.Result` of a session's command, else None.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        status: int = 1,
        output: bytes = b"",
        result: Any = None,
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status
        self.output = output
        self.result = result


class CommandTimeout(CommandEnded, CommandFailed):
    """The timeout ended the command and all processes that it had started.

    `result` is a `staddle.Result` for a session's command, a `staddle.CommandResult` for an environment's.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        status: int = 124,
        output: bytes = b"",
        result: Any = None,
    ) -> None:
        CommandFailed.__init__(self, what, why=why, fix=fix, status=status, output=output, result=result)


#: Former name, from when a session and a jail had separate classes.
CommandTimedOut = CommandTimeout


class InvalidCall(StaddleError, ValueError):
    """An argument is not valid. Nothing was started."""


class SessionError(StaddleError):
    """A problem with a sandbox and its shells, not with a command in one."""


class SandboxClosed(SessionError):
    """The sandbox, session or pool was closed: nothing can run in it any more."""


class SandboxLost(SandboxClosed):
    """The sandbox ended unasked: something killed it, or the host removed it."""


class SessionBusy(SessionError):
    """The caller itself uses the session: waiting for it would never end."""


class UserUnavailable(SessionError):
    """This sandbox does not have the requested user's id. The command was not started."""


class RootUnavailable(UserUnavailable):
    """This sandbox has no root. The command was not started."""


class WaitTimeout(SessionError, TimeoutError):
    """A background process did not do in time what was awaited, or ended before."""


class PoolExhausted(SessionError, TimeoutError):
    """No sandbox of the pool became free in time."""


class WorkspaceError(StaddleError):
    """A workspace does not exist, or cannot do this now."""


class WorkspaceBusy(WorkspaceError):
    """Another process has locked this workspace."""


class LayerError(StaddleError):
    """A problem with a sandbox's changes, or with their storage."""


def resource_fix(why: str, otherwise: str) -> str:
    """Return the limit to raise if `why` names a resource that the kernel refused; else `otherwise`."""
    if os.strerror(errno.EAGAIN) in why:
        return "raise the limit on processes that this program runs under (ulimit -u, pids.max)"
    if os.strerror(errno.ENOMEM) in why:
        return "raise the limit on memory that this program runs under (ulimit -v, memory.max)"
    return otherwise


class ThreadUnavailable(LaunchFailed, RuntimeError):
    """A call needs a thread, and this process can start no more."""


def thread_unavailable() -> ThreadUnavailable:
    """Return the error for Python's `can't start new thread`."""
    return ThreadUnavailable(
        "staddle could not start a thread",
        why="this process may have no more threads or memory, or it is ending",
        fix="raise the limits that it runs under (ulimit -u, ulimit -v)",
    )


def is_full(error: BaseException) -> bool:
    """Whether an error means that no more files can be opened, or that no open file can be waited for."""
    if not isinstance(error, OSError):
        return False
    return error.errno in (errno.EMFILE, errno.ENFILE) or is_poll_refused(error)


#: The most descriptors that we give to a poll.
_MOST_POLLED = 8


def is_poll_refused(error: OSError) -> bool:
    """Whether an error means that a poll had more descriptors than the limit on open files: poll(2)."""
    if error.errno != errno.EINVAL:
        return False
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _MOST_POLLED


def not_handed_over(error: OSError, fix: str) -> LaunchFailed:
    """Return the error for a memory file that could not be written for a sandbox."""
    is_limited = error.errno == errno.EFBIG
    return LaunchFailed(
        "a command or its input could not be handed over",
        why="this process may not write a file of that size" if is_limited else str(error),
        fix="raise the limit on the size of files (ulimit -f)" if is_limited else fix,
    )


class TooManyOpenFiles(LaunchFailed, LayerError):
    """This process has reached its limit of open files."""


def too_many_open_files(why: str = "this process has as many open as it may have") -> TooManyOpenFiles:
    """Return the error for a failed attempt to open another file."""
    return TooManyOpenFiles(
        "there is no room for more open files",
        why=why,
        fix="raise the limit (ulimit -n), or close sandboxes that are not used",
    )


class CommitRefused(LayerError):
    """The commit wrote nothing. `conflicts` changed on the host meanwhile, `held` needs allow_protected.

    Their classes are in `staddle.layers.review`.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        conflicts: tuple[Any, ...] = (),
        held: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.conflicts, self.held = conflicts, held


class CommitFailed(LayerError):
    """The host refused a step. The completed steps were reverted."""


class ArchiveRefused(LayerError):
    """The file is not an archive of a layer, is damaged, or is malicious. Nothing was created."""


class BaseError(StaddleError):
    """A problem with an imported base: it does not exist, or its name is taken."""


class FleetError(StaddleError):
    """A problem with a fleet of machines, not with one of its sandboxes."""


class FleetBusy(FleetError, TimeoutError):
    """No machine of the fleet has room, or the tenant has reached its limit. Nothing was started."""


class FleetLost(FleetError):
    """The fleet is closed, or the head of its cluster does not answer."""


class TransferFailed(FleetError):
    """A workspace or a snapshot did not arrive as it was sent. Nothing was created."""


class GitError(StaddleError):
    """A problem with a git repository."""


class GitRefused(GitError):
    """Git was not started: the repository could make it do harm."""


class GitFailed(GitError):
    """Git failed. `status` is its exit status."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", status: int = 1) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status


class UsageError(StaddleError):
    """The command line is not valid."""
