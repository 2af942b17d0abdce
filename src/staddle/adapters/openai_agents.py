"""OpenAI Agents SDK: a sandbox client, and executors for ShellTool and ApplyPatchTool.

RunConfig(sandbox=SandboxRunConfig(client=StaddleSandboxClient(), options=StaddleSandboxOptions(...)))
Agent(tools=[ShellTool(executor=shell_executor(sandbox))])
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Literal

from staddle import AsyncSandbox
from staddle.errors import StaddleError

from ._common import CommandEnding, OpenSandboxes, ending, framework, policy_of, seconds

with framework("openai-agents", "openai-agents"):
    from agents import ShellCallOutcome, ShellCommandOutput, ShellResult, apply_diff
    from agents.editor import ApplyPatchResult
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.pty_types import (
        PtyExecUpdate,
        allocate_pty_process_id,
        truncate_text_by_tokens,
    )
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
    from agents.sandbox.snapshot import resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User

#: Commands of the SDK that make accounts: they run as root.
_ACCOUNTS = ("useradd", "groupadd", "usermod")
#: Default seconds to read the output of a program on a terminal, at its start and after input.
_FIRST, _NEXT, _LEAST = 10.0, 0.25, 0.25
_OPEN = OpenSandboxes()


class StaddleSandboxOptions(BaseSandboxClientOptions):
    """`workspace` is a directory of the host, seen copy-on-write; `policy` a policy file."""

    type: Literal["staddle"] = "staddle"
    workspace: str | None = None
    policy: str | None = None
    mode: str = "overlay"
    backend: str = "auto"
    exposed_ports: tuple[int, ...] = ()


class StaddleSandboxState(SandboxSessionState):
    """The state that identifies a session: its sandbox in this process, or its snapshot."""

    type: Literal["staddle"] = "staddle"
    sandbox_id: str = ""
    options: StaddleSandboxOptions = StaddleSandboxOptions()


class StaddleSandboxSession(BaseSandboxSession):
    """A session of the SDK in a sandbox, which is opened when the session starts."""

    state: StaddleSandboxState

    def __init__(self, state: StaddleSandboxState) -> None:
        self.state = state
        self._sandbox: AsyncSandbox | None = _OPEN.get(state.sandbox_id)
        self._terminals: dict[int, Any] = {}

    @property
    def sandbox(self) -> AsyncSandbox:
        """The open sandbox."""
        if self._sandbox is None:
            raise ExecTransportError(command=(), message="the session has not been started")
        return self._sandbox

    async def _ensure_backend_started(self) -> None:
        if self._sandbox is None or not self._sandbox.alive:
            options = self.state.options
            self._sandbox = AsyncSandbox(
                options.workspace,
                policy_of(options.policy),
                mode=options.mode,  # type: ignore[arg-type]
                backend=options.backend,  # type: ignore[arg-type]
            )
            await self._sandbox.__aenter__()
            self.state.sandbox_id = _OPEN.add(self._sandbox)
            self._set_start_state_preserved(False)
        await self._sandbox.files.mkdir(self.state.manifest.root, parents=True)

    async def running(self) -> bool:
        """Whether it can run commands."""
        return self._sandbox is not None and self._sandbox.alive

    async def _shutdown_backend(self) -> None:
        await self.pty_terminate_all()
        if self._sandbox is not None:
            _OPEN.remove(self.state.sandbox_id)
            await self._sandbox.close()

    # ------------------------------------------------------------ commands

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command, as any user of the sandbox."""
        # Omit the user: the SDK would put `sudo` before the command.
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        return await self._executed(argv, timeout, _name(user))

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._executed([str(word) for word in command], timeout, None)

    async def _exec_checked_nonzero(self, *command: str | Path) -> ExecResult:
        if str(command[0]) not in _ACCOUNTS:
            return await super()._exec_checked_nonzero(*command)
        result = await self._executed([str(word) for word in command], None, "root")
        if result.exit_code != 0:
            why = result.stderr.decode("utf-8", "replace").strip()
            raise ExecTransportError(command=command, message=why)
        return result

    async def _executed(self, argv: list[str], timeout: float | None, user: str | None) -> ExecResult:
        variables = await self.state.manifest.environment.resolve()
        try:
            result = await self.sandbox.exec(
                argv, user=user, cwd=self.state.manifest.root, env=variables or None, **seconds(timeout)
            )
        except StaddleError as error:
            raise ExecTransportError(command=argv, cause=error, message=str(error)) from error
        if ending(result) is CommandEnding.TIMEOUT:
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        if ending(result) is CommandEnding.CLOSED:
            raise ExecTransportError(command=argv, message="the sandbox was closed while the command ran")
        return ExecResult(stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code)

    # ------------------------------------------------------------ programs on a terminal

    def supports_pty(self) -> bool:
        """Always True."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a program on a terminal, or with pipes, and read its output for a while."""
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        options: dict[str, Any] = {"cwd": self.state.manifest.root, "user": _name(user)}
        variables = await self.state.manifest.environment.resolve()
        if not tty:  # both streams in order, on a terminal in raw mode
            argv = ["sh", "-c", 'stty raw -echo; exec "$@"', "sh", *argv]
        program = await self.sandbox.terminal(argv, env=variables or None, **options)
        number: int = allocate_pty_process_id(set(self._terminals))
        self._terminals[number] = program
        return await self._heard(number, _FIRST if yield_time_s is None else yield_time_s, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Type something, and read the program's output for a while."""
        program = self._resolve_pty_session_entry(pty_processes=self._terminals, session_id=session_id)
        if chars:
            await program.write(chars)
        wait = _NEXT if yield_time_s is None else yield_time_s
        return await self._heard(session_id, wait, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """End all programs."""
        while self._terminals:
            await self._terminals.popitem()[1].close()

    async def _heard(self, number: int, wait: float, tokens: int | None) -> PtyExecUpdate:
        """Read the output of a program for a time, or until it ends."""
        program = self._terminals[number]
        until, said, code = time.monotonic() + max(_LEAST, wait), b"", None
        while code is None and (left := until - time.monotonic()) > 0:
            data = await program.read(timeout=left)
            said += data
            if not data:
                code = program.poll()
                if code is None and until > time.monotonic():  # it has closed its terminal, and continues
                    code = await program.wait(max(0.01, until - time.monotonic()))
        if code is not None:
            await self._terminals.pop(number).close()
        text, count = truncate_text_by_tokens(said.decode("utf-8", "replace"), tokens)
        return PtyExecUpdate(
            process_id=None if code is not None else number,
            output=text.encode(),
            exit_code=code,
            original_token_count=count,
        )

    # ------------------------------------------------------------ files and ports

    async def read(self, path: Path, *, user: str | User | None = None) -> Any:
        """A file, opened for reading."""
        where = await self._validate_path_access(path)
        try:
            return await self.sandbox.files.as_user(_name(user)).open(str(where))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except OSError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: Any, *, user: str | User | None = None) -> None:
        """Write a file; missing directories are made."""
        where = await self._validate_path_access(path, for_write=True)
        try:
            await self.sandbox.files.as_user(_name(user)).write(str(where), data, parents=True)
        except OSError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    async def persist_workspace(self) -> Any:
        """The workspace as a tar."""
        root = Path(self.state.manifest.root)
        packed: Any = tempfile.SpooledTemporaryFile(max_size=16 << 20)  # noqa: SIM115 - the caller closes it
        try:
            await self.sandbox.download_tar(packed, str(root))
        except OSError as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        packed.seek(0)
        skipped = {path.as_posix() for path in self._persist_workspace_skip_relpaths()}
        return await asyncio.to_thread(_without, packed, skipped) if skipped else packed

    async def hydrate_workspace(self, data: Any) -> None:
        """Unpack a tar into the workspace."""
        root = Path(self.state.manifest.root)
        try:
            await self.sandbox.upload_tar(data, str(root))
        except (OSError, StaddleError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        return ExposedPortEndpoint(host="127.0.0.1", port=await self.sandbox.expose(port), tls=False)


class StaddleSandboxClient(BaseSandboxClient):
    """Makes sessions. `resume` finds a sandbox of this process, or restores the snapshot in a new one."""

    backend_id = "staddle"
    supports_default_options = True

    def __init__(self) -> None:
        self._instrumentation = Instrumentation()

    async def create(
        self, *, snapshot: Any = None, manifest: Manifest | None = None, options: Any = None
    ) -> Any:
        """A new session; its sandbox is opened when it starts."""
        chosen = options or StaddleSandboxOptions()
        number = uuid.uuid4()
        state = StaddleSandboxState(
            session_id=number,
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            snapshot=resolve_snapshot(snapshot, str(number)),
            exposed_ports=chosen.exposed_ports,
            options=chosen,
        )
        return self._wrap_session(StaddleSandboxSession(state), instrumentation=self._instrumentation)

    async def delete(self, session: Any) -> Any:
        """Close the sandbox of a session."""
        sandbox = _OPEN.remove(session._inner.state.sandbox_id)
        if sandbox is not None:
            await sandbox.close()
        return session

    async def resume(self, state: Any) -> Any:
        """The session of this state."""
        inner = StaddleSandboxSession(state)
        inner._set_start_state_preserved(await inner.running())
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: Any) -> Any:
        """The state from its JSON."""
        return self._deserialize_session_state_payload(payload, StaddleSandboxState)


def shell_executor(sandbox: AsyncSandbox) -> Any:
    """An executor for `ShellTool(executor=...)`: runs commands in order in the sandbox's session."""

    async def run(request: Any) -> ShellResult:
        action = request.data.action
        outputs, limit = [], action.max_output_length
        time_limit = seconds(None if action.timeout_ms is None else action.timeout_ms / 1000)
        bound = {} if not limit else {"output_limit": limit}
        for command in action.commands:
            result = await sandbox.run(command, **time_limit, **bound)
            timed_out = ending(result) is CommandEnding.TIMEOUT
            outcome = (
                ShellCallOutcome(type="timeout")
                if timed_out
                else ShellCallOutcome(type="exit", exit_code=result.exit_code)
            )
            outputs.append(
                ShellCommandOutput(
                    stdout=result.stdout, stderr=result.stderr, outcome=outcome, command=command
                )
            )
            if timed_out:
                break
        return ShellResult(output=outputs, max_output_length=limit)

    return run


class StaddlePatchEditor:
    """An editor for `ApplyPatchTool(editor=...)`: changes files of the sandbox, below one directory."""

    def __init__(self, sandbox: AsyncSandbox, root: str = "/workspace") -> None:
        self._sandbox, self._root = sandbox, root

    async def create_file(self, operation: Any) -> ApplyPatchResult:
        """Write a new file."""
        path = await self._inside(operation.path)
        text = apply_diff("", operation.diff or "", mode="create")
        await self._sandbox.files.write(path, text, parents=True)
        return ApplyPatchResult(status="completed", output=f"Created {operation.path}")

    async def update_file(self, operation: Any) -> ApplyPatchResult:
        """Change a file, and rename it if asked for."""
        path = await self._inside(operation.path)
        text = apply_diff(await self._sandbox.files.read(path), operation.diff or "")
        target = await self._inside(operation.move_to) if getattr(operation, "move_to", None) else path
        await self._sandbox.files.write(target, text, parents=True)
        if target != path:
            await self._sandbox.files.remove(path)
        return ApplyPatchResult(status="completed", output=f"Updated {operation.path}")

    async def delete_file(self, operation: Any) -> ApplyPatchResult:
        """Remove a file."""
        await self._sandbox.files.remove(await self._inside(operation.path))
        return ApplyPatchResult(status="completed", output=f"Deleted {operation.path}")

    async def _inside(self, path: str) -> str:
        """The path below the directory. The sandbox is the boundary; this catches the model's mistakes."""
        parts = Path(path).parts
        if not parts or ".." in parts or (path.startswith("/") and not path.startswith(f"{self._root}/")):
            raise ValueError(f"{path!r} is not a path below {self._root}")
        return str(Path(self._root) / path)


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _without(packed: Any, skipped: set[str]) -> Any:
    """The tar without these paths."""
    made: Any = tempfile.SpooledTemporaryFile(max_size=16 << 20)  # noqa: SIM115
    with packed, tarfile.open(fileobj=packed) as old, tarfile.open(fileobj=made, mode="w") as new:
        for member in old:
            name = member.name.removeprefix("./")
            if not any(name == path or name.startswith(f"{path}/") for path in skipped):
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
    made.seek(0)
    return made
