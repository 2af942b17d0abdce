"""The tools for asyncio: each call runs in a thread, and a cancelled task really ends its command."""

from __future__ import annotations

import asyncio
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .interface import CommandResult, ExecutionEnvironment


class AsyncLocalEnvironment:
    """An environment, on this machine or in a sandbox, whose calls are awaited.

    Cancelling the task of a command ends the command, waits until all its processes have exited, and then
    continues the cancellation. File operations are short and run to their end.
    """

    def __init__(self, environment: ExecutionEnvironment) -> None:
        self.environment = environment

    @property
    def working_dir(self) -> str:
        """The directory, absolute and without links."""
        return self.environment.working_dir

    async def read_file(self, path: str) -> str:
        """Return the content of a file."""
        return await asyncio.to_thread(self.environment.read_file, path)

    async def write_file(self, path: str, content: str) -> None:
        """Write `content` to `path` atomically."""
        await asyncio.to_thread(self.environment.write_file, path, content)

    async def remove_file(self, path: str) -> None:
        """Remove a file."""
        await asyncio.to_thread(self.environment.remove_file, path)

    async def glob(self, pattern: str) -> list[str]:
        """Return the files and directories that match `pattern`."""
        return await asyncio.to_thread(self.environment.glob, pattern)

    async def exec_command(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a program and wait for its end."""
        return await self.exec_command_with_limit(command, args, timeout)

    async def exec_command_with_limit(
        self,
        command: str,
        args: Sequence[str] = (),
        timeout: float | None = None,
        output_limit: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program, keeping at most the last `output_limit` bytes of each stream."""
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
                    continue  # cancelled again: still wait for its end
            if not running.cancelled():
                running.exception()  # prevents a warning of asyncio
            raise
