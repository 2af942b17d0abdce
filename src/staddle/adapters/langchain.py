"""LangChain: a shell tool. `create_agent(model, tools=[StaddleShellTool(sandbox=sandbox)])`."""

from __future__ import annotations

import asyncio

from staddle import Sandbox

from ._common import CommandEnding, ending, framework

with framework("langchain-core", "langchain"):
    from langchain_core.tools import BaseTool
    from pydantic import BaseModel, ConfigDict, Field


class ShellToolInput(BaseModel):
    """Arguments of the tool, as a model gives them."""

    command: str = Field(description="Shell text for bash. The directory and variables are remembered.")


class StaddleShellTool(BaseTool):
    """Runs shell text in one session of a sandbox; the answer is its output, and its status if it failed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str = "shell"
    description: str = "Run a command in a sandboxed bash that remembers its directory and variables."
    args_schema: type[BaseModel] = ShellToolInput
    sandbox: Sandbox
    timeout: float | None = 120
    output_limit: int | str = "64K"

    def _run(self, command: str) -> str:
        result = self.sandbox.run(command, merge=True, timeout=self.timeout, output_limit=self.output_limit)
        notes = []
        if ending(result) is CommandEnding.TIMEOUT:
            notes.append(f"[ended after {result.duration:.0f} seconds]")
        elif not result.ok:
            notes.append(f"[exit code {result.exit_code}]")
        if result.stdout_truncated:
            notes.append(f"[{result.stdout_bytes_dropped} bytes in the middle were left out]")
        return "\n".join((result.stdout.removesuffix("\n"), *notes)) if notes else result.stdout

    async def _arun(self, command: str) -> str:
        return await asyncio.to_thread(self._run, command)
