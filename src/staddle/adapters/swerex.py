"""SWE-ReX: a runtime and a deployment in a sandbox.

deployment = StaddleDeployment(workspace="project")
await deployment.start(); await deployment.runtime.create_session(CreateBashSessionRequest())
"""

from __future__ import annotations

import re
import time

from staddle import AsyncSandbox

from ._common import READ_LIMIT, CommandEnding, ending, framework, policy_of, seconds, upload

with framework("swe-rex", "swerex"):
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.deployment.hooks.abstract import CombinedDeploymentHook
    from swerex.exceptions import (
        BashIncorrectSyntaxError,
        CommandTimeoutError,
        DeploymentNotStartedError,
        NonZeroExitCodeError,
        SessionDoesNotExistError,
        SessionExistsError,
    )
    from swerex.runtime.abstract import (
        AbstractRuntime,
        BashObservation,
        CloseBashSessionResponse,
        CloseResponse,
        CommandResponse,
        CreateBashSessionResponse,
        IsAliveResponse,
        ReadFileResponse,
        UploadResponse,
        WriteFileResponse,
    )
    from swerex.utils.log import get_logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any

    from ._common import AnyPolicy

#: Control sequences of a terminal.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


class StaddleRuntime(AbstractRuntime):
    """Sessions, commands and files of SWE-ReX in one sandbox, which is opened on first use.

    An interactive program runs on its own terminal, beside the shell of its session, with the shell's
    directory and exported variables.
    """

    def __init__(
        self, workspace: str | os.PathLike[str] | None = None, *, policy: AnyPolicy = None, **options: Any
    ) -> None:
        self.logger = get_logger("rex-runtime")
        self.sandbox = AsyncSandbox(workspace, policy_of(policy), **options)
        self._sessions: dict[str, Any] = {}
        self._programs: dict[str, Any] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether it can run commands."""
        return IsAliveResponse(is_alive=self.sandbox.alive)

    # ------------------------------------------------------------ sessions

    async def create_session(self, request: Any) -> CreateBashSessionResponse:
        """Make a new shell."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        session = self._sessions[request.session] = await self.sandbox.session(request.session)
        output = ""
        for path in request.startup_source:
            output += (await session.run(f"source {path}", merge=True)).stdout
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Any) -> BashObservation:
        """Run shell text, talk to an interactive program, or interrupt the running command."""
        session = self._session(action.session)
        if action.action_type == "bash_interrupt":
            await session.interrupt()
            await self._end_program(action.session)
            return BashObservation(output="", exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit:
            return await self._interactive(session, action)
        await self._check_syntax(action.command)
        result = await session.run(action.command, merge=True, **seconds(action.timeout))
        if ending(result) is CommandEnding.TIMEOUT:
            raise CommandTimeoutError(_too_long(action))
        if action.check == "raise" and result.exit_code:
            said = f"Command {action.command!r} failed with exit code {result.exit_code}. Here is the output:"
            text = f"{said}\n{result.stdout!r}"
            raise NonZeroExitCodeError(f"{action.error_msg}: {text}" if action.error_msg else text)
        code = None if action.check == "ignore" else result.exit_code
        return BashObservation(output=result.stdout, exit_code=code)

    async def close_session(self, request: Any) -> CloseBashSessionResponse:
        """End the shell."""
        session = self._session(request.session)
        await self._end_program(request.session)
        del self._sessions[request.session]
        await session.close()
        return CloseBashSessionResponse()

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def _check_syntax(self, command: str) -> None:
        result = await self.sandbox.exec(["bash", "-n"], stdin=command + "\n")
        if result.exit_code:
            raise BashIncorrectSyntaxError(
                f"bash cannot read the command {command!r}: {result.stderr}",
                extra_info={"bash_stdout": result.stdout, "bash_stderr": result.stderr},
            )

    async def _interactive(self, session: Any, action: Any) -> BashObservation:
        """Start an interactive program, or type a line and read until one of the expected texts."""
        program = self._programs.get(action.session)
        if program is None or program.poll() is not None:
            state = await session.state
            program = self._programs[action.session] = await self.sandbox.terminal(
                ["bash", "-c", action.command], cwd=state.cwd, env={**state.env, "TERM": "dumb"}
            )
            echoed = ""
        else:
            await program.write(action.command.rstrip("\n") + "\n")
            echoed = action.command.strip()
        until = None if action.timeout is None else time.monotonic() + action.timeout
        text, matched = await self._until(program, action.expect, until)
        if matched is None:
            if program.poll() is None:
                raise CommandTimeoutError(_too_long(action))
            await self._end_program(action.session)
        text = text.lstrip().removeprefix(echoed).lstrip("\n") if echoed else text
        return BashObservation(output=text, exit_code=0, expect_string=matched or "")

    @staticmethod
    async def _until(program: Any, expected: list[str], until: float | None) -> tuple[str, str | None]:
        """The text before the first match, and its pattern; None at the end or after the timeout."""
        said = b""
        while True:
            text = _CONTROL.sub("", said.decode("utf-8", "replace")).replace("\r\n", "\n")
            found = [(match.start(), word) for word in expected if (match := re.search(word, text))]
            if found:
                at, word = min(found)
                return text[:at], word
            left = None if until is None else until - time.monotonic()
            data = b"" if left is not None and left <= 0 else await program.read(timeout=left)
            if not data:
                if left is None or left > 0:
                    await program.wait(left)
                return text, None
            said += data

    async def _end_program(self, session: str) -> None:
        program = self._programs.pop(session, None)
        if program is not None:
            await program.close()

    # ------------------------------------------------------------ commands and files

    async def execute(self, command: Any) -> CommandResponse:
        """Run a program, or shell text, outside the sessions."""
        words = command.command
        if command.shell:
            argv = ["sh", "-c", words if isinstance(words, str) else " ".join(words)]
        else:
            argv = [words] if isinstance(words, str) else list(words)
        merge = bool(getattr(command, "merge_output_streams", False))
        result = await self.sandbox.exec(
            argv, cwd=command.cwd, env=command.env, merge=merge, **seconds(command.timeout)
        )
        if ending(result) is CommandEnding.TIMEOUT:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        if command.check and result.exit_code:
            said = f"Command {words!r} failed with exit code {result.exit_code}. "
            text = f"{said}Stdout:\n{result.stdout!r}\nStderr:\n{result.stderr!r}"
            raise NonZeroExitCodeError(f"{command.error_msg}: {text}" if command.error_msg else text)
        return CommandResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def read_file(self, request: Any) -> ReadFileResponse:
        """The text of a file."""
        data = await self.sandbox.files.read_bytes(request.path, limit=READ_LIMIT)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: Any) -> WriteFileResponse:
        """Write a file; missing directories are made."""
        await self.sandbox.files.write(request.path, request.content, parents=True)
        return WriteFileResponse()

    async def upload(self, request: Any) -> UploadResponse:
        """Copy a file or a directory of the host into the sandbox."""
        await upload(self.sandbox, request.source_path, request.target_path)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Close the sandbox."""
        self._sessions.clear()
        for name in list(self._programs):
            await self._end_program(name)
        await self.sandbox.close()
        return CloseResponse()


class StaddleDeployment(AbstractDeployment):
    """Starts and stops a StaddleRuntime; takes the same arguments."""

    def __init__(
        self, workspace: str | os.PathLike[str] | None = None, *, policy: AnyPolicy = None, **options: Any
    ) -> None:
        self.logger = get_logger("rex-deploy")
        self._options: dict[str, Any] = {"workspace": workspace, "policy": policy, **options}
        self._runtime: StaddleRuntime | None = None
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook: Any) -> None:
        """Add a hook that is called at the start."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether it can run commands."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Open the sandbox."""
        self._hooks.on_custom_step("Opening the sandbox")
        runtime = StaddleRuntime(**self._options)
        await runtime.sandbox.__aenter__()
        self._runtime = runtime

    async def stop(self) -> None:
        """Close the sandbox."""
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    @property
    def runtime(self) -> StaddleRuntime:
        """The runtime; DeploymentNotStartedError before `start()`."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _too_long(action: Any) -> str:
    return f"timeout after {action.timeout} seconds while running command {action.command!r}"
