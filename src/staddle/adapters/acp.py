"""Agent Client Protocol: an editor's side with terminals and files in a sandbox.

  class Client(StaddleAcpClient):                 # add your editor's handling of updates and permissions
      async def session_update(self, session_id, update, **options): ...
  connect_to_agent(Client("project"), ...)

This does not confine the agent's own process: it is for agents that leave commands and files to the client.
"""

from __future__ import annotations

import asyncio
import posixpath
import signal
import uuid
from pathlib import Path
from typing import Any

from staddle import AsyncSandbox

from ._common import READ_LIMIT, WORKSPACE, framework, policy_of

with framework("agent-client-protocol", "acp"):
    from acp import RequestError
    from acp.schema import (
        ClientCapabilities,
        CreateTerminalResponse,
        DeniedOutcome,
        FileSystemCapabilities,
        ReadTextFileResponse,
        RequestPermissionResponse,
        TerminalExitStatus,
        TerminalOutputResponse,
        WaitForTerminalExitResponse,
    )

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from staddle import Result

    from ._common import AnyPolicy

#: Bytes of a terminal's output to keep, unless the agent sets a limit.
_OUTPUT = 1 << 20


class SandboxTerminal:
    """A command of the agent: its last output, and its end."""

    def __init__(self, limit: int) -> None:
        self.limit, self.truncated = limit, False
        self.output = ""
        self.task: asyncio.Task[Result]

    def heard(self, text: str) -> None:
        """Add output; keeps the end, in whole characters."""
        self.output += text
        data = self.output.encode("utf-8", "replace")
        if len(data) > self.limit:
            self.truncated = True
            self.output = data[-self.limit :].decode("utf-8", "ignore")

    def status(self) -> dict[str, Any]:
        """Exit status or signal; empty while it runs."""
        if not self.task.done():
            return {}
        if self.task.cancelled():
            return {"signal": "SIGKILL"}
        result = self.task.result()
        if result.signal is not None:
            return {"signal": signal.Signals(result.signal).name}
        return {"exit_code": result.exit_code}


class StaddleAcpClient:
    """Terminals and files of one sandbox. Paths in the host's workspace are mapped to paths inside."""

    capabilities = ClientCapabilities(
        fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True
    )

    def __init__(
        self, workspace: str | os.PathLike[str] | None = None, *, policy: AnyPolicy = None, **options: Any
    ) -> None:
        self.sandbox = AsyncSandbox(workspace, policy_of(policy), **options)
        self._root = None if workspace is None else str(Path(workspace).resolve())
        self._terminals: dict[str, SandboxTerminal] = {}

    async def close(self) -> None:
        """End the terminals, and close the sandbox."""
        for name in list(self._terminals):
            await self.release_terminal("", name)
        await self.sandbox.close()

    # ------------------------------------------------------------ for an editor to override

    async def session_update(self, session_id: str, update: Any, **options: Any) -> None:
        """An update of the agent; ignored here."""

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **more: Any
    ) -> RequestPermissionResponse:
        """A question of the agent; refused here. Ask a person instead."""
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))

    def on_connect(self, conn: Any) -> None:
        """Called when the agent has connected; does nothing here."""

    # ------------------------------------------------------------ files

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **options: Any
    ) -> ReadTextFileResponse:
        """The text of a file, or `limit` lines from `line` on."""
        try:
            data = await self.sandbox.files.read_bytes(self._inside(path), limit=READ_LIMIT)
        except OSError as error:
            raise _refused(error, path) from error
        text = data.decode("utf-8", "replace")
        if line is not None or limit is not None:
            start = max((line or 1) - 1, 0)
            end = None if limit is None else start + limit
            text = "".join(text.splitlines(keepends=True)[start:end])
        return ReadTextFileResponse(content=text)

    async def write_text_file(self, session_id: str, path: str, content: str, **options: Any) -> None:
        """Write a file; missing directories are made."""
        try:
            await self.sandbox.files.write(self._inside(path), content, parents=True)
        except OSError as error:
            raise _refused(error, path) from error

    # ------------------------------------------------------------ terminals

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[Any] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **options: Any,
    ) -> CreateTerminalResponse:
        """Start a command."""
        terminal = SandboxTerminal(output_byte_limit or _OUTPUT)
        variables = {each.name: each.value for each in env or ()}
        where = WORKSPACE if cwd is None else self._inside(cwd)
        # A command without arguments may be shell text: agents send both.
        argv = [command, *args] if args else ["bash", "-c", command]
        running = self.sandbox.exec(
            argv,
            cwd=where,
            env=variables or None,
            merge=True,
            timeout=None,
            output_limit=1,
            on_stdout=terminal.heard,
        )
        terminal.task = asyncio.ensure_future(running)
        name = uuid.uuid4().hex
        self._terminals[name] = terminal
        return CreateTerminalResponse(terminal_id=name)

    async def terminal_output(
        self, session_id: str, terminal_id: str, **options: Any
    ) -> TerminalOutputResponse:
        """The output so far, and the exit status if it has ended."""
        terminal = self._terminal(terminal_id)
        status = terminal.status()
        made = TerminalExitStatus(**status) if status else None
        return TerminalOutputResponse(output=terminal.output, truncated=terminal.truncated, exit_status=made)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **options: Any
    ) -> WaitForTerminalExitResponse:
        """Wait for the end of the command."""
        terminal = self._terminal(terminal_id)
        await asyncio.wait([terminal.task])
        return WaitForTerminalExitResponse(**terminal.status())

    async def kill_terminal(self, session_id: str, terminal_id: str, **options: Any) -> None:
        """End the command with all its children; its output can still be read."""
        terminal = self._terminal(terminal_id)
        terminal.task.cancel()
        await asyncio.wait([terminal.task])

    async def release_terminal(self, session_id: str, terminal_id: str, **options: Any) -> None:
        """End the command, and delete it."""
        await self.kill_terminal(session_id, terminal_id)
        del self._terminals[terminal_id]

    def _terminal(self, name: str) -> SandboxTerminal:
        if name not in self._terminals:
            raise RequestError.invalid_params({"terminalId": f"there is no terminal {name!r}"})
        return self._terminals[name]

    def _inside(self, path: str) -> str:
        """The path inside for a path in the host's workspace; other paths are unchanged."""
        if self._root is not None and (path == self._root or path.startswith(f"{self._root}/")):
            return posixpath.join(WORKSPACE, path[len(self._root) :].lstrip("/"))
        return path


def _refused(error: OSError, path: str) -> RequestError:
    if isinstance(error, FileNotFoundError):
        return RequestError.resource_not_found(path)
    return RequestError.invalid_params({"path": path, "error": error.strerror or str(error)})
