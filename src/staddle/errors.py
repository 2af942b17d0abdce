"""Every error of staddle, in one tree.

    StaddleError
    ├── PolicyError                a rule, host name, size or file that means nothing
    │   └── PathEscape             a path that leaves where it was declared to stay
    ├── PolicyNotEnforceable       the policy is fine, this host or backend cannot hold it
    ├── BackendError
    │   ├── UnknownBackend         no backend of that name
    │   ├── BackendUnavailable     it exists, but cannot confine anything here
    │   │   └── LandlockUnavailable this kernel has no Landlock, or too old a one
    │   └── LaunchFailed           the confinement could not be set up; the command did not start
    │       ├── TooManyOpenFiles   this process has as many as it may (a LayerError, too)
    │       └── ThreadUnavailable  this process has no room for a thread that the call needs
    ├── AuditFailed                a line of an audit log could not be written
    ├── AlreadyWrapped             wrap() of a wrapped command, or a second start of one
    ├── PathNotAllowed             a file beneath the working directory that may not be touched this way
    ├── CommandEnded               a command that did not come to its own end; carries what it printed
    │   ├── CommandTimeout         its time was up (a CommandFailed, too)
    │   └── CommandCancelled       somebody asked for its end
    ├── CommandNotFound            no such program in the sandbox's view
    ├── CommandRefused             a command that a rule speaks against; nothing was started
    ├── CommandNotUnderstood       a script that cannot be read, so that no rule can be held against it
    ├── ExtraMissing               a part of staddle that needs a package which is not installed
    ├── CommandFailed              a captured or checked command ended with an error, or a CommandTimeout
    ├── InvalidCall                an argument that no command can have: a NUL, a negative time
    ├── SessionError
    │   ├── SandboxClosed          it was closed, and nothing runs in it any more
    │   │   └── SandboxLost        it ended by itself: something killed it
    │   ├── SessionBusy            it waits for the very caller who asks
    │   ├── UserUnavailable        a user whose id this sandbox does not have
    │   │   └── RootUnavailable    nobody can be root in this sandbox
    │   ├── WaitTimeout            what a background process was waited for did not come
    │   └── PoolExhausted          no sandbox became free in time
    ├── WorkspaceError             a workspace that is not there, or not in the state for this
    │   └── WorkspaceBusy          another process has claimed it
    ├── LayerError                 something with what a sandbox changed, or with where that is kept
    │   ├── CommitRefused          nothing was written: conflicts, or names that need a second look
    │   ├── CommitFailed           the host said no on the way; everything was put back
    │   └── ArchiveRefused         a file that is no archive of a layer, or one that means harm
    ├── BaseError                  something with an imported base: no such name, or one that is taken
    ├── FleetError                 something with a fleet of machines
    │   ├── FleetBusy              no machine has room, or too many requests wait already
    │   ├── FleetLost              the head of the cluster does not answer, or the fleet is closed
    │   └── TransferFailed         content that did not arrive as it was sent
    ├── GitError
    │   ├── GitRefused             git was not asked: the repository could make it do harm
    │   └── GitFailed              git was asked and said no
    └── UsageError                 the command line says something we do not understand

A failing command is a result, never an exception. Every error says what happened, why,
and how to fix it; the three are attributes, and `str()` joins them into one sentence. The command line prints
them on lines of their own, with its options in place of Python's words.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .enforcement import Gap


def rendered(what: str, why: str = "", fix: str = "", *, lines: bool = False) -> str:
    """An error as text: one sentence, or what happened, and `cause:` and `fix:` on lines of their own."""
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
        # By content, not by calling __init__: its keywords would be lost between processes.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class PolicyError(StaddleError, ValueError):
    """A policy, or a value in one, that has no meaning."""


class PathEscape(PolicyError):
    """A declared path leads, through a link that a sandbox could have planted, elsewhere."""


class PolicyNotEnforceable(StaddleError):
    """Something the policy asks for cannot be held here. Nothing was started."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", gaps: tuple[Gap, ...] = ()) -> None:
        super().__init__(what, why=why, fix=fix)
        self.gaps = gaps


class BackendError(StaddleError):
    """A backend could not be had or could not start the command."""


class UnknownBackend(BackendError, ValueError):
    """No backend has this name."""


class BackendUnavailable(BackendError):
    """This backend cannot confine anything on this host."""


class LandlockUnavailable(BackendUnavailable):
    """The kernel has no Landlock, or one too old to hold writable_paths."""


class LaunchFailed(BackendError):
    """The confinement could not be set up, so the command did not start."""


class AuditFailed(StaddleError):
    """A line of the audit log could not be written. Nothing starts that the log does not have."""


class AlreadyWrapped(StaddleError):
    """The command is confined already, or its one start has been used."""


class PathNotAllowed(StaddleError):
    """The path stays beneath its directory, but no rule allows what was asked. Nothing was changed."""


