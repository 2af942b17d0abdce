"""Becoming the program: the last thing that any process of ours does."""

from __future__ import annotations

import errno
import os

from ..ipc.status import EXEC, NotStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


def execute(argv: tuple[bytes, ...], environment: Mapping[bytes, bytes]) -> NoReturn:
    """Exec `argv`, found on the PATH of `environment`. Raises NotStarted, caused by the error that counts."""
    failure: OSError | None = None
    for program in places(argv[0], environment.get(b"PATH", b"/usr/bin:/bin")):
        try:
            os.execve(program, argv, environment)  # noqa: S606 - no shell, on purpose
        except OSError as error:
            # As execvp: a program that may not be run is worth more words than one that is not there.
            if failure is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                failure = error
    why = os.strerror(failure.errno or 0) if failure else "it has no name"
    raise NotStarted(EXEC, f"{os.fsdecode(argv[0])!r} cannot be run: {why}") from failure


def places(name: bytes, path: bytes) -> list[bytes]:
    """Where a program called `name` may be, in order, as execvp looks for it."""
    if not name or b"/" in name:
        return [name] if name else []
    return [os.path.join(directory or b".", name) for directory in path.split(b":")]
