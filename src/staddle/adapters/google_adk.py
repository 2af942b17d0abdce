"""Google ADK: an environment for EnvironmentToolset, and a code executor.

EnvironmentToolset(environment=StaddleAdkEnvironment("project"))
LlmAgent(code_executor=StaddleAdkCodeExecutor())
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from staddle import AsyncSandbox, Interpreter, Sandbox

from ._common import (
    READ_LIMIT,
    WORKSPACE,
    CommandEnding,
    ending,
    framework,
    policy_of,
    seconds,
)

with framework("google-adk", "google-adk"):
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionResult, File
    from google.adk.environment._base_environment import BaseEnvironment, ExecutionResult
    from pydantic import PrivateAttr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._common import AnyPolicy


class StaddleAdkEnvironment(BaseEnvironment):
    """Commands in one shell of a sandbox, and its files."""

    def __init__(self, workspace: str | None = None, *, policy: AnyPolicy = None, **options: Any) -> None:
        self.sandbox = AsyncSandbox(workspace, policy_of(policy), **options)

    @property
    def working_dir(self) -> Path:
        """The directory of the workspace."""
        return Path(WORKSPACE)

    async def initialize(self) -> None:
        """Open the sandbox."""
        await self.sandbox.__aenter__()
        self.is_initialized = True

    async def close(self) -> None:
        """Close the sandbox."""
        await self.sandbox.close()

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run shell text."""
        result = await self.sandbox.run(command, **seconds(timeout))
        timed_out = ending(result) is CommandEnding.TIMEOUT
        return ExecutionResult(
            exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr, timed_out=timed_out
        )

    async def read_file(self, path: Path) -> bytes:
        """The content of a file; relative paths are below the workspace."""
        where = posixpath.join(WORKSPACE, str(path))
        return await self.sandbox.files.read_bytes(where, limit=READ_LIMIT)

    async def write_file(self, path: Path, content: str | bytes) -> None:
        """Write a file; missing directories are made."""
        await self.sandbox.files.write(posixpath.join(WORKSPACE, str(path)), content, parents=True)


class StaddleAdkCodeExecutor(BaseCodeExecutor):
    """Runs Python: with `stateful=True` in one interpreter, else in a new sandbox each time."""

    policy: Any = None
    timeout_seconds: int | None = 120
    _sandbox: Any = PrivateAttr(default=None)
    _interpreter: Any = PrivateAttr(default=None)

    def execute_code(self, invocation_context: Any, code_execution_input: Any) -> CodeExecutionResult:
        """Run code with its input files; returns new files."""
        if not self.stateful:
            with Sandbox(policy=policy_of(self.policy)) as sandbox:
                return self._executed(sandbox, Interpreter(sandbox), code_execution_input)
        if self._sandbox is None or not self._sandbox.alive:
            self._sandbox = Sandbox(policy=policy_of(self.policy))
            self._interpreter = Interpreter(self._sandbox)
        return self._executed(self._sandbox, self._interpreter, code_execution_input)

    def close(self) -> None:
        """Close the sandbox of a stateful executor."""
        if self._sandbox is not None:
            self._sandbox.close()

    def _executed(self, sandbox: Sandbox, interpreter: Interpreter, given: Any) -> CodeExecutionResult:
        for file in given.input_files:
            sandbox.files.write(posixpath.join(WORKSPACE, file.name), file.content, parents=True)
        before = {entry.name for entry in sandbox.files.list(WORKSPACE)}
        result = interpreter.run(given.code, timeout=self.timeout_seconds)
        made = [
            File(name=entry.name, content=sandbox.files.read_bytes(posixpath.join(WORKSPACE, entry.name)))
            for entry in sandbox.files.list(WORKSPACE)
            if entry.kind == "file" and entry.name not in before
        ]
        error = "" if result.error is None else result.error["traceback"] or result.error["value"]
        return CodeExecutionResult(stdout=result.stdout, stderr=result.stderr + error, output_files=made)
