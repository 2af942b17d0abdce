"""LlamaIndex: `CodeActAgent(code_execute_fn=code_execute_fn(sandbox), llm=…)`, and a tool."""

from __future__ import annotations

import asyncio
from typing import Any

from staddle import Interpreter, Sandbox

from ._common import framework

with framework("llama-index-core", "llama-index"):
    from llama_index.core.tools import FunctionTool


def code_execute_fn(sandbox: Sandbox, *, timeout: float | None = 120) -> Any:
    """A function for CodeActAgent that runs Python in the sandbox; variables persist."""
    interpreter = Interpreter(sandbox)

    async def execute(code: str) -> str:
        """Run Python code in a sandbox; variables are kept from call to call."""
        result = await asyncio.to_thread(interpreter.run, code, timeout=timeout)
        parts = [result.stdout, result.stderr]
        if result.error is not None:
            parts.append(result.error["traceback"] or result.error["value"])
        elif result.text is not None:
            parts.append(result.text)
        return "\n".join(part.rstrip("\n") for part in parts if part)

    return execute


def shell_tool(sandbox: Sandbox, *, timeout: float | None = 120) -> FunctionTool:
    """A tool that runs shell text in the sandbox's session."""

    def shell(command: str) -> str:
        """Run a command in a sandboxed bash that remembers its directory and variables."""
        result = sandbox.run(command, merge=True, timeout=timeout, output_limit="256K")
        return result.stdout if result.ok else f"{result.stdout}\n[exit code {result.exit_code}]"

    return FunctionTool.from_defaults(shell)
