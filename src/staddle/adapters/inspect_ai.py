"""inspect_ai: `sandbox="staddle"`, one sandbox for each sample.

  Task(dataset=..., sandbox=("staddle", "staddle.toml"))       # a policy file, or no second part

inspect finds it by its entry point; no import is needed. `docs/adapters.md` has the details.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path

from staddle import AsyncSandbox, Sandbox, Snapshot
from staddle.errors import SandboxClosed, StaddleError

from ._attach import AttachServer, on_loop
from ._common import CommandEnding, ending, framework, policy_of, user_refused
from ._trio import TrioSandbox

with framework("inspect_ai", "inspect"):
    import anyio.to_thread
    import sniffio
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from inspect_ai.util._sandbox.environment import SandboxUnavailableError
    from pydantic import BaseModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

#: Run as root: inspect installs its tools only below directories owned by root, and users get homes even if
#: /home is read-only.
_FOR_ROOT = """chown 0:0 /tmp /var/tmp
if ! [ -w /home ] && [ -e /etc/adduser.conf ]; then
    mkdir -p /var/home
    echo DHOME=/var/home >> /etc/adduser.conf
fi"""


class StaddleSandboxConfig(BaseModel):
    """Options of a sample's sandbox; in a task: `SandboxEnvironmentSpec("staddle", config)`.

    `policy` is a policy file, `workspace` a directory of the host that every sample sees copy-on-write.
    `snapshots` is a directory for the final state of each sample (default: not saved).
    """

    policy: str | None = None
    workspace: str | None = None
    mode: str = "overlay"
    backend: str = "auto"
    snapshots: str | None = None

    model_config = {"frozen": True, "extra": "forbid"}


@sandboxenv(name="staddle")
class StaddleSandboxEnvironment(SandboxEnvironment):
    """A staddle sandbox for inspect_ai, on asyncio and on trio."""

    def __init__(self, sandbox: Any, config: StaddleSandboxConfig) -> None:
        super().__init__()
        self.sandbox: AsyncSandbox | Any = sandbox  # a TrioSandbox has the same names
        self._config = config
        self._root_is_ready = False
        self._attached: dict[str | None, AttachServer] = {}

    # ------------------------------------------------------------ lifecycle

    @classmethod
    def config_files(cls) -> list[str]:
        """The policy file that is looked for beside a task."""
        return ["staddle.toml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Load the configuration from a log."""
        return StaddleSandboxConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """No limit of its own: an idle sandbox costs little."""
        return None

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Refuse a policy that this host cannot enforce, before any sample starts."""
        settings = _settings(config)
        try:
            await anyio.to_thread.run_sync(lambda: Sandbox.check(**_options(settings)))
        except StaddleError as error:
            raise SandboxUnavailableError(str(error)) from error

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open the sandbox of a sample."""
        settings = _settings(config)
        kind: Any = TrioSandbox if sniffio.current_async_library() == "trio" else AsyncSandbox
        try:
            sandbox = kind(**_options(settings))
            await sandbox.__aenter__()
        except StaddleError as error:
            raise SandboxUnavailableError(str(error)) from error
        return {"default": cls(sandbox, settings)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, Any], interrupted: bool
    ) -> None:
        """Save the state of a sample, if configured, and close its sandbox."""
        for environment in environments.values():
            own: Self = environment.as_type(cls)
            try:
                if own._config.snapshots is not None and own.sandbox.alive and not interrupted:
                    await own._save(own._config.snapshots, task_name)
            finally:
                for server in own._attached.values():
                    server.close()
                await own.sandbox.close()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Do nothing: a sandbox ends with its sample, or with this process."""

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Do nothing: after a crash the kernel has ended the sandboxes, and staddle removes their layers."""
        print("staddle: nothing to clean up; a sandbox ends with the process that opened it.")

    # ------------------------------------------------------------ commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program. Does not retry after a timeout: no call is lost on the way."""
        if user is not None and not self._root_is_ready:
            await self._prepare_root(user)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self.sandbox.exec(
                cmd,
                user=user,
                stdin=input,
                cwd=cwd,
                env=env,
                timeout=timeout,
                output_limit=min(limit, self.sandbox.policy.limits.output or limit),
            )
        except StaddleError as error:
            raise self._translated(error, user) from error
        how = ending(result)
        if how is CommandEnding.TIMEOUT:
            raise TimeoutError(f"the command was ended after {timeout} seconds")
        if how is CommandEnding.CLOSED:
            raise SandboxUnavailableError("the sandbox was closed while the command ran")
        if how is CommandEnding.NOT_EXECUTABLE:
            raise PermissionError(errno.EACCES, result.stderr.strip(), cmd[0])
        if how is CommandEnding.TRUNCATED:
            words = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(words, result.stdout if result.stdout_truncated else result.stderr)
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def _prepare_root(self, user: str) -> None:
        self._root_is_ready = True
        try:
            await self.sandbox.run(_FOR_ROOT, user="root", timeout=60)
        except StaddleError as error:
            raise self._translated(error, user) from error

    @staticmethod
    def _translated(error: StaddleError, user: str | None) -> Any:
        if user_refused(error, user):
            return SandboxUserUnsupportedError(str(error))
        return SandboxUnavailableError(str(error)) if isinstance(error, SandboxClosed) else error

    # ------------------------------------------------------------ files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; missing directories are made."""
        await self.sandbox.files.write(file, contents, parents=True)

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Read a whole file, as UTF-8 text or as bytes."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.sandbox.files.read_bytes(file, limit=limit)
        except OSError as error:
            if error.errno == errno.EFBIG:
                words = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(words, None) from error
            raise
        return data.decode("utf-8") if text else data

    # ------------------------------------------------------------ the rest

    def default_polling_interval(self) -> float:
        """Seconds between two polls of a file that inspect waits for."""
        return 0.2

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """A command that opens a terminal in the sandbox, for the same user of the host."""
        if not self.sandbox.alive:
            raise ConnectionError("the sandbox is closed")
        if user not in self._attached:
            try:
                done = await self.sandbox.exec(["true"], user=user)
            except StaddleError as error:
                raise self._translated(error, user) from error
            if not done.ok:
                raise ConnectionError(f"no command can be run: {done.stderr.strip() or done.why}")
            self._attached[user] = AttachServer(self._terminals(user))
        return SandboxConnection(type="staddle", command=self._attached[user].command)

    def _terminals(self, user: str | None) -> Callable[[int, int], Any]:
        """A function that opens a terminal for this user, from any thread."""
        if isinstance(self.sandbox, TrioSandbox):
            now = self.sandbox.now
            return lambda rows, cols: now.terminal(rows=rows, cols=cols, user=user)
        loop = asyncio.get_running_loop()

        def opened(rows: int, cols: int) -> Any:
            made = self.sandbox.terminal(rows=rows, cols=cols, user=user)
            return on_loop(asyncio.run_coroutine_threadsafe(made, loop).result(), loop)

        return opened

    async def snapshot(self, label: str = "") -> Snapshot:
        """Take a snapshot of all files and the shell, for `restore`."""
        return await self.sandbox.snapshot(label)

    async def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot."""
        await self.sandbox.restore(snapshot)

    async def _save(self, directory: str, task_name: str) -> None:
        snapshot = await self.snapshot(task_name)
        await anyio.to_thread.run_sync(_save, snapshot, directory, task_name)


def _save(snapshot: Snapshot, directory: str, task_name: str) -> None:
    """Write a snapshot to the next file of its task."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", task_name) or "sample"
    number = 0
    while True:  # samples may end at the same time, even in several processes
        path = Path(directory) / f"{name}-{number:05}.staddle"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError:
            number += 1
    snapshot.save(path)


def _settings(config: Any) -> StaddleSandboxConfig:
    """The configuration: none, the name of a policy file, or a StaddleSandboxConfig."""
    if config is None or isinstance(config, str):
        return StaddleSandboxConfig(policy=config)
    if isinstance(config, StaddleSandboxConfig):
        return config
    raise TypeError(f"the sandbox configuration is a {type(config).__name__}, not a StaddleSandboxConfig")


def _options(config: StaddleSandboxConfig) -> dict[str, Any]:
    return {**config.model_dump(exclude={"policy", "snapshots"}), "policy": policy_of(config.policy)}