class CommandEnded(StaddleError):
    """The command was ended before its own end, and everything it started with it.

    `result` is a `staddle.CommandResult` with the output until then; None only where no output was collected.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", result: Any = None) -> None:
        super().__init__(what, why=why, fix=fix)
        self.result = result


class CommandCancelled(CommandEnded):
    """The command was ended on request."""


class CommandNotFound(StaddleError):
    """The program is not there, or the policy hides it. `status` is what a shell would say."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", status: int = 127) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status


class CommandRefused(StaddleError):
    """A rule speaks against this command. Nothing was started.

    `program` is what would have been run ("" where only the run would show it), `owner` the
    tool that does this instead, `reason` the rule's.
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
    """A script that is no bash, or more than is read. Nothing was started."""


class ExtraMissing(StaddleError, ImportError):
    """Something that the base install does not bring. `fix` says how to install it."""


class CommandFailed(StaddleError):
    """A command that was to succeed ended with an error. `status` is what a shell would say.

    `result` is the `staddle.Result` where it ran in a session, else None.
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
    """The time was up, and the command was ended with everything it had started.

    `result` is the `staddle.Result` of a session's command, the `staddle.CommandResult` of an environment's.
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


#: Another name of it, from when a session and a jail had a class of their own.
CommandTimedOut = CommandTimeout


class InvalidCall(StaddleError, ValueError):
    """An argument that no command can have. Nothing was started."""


class SessionError(StaddleError):
    """Something with a sandbox and its shells, as opposed to a command in one."""


class SandboxClosed(SessionError):
    """The sandbox, session or pool was closed: nothing can be run in it any more."""


class SandboxLost(SandboxClosed):
    """The sandbox ended without being asked: something killed it, or the host took it away."""


class SessionBusy(SessionError):
    """The session is in use by the caller itself: waiting for it would wait for ever."""


class UserUnavailable(SessionError):
    """A command was to run as a user whose id this sandbox does not have. It was not started."""


class RootUnavailable(UserUnavailable):
    """A command was to run as the sandbox's root, and that cannot be had here. It was not started."""


class WaitTimeout(SessionError, TimeoutError):
    """A process in the background did not do in time what was waited for, or ended before that."""


class PoolExhausted(SessionError, TimeoutError):
    """No sandbox of the pool became free within the time."""


class WorkspaceError(StaddleError):
    """A workspace that is not there, or cannot do this now."""


class WorkspaceBusy(WorkspaceError):
    """Another process has claimed this workspace."""


class LayerError(StaddleError):
    """Something with what a sandbox changed, or with where that is kept."""


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
    """The error for Python's `can't start new thread`."""
    return ThreadUnavailable(
        "staddle could not start a thread",
        why="this process may have no more threads or memory, or it is ending",
        fix="raise the limits that it runs under (ulimit -u, ulimit -v)",
    )


def is_full(error: BaseException) -> bool:
    """Whether it says that there is no room for another open file."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def not_handed_over(error: OSError, fix: str) -> LaunchFailed:
    """Return the error for a memory file that a sandbox is to read, and that could not be written."""
    is_limited = error.errno == errno.EFBIG
    return LaunchFailed(
        "a command or its input could not be handed over",
        why="this process may not write a file of that size" if is_limited else str(error),
        fix="raise the limit on the size of files (ulimit -f)" if is_limited else fix,
    )


class TooManyOpenFiles(LaunchFailed, LayerError):
    """This process has as many files open as it may."""


def too_many_open_files(why: str = "this process has as many open as it may have") -> TooManyOpenFiles:
    """The error of what needs another one."""
    return TooManyOpenFiles(
        "there is no room for more open files",
        why=why,
        fix="raise the limit (ulimit -n), or close sandboxes that are not used",
    )


class CommitRefused(LayerError):
    """The commit wrote nothing. `conflicts` changed on the host meanwhile, `held` needs allow_protected.

    The classes are in `staddle.layers.review`.
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
    """The host refused a step. What had been done was put back."""


class ArchiveRefused(LayerError):
    """A file that is no archive of a layer, a damaged one, or one that means harm. Nothing was made of it."""


class BaseError(StaddleError):
    """Something with an imported base: no such name, or one that is taken."""


class FleetError(StaddleError):
    """Something with a fleet of machines, as opposed to one sandbox of it."""


class FleetBusy(FleetError, TimeoutError):
    """No machine of the fleet has room, or its tenant has all that it may have. Nothing was started."""


class FleetLost(FleetError):
    """The fleet is closed, or the head of its cluster does not answer any more."""


class TransferFailed(FleetError):
    """A workspace or a snapshot did not arrive as it was sent. Nothing was made of it."""


class GitError(StaddleError):
    """Something with a git repository."""


class GitRefused(GitError):
    """Git was not started: what is in the repository could make it do harm."""


class GitFailed(GitError):
    """Git ended with an error. `status` is its exit status."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", status: int = 1) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status


class UsageError(StaddleError):
    """A command line that we do not understand."""
