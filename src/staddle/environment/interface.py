"""`ExecutionEnvironment`: files and commands for an agent's tools, on this machine or in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .._value import Value

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from ..events import Event


class CommandResult(Value):
    """Output and exit code of a command.

    If a stream was too long, its end is kept, `…_truncated` is True, and `…_bytes_dropped` is the length of
    the missing part. A command killed by signal N has the exit code 128+N. `violations` lists refused writes
    by path, and protected names that appeared while it ran.
    """

    stdout: str
    stderr: str
    exit_code: int
    stdout_truncated: bool = False
    stdout_bytes_dropped: int = 0
    stderr_truncated: bool = False
    stderr_bytes_dropped: int = 0
    violations: tuple[Event, ...] = ()


@runtime_checkable
class ExecutionEnvironment(Protocol):
    """Files and commands below one directory. Paths are relative to it."""

    @property
    def working_dir(self) -> str:
        """The directory, absolute."""

    def read_file(self, path: str) -> str:
        """Return the content of a file."""

    def write_file(self, path: str, content: str) -> None:
        """Write `content` to `path` atomically; missing parent directories are created."""

    def remove_file(self, path: str) -> None:
        """Remove a file."""

    def exec_command(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> CommandResult:
        """Run a program and wait for its end. CommandTimeout and CommandCancelled contain its output."""

    def exec_command_with_limit(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        output_limit: int = 0,
        env: Mapping[str, str] | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> CommandResult:
        """Run a program, keeping at most the last `output_limit` bytes of each stream."""

    def glob(self, pattern: str) -> list[str]:
        """Return the files, links and directories that match `pattern`, sorted."""
