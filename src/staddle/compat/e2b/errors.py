"""E2B's exceptions, and the one place where staddle's errors become them."""

from __future__ import annotations

import errno
from contextlib import contextmanager

from staddle.errors import InvalidCall, SandboxClosed, StaddleError, UserUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class SandboxException(Exception):
    """The base class; `status_code` is that of a response from E2B's service, and None here."""

    status_code: int | None = None


class TimeoutException(SandboxException):
    """A command or the sandbox took too long, or the sandbox has ended."""


class SandboxNotRunningException(TimeoutException):
    """The sandbox was killed, or reached its end of life."""


class SandboxUnreachableException(TimeoutException):
    """Never raised here: a sandbox of this process can be reached while it runs."""


class InvalidArgumentException(SandboxException):
    """An argument that means nothing."""


class NotEnoughSpaceException(SandboxException):
    """The disk, or the sandbox's share of it, is full."""


class NotFoundException(SandboxException):
    """Something does not exist."""


class FileNotFoundException(NotFoundException):
    """A file does not exist."""


class SandboxNotFoundException(NotFoundException):
    """No sandbox of this process has this id."""


class AuthenticationException(Exception):
    """Never raised here: there is no service with keys. Programs name it in `except`."""


class RateLimitException(SandboxException):
    """Never raised here: there is no service that counts requests."""


class ServiceBusyException(Exception):
    """Never raised here: there is no service."""


class TemplateException(SandboxException):
    """Never raised here: an unknown template is an InvalidArgumentException."""


class CommandExitException(SandboxException):
    """A command exited with another status than 0. It has the fields of its result."""

    def __init__(self, stdout: str | None, stderr: str | None, exit_code: int, error: str | None) -> None:
        super().__init__(f"Command exited with code {exit_code} and error:\n{stderr or ''}")
        self.stdout, self.stderr, self.exit_code, self.error = stdout, stderr, exit_code, error


@contextmanager
def translated() -> Iterator[None]:
    """Errors of staddle, and of files, as E2B's."""
    try:
        yield
    except (InvalidCall, UserUnavailable) as error:
        raise InvalidArgumentException(str(error)) from error
    except SandboxClosed as error:
        raise SandboxNotRunningException(f"The sandbox is not running: {error}") from error
    except StaddleError as error:
        raise SandboxException(str(error)) from error
    except FileNotFoundError as error:
        raise FileNotFoundException(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotEnoughSpaceException(str(error)) from error
        if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
            raise InvalidArgumentException(str(error)) from error
        raise SandboxException(str(error)) from error
