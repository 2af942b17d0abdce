"""AutoGen: `CodeExecutorAgent("coder", code_executor=StaddleCodeExecutor())`."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from staddle import AsyncSandbox

from ._common import CommandEnding, ending, framework, policy_of

with framework("autogen-core", "autogen"):
    from autogen_core import Component
    from autogen_core.code_executor import CodeExecutor, CodeResult
    from pydantic import BaseModel

_PROGRAMS = {"python": ["python3", "-"], "py": ["python3", "-"]}
_SHELLS = ("bash", "sh", "shell")


class StaddleCodeExecutorConfig(BaseModel):
    """Arguments of an executor, for AutoGen's component files."""

    timeout: float | None = 60
    workspace: str | None = None
    policy: str | None = None
    mode: str = "overlay"
    backend: str = "auto"


class StaddleCodeExecutor(CodeExecutor, Component[StaddleCodeExecutorConfig]):
    """Runs blocks of Python and shell code in one sandbox; each block is a separate program."""

    component_config_schema = StaddleCodeExecutorConfig
    component_provider_override = "staddle.adapters.autogen.StaddleCodeExecutor"

    def __init__(self, **options: Any) -> None:
        self._config = StaddleCodeExecutorConfig(**options)
        self._sandbox: AsyncSandbox | None = None

    @property
    def sandbox(self) -> AsyncSandbox:
        """The open sandbox."""
        if self._sandbox is None:
            raise RuntimeError("the executor has not been started")
        return self._sandbox

    async def start(self) -> None:
        """Open the sandbox."""
        config = self._config
        if self._sandbox is None or not self._sandbox.alive:
            self._sandbox = AsyncSandbox(
                config.workspace,
                policy_of(config.policy),
                mode=config.mode,  # type: ignore[arg-type]
                backend=config.backend,  # type: ignore[arg-type]
            )
            await self._sandbox.__aenter__()

    async def stop(self) -> None:
        """Close the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()

    async def restart(self) -> None:
        """Replace the sandbox with a new one."""
        await self.sandbox.reset()

    async def execute_code_blocks(self, code_blocks: list[Any], cancellation_token: Any) -> CodeResult:
        """Run blocks until one fails. Cancelling the token ends the running one."""
        await self.start()
        output, code = "", 0
        for block in code_blocks:
            language = block.language.lower()
            if language not in (*_PROGRAMS, *_SHELLS):
                return CodeResult(exit_code=1, output=f"{output}unknown language {block.language!r}\n")
            argv = _PROGRAMS.get(language, ["bash", "-s"])
            running = asyncio.ensure_future(
                self.sandbox.exec(argv, stdin=block.code, merge=True, timeout=self._config.timeout)
            )
            cancellation_token.link_future(running)
            result = await running
            output, code = output + result.stdout, result.exit_code
            if ending(result) is CommandEnding.TIMEOUT:
                output += f"\nTimeout: ended after {result.duration:.0f} seconds"
            if code:
                break
        return CodeResult(exit_code=code, output=output)

    def _to_config(self) -> StaddleCodeExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: StaddleCodeExecutorConfig) -> Self:
        return cls(**config.model_dump())
