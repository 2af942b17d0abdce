"""Shared by the adapters: the default policy, users, merged output, and the ways a command can end."""

from __future__ import annotations

import asyncio
import errno
import os
import tarfile
import tempfile
import uuid
from enum import Enum

from staddle import Policy, Reason, default_policy
from staddle.errors import ExtraMissing, InvalidCall, UserUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

    from staddle import AsyncSandbox, Result

    AnyPolicy = Policy | str | os.PathLike[str] | None

#: Bytes to keep of each output stream, if a framework has no limit of its own.
OUTPUT_LIMIT = 64 << 20
#: The largest file to read, if a framework has no limit of its own.
READ_LIMIT = 4 << 30
WORKSPACE = "/workspace"
_SPOOLED = 16 << 20


class framework:  # noqa: N801 - reads as what it does
    """Imports of one framework; raises ExtraMissing with one sentence if it is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self._package, self._extra = package, extra

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if isinstance(error, ImportError) and not isinstance(error, ExtraMissing):
            raise ExtraMissing(
                f"{self._package} is not installed, or in a version that this adapter does not know",
                why=str(error),
                fix=f"pip install 'staddle[{self._extra}]'",
            ) from error


class CommandEnding(Enum):
    """The end of a command, as far as frameworks distinguish it."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CLOSED = "closed"  # the sandbox was closed while it ran
    TRUNCATED = "truncated"  # it ran to its end, but some output was dropped
    NOT_EXECUTABLE = "not executable"  # the program exists and cannot be run


def policy_of(policy: AnyPolicy) -> Policy:
    """A policy, or the policy in a file. None: `default_policy()` without a timeout, with more output.

    Frameworks give each command their own timeout. A policy that the user wrote is not changed.
    """
    if policy is None:
        return default_policy().with_limits(timeout=None, output=OUTPUT_LIMIT)
    return policy if isinstance(policy, Policy) else Policy.from_file(policy)


def seconds(timeout: float | None) -> dict[str, Any]:
    """The option `timeout` of a command: with None or 0 from a framework, the policy decides."""
    return {} if timeout is None or timeout <= 0 else {"timeout": timeout}


def ending(result: Result) -> CommandEnding:
    """Classify the end of a command."""
    if result.reason is Reason.timeout:
        return CommandEnding.TIMEOUT
    if result.reason is Reason.closed:
        return CommandEnding.CLOSED
    if result.reason is Reason.output_limit or result.stdout_truncated or result.stderr_truncated:
        return CommandEnding.TRUNCATED
    if result.reason is Reason.not_started and result.errno in (errno.EACCES, errno.EPERM, errno.ENOEXEC):
        return CommandEnding.NOT_EXECUTABLE
    return CommandEnding.EXITED


def shell_argv(command: str) -> list[str]:
    """The program that runs shell text."""
    return ["bash", "-c", command]


def user_refused(error: BaseException, user: object) -> bool:
    """Whether this error means that `user` is not available."""
    return isinstance(error, UserUnavailable) or (user is not None and isinstance(error, InvalidCall))


class OpenSandboxes:
    """The open sandboxes of this process by id, for frameworks that come back with one."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def add(self, sandbox: object, name: str | None = None) -> str:
        """Store a sandbox until it is removed; return its id."""
        name = name or uuid.uuid4().hex
        self._known[name] = sandbox
        return name

    def get(self, name: str) -> Any:
        """The sandbox of that id; None if there is none, or it has ended."""
        found = self._known.get(name)
        return found if found is not None and found.alive else None

    def remove(self, name: str) -> Any:
        """Remove and return the sandbox of that id, which the caller closes; None if there is none."""
        return self._known.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))


async def upload(
    sandbox: AsyncSandbox, source: str | os.PathLike[str], target: str, user: str | None = None
) -> None:
    """Copy a file, or the content of a directory, of the host into a sandbox; makes missing directories."""
    if not os.path.isdir(source):
        await sandbox.files.as_user(user).upload(source, target)
        return
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED) as packed:
        await asyncio.to_thread(_pack, source, packed)
        await sandbox.upload_tar(packed, target, user=user)


async def download(
    sandbox: AsyncSandbox, source: str, target: str | os.PathLike[str], user: str | None = None
) -> None:
    """Copy a file, or the content of a directory, out of a sandbox. Refuses paths out of `target`."""
    if not (await sandbox.files.as_user(user).stat(source)).is_dir:
        await asyncio.to_thread(os.makedirs, os.path.dirname(os.path.abspath(target)), exist_ok=True)
        await sandbox.files.as_user(user).download(source, target)
        return
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED) as packed:
        await sandbox.download_tar(packed, source, user=user)
        packed.seek(0)
        await asyncio.to_thread(_unpack, packed, target)


def _pack(source: str | os.PathLike[str], packed: Any) -> None:
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(source, arcname=".")
    packed.seek(0)


def _unpack(packed: Any, target: str | os.PathLike[str]) -> None:
    os.makedirs(target, exist_ok=True)
    with tarfile.open(fileobj=packed) as archive:
        archive.extractall(target, filter="data")
