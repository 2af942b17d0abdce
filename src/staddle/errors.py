"""Every error of staddle, in one tree.

    StaddleError
    ├── PolicyError                a rule, host name, size or file that means nothing
    │   └── PathEscape             a path that leaves where it was declared to stay
    ├── PolicyNotEnforceable       the policy is fine, this host or backend cannot hold it
    ├── BackendError
    │   ├── UnknownBackend         no backend of that name
    │   ├── BackendUnavailable     it exists, but cannot confine anything here
    │   └── LaunchFailed           the confinement could not be set up; the command did not start
    ├── AlreadyWrapped             wrap() of a wrapped command, or a second start of one
    ├── CommandNotFound            no such program in the sandbox's view
    └── UsageError                 the command line says something we do not understand

A failing command is a result, never an exception. Every error says what happened, why,
and how to fix it; the three are attributes, and `str()` joins them into one sentence.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .backends.base import Gap


class StaddleError(Exception):
    """What happened, why, and what to do about it."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what, why, fix)

    def __str__(self) -> str:
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text}; {self.fix}" if self.fix else text

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


class LaunchFailed(BackendError):
    """The confinement could not be set up, so the command did not start."""


class AlreadyWrapped(StaddleError):
    """The command is confined already, or its one start has been used."""


class CommandNotFound(StaddleError):
    """The program is not there, or the policy hides it. `status` is what a shell would say."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", status: int = 127) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status


class UsageError(StaddleError):
    """A command line that we do not understand."""
