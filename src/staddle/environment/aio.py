"""The same tools for asyncio: each call in a thread, and a cancelled task really ends its command."""

from __future__ import annotations

import asyncio
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .interface import CommandResult, ExecutionEnvironment


class AsyncLocalEnvironment:
    """An environment, on this machine or in a sandbox, whose calls are awaited.

    Cancelling the task of a command ends the command, waits until all of it is dead, and
    only then lets the cancellation go on. File operations are short and run to their end.
    """

    def __init__(self, environment: ExecutionEnvironment) -> None:
        self.environment = environment

    @property
    def working_dir(self) -> str:
        """The directory, absolute and without links."""
        return self.environment.working_dir

    async def read_file(self, path: str) -> str:
        """The content of a file."""
        return await asyncio.to_thread(self.environment.read_file, path)

    async def write_file(self, path: str, content: str) -> None:
        """Put `content` at `path`, whole or not at all."""
        await asyncio.to_thread(self.environment.write_file, path, content)

    async def remove_file(self, path: str) -> None:
        """Remove a file."""
        await asyncio.to_thread(self.environment.remove_file, path)

    async def glob(self, pattern: str) -> list[str]:
        """The files and directories that `pattern` names."""
        return await asyncio.to_thread(self.environment.glob, pattern)

    async def exec_command(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a program to its end."""
        return await self.exec_command_with_limit(command, args, timeout)

    async def exec_command_with_limit(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        output_limit: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """The same, keeping at most the last `output_limit` bytes of each stream."""
        cancel = threading.Event()
        running = asyncio.ensure_future(
            asyncio.to_thread(
                self.environment.exec_command_with_limit,
                command,
                args,
                timeout,
                output_limit,
                env,
                cancel=cancel,
            )
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel.set()
            while not running.done():
                try:
                    await asyncio.wait({running})
                except asyncio.CancelledError:
                    continue  # asked again: the answer is the same, when it is dead
            if not running.cancelled():
                running.exception()  # retrieved, so that asyncio does not warn
            raise
