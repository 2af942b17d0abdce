"""pydantic-ai: a workspace with commands and files in a sandbox.

  Agent(model, capabilities=[StaddleSandbox("project", policy="staddle.toml")])
  agent.run("…", workspace=StaddleWorkspace("project"))

A ref finds its sandbox again in this process. With `keep=True` the files of the sandbox outlive the process,
and a ref finds them from another one; processes end. With `server=True` your server has the sandbox, and a
ref finds it from another process with all that runs in it. The ref `server:fix` is the server's sandbox with
the id or name `fix`.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import sys
import uuid
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

from staddle import AsyncSandbox, connect_async
from staddle.errors import InvalidCall, SandboxClosed, StaddleError

from ._common import (
    READ_LIMIT,
    WORKSPACE,
    CommandEnding,
    OpenSandboxes,
    ending,
    framework,
    policy_of,
    seconds,
    shell_argv,
)

with framework("pydantic-ai", "pydantic-ai"):
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        ReadOnlyWorkspace,
        Workspace,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
    from pydantic_ai.workspaces.protocol import validate_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

    from staddle import Result

    from ._common import AnyPolicy

PROVIDER = "staddle"
#: Prefix of the ids of kept sandboxes. Only such names are looked up among the kept ones.
_KEPT = "pydantic-ai-"
#: Prefix of the ids of sandboxes of a server.
_SERVED = "server:"
_OPEN = OpenSandboxes()


class StaddleWorkspace:
    """A WorkspaceBackend with commands, files and realpath. It opens its sandbox on first use.

    With a `ref` it finds the sandbox of that ref, or raises WorkspaceUnavailableError. The end of a run does
    not close it: call `destroy()`, or let the process end.
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str] | None = None,
        *,
        ref: WorkspaceRef | None = None,
        policy: AnyPolicy = None,
        keep: bool = False,
        server: bool = False,
        **options: Any,
    ) -> None:
        if keep and server:
            raise ValueError("keep and server are two ways to outlive the process: give one of them")
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"the ref is of {ref.provider!r}, not of {PROVIDER!r}")
        self._ref, self._keep, self._server = ref, keep, server
        self._options = {"workspace": workspace, "policy": policy_of(policy), **options}
        self._sandbox: AsyncSandbox | None = None
        self._opening = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The reference of the sandbox; None until it is opened."""
        return self._ref

    async def working_dir(self) -> str:
        """The directory in which commands start."""
        await self._opened()
        return WORKSPACE

    async def destroy(self) -> None:
        """Close the sandbox, and remove its kept files. Its ref finds nothing afterwards."""
        if self._ref is None:
            return
        if self._ref.id.startswith(_SERVED):
            with suppress(WorkspaceUnavailableError):  # it has ended
                await (await self._opened()).close()
            return
        sandbox = _OPEN.remove(self._ref.id) or self._sandbox
        if sandbox is not None:
            await sandbox.close()
        if self._ref.id.startswith(_KEPT):
            await _staddle("rm", "--force", self._ref.id)

    # ------------------------------------------------------------ commands

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a program, or shell text, to its end."""
        validate_timeout(timeout)
        if isinstance(command, str) != shell:
            raise TypeError("a text needs shell=True, a list of arguments shell=False")
        argv = shell_argv(command) if isinstance(command, str) else list(command)
        sandbox = await self._opened()
        try:
            result = await sandbox.exec(argv, env=env, cwd=WORKSPACE, **seconds(timeout))
        except SandboxClosed as error:
            raise WorkspaceUnavailableError(str(error)) from error
        return self._result(result)

    @staticmethod
    def _result(result: Result) -> CommandResult:
        how, out, err = ending(result), result.stdout, result.stderr
        if how is CommandEnding.CLOSED:
            raise WorkspaceUnavailableError("the sandbox was closed while the command ran")
        if how is CommandEnding.TIMEOUT:
            took = f"the command was ended after {result.duration:.3g} seconds"
            raise WorkspaceTimeoutError(took, stdout=out, stderr=err)
        if how is CommandEnding.TRUNCATED:
            kept = max(len(result.stdout_bytes), len(result.stderr_bytes))
            raise WorkspaceOutputLimitError(
                "the command printed more than the policy's limit",
                limit=kept,
                stdout=out[:65536],
                stderr=err[:65536],
            )
        return CommandResult(exit_code=result.exit_code, stdout=out, stderr=err)

    # ------------------------------------------------------------ files

    async def read_bytes(self, path: str) -> bytes:
        """The content of a file."""
        return await (await self._files(path)).read_bytes(path, limit=READ_LIMIT)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file; missing directories are made."""
        await (await self._files(path)).write(path, data, parents=True)

    async def stat(self, path: str) -> FileEntry:
        """Information about a file, following links."""
        info = await (await self._files(path)).stat(path)
        return _entry(path, is_dir=info.is_dir, size=info.size)

    async def list_dir(self, path: str) -> list[FileEntry]:
        """List a directory; links are followed."""
        listed = await (await self._files(path)).list(path, follow_symlinks=True)
        return [
            _entry(
                posixpath.join(path, info.name),
                is_dir=info.is_dir,
                size=info.size if info.kind == "file" else None,
            )
            for info in listed
        ]

    async def make_dir(self, path: str) -> None:
        """Make a directory and its missing parents."""
        await (await self._files(path)).mkdir(path, parents=True)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its content."""
        files = await self._files(path)
        info = await files.stat(path, follow_symlinks=False)
        if info.kind != "symlink" and f"{WORKSPACE}/".startswith(
            f"{(await self.realpath(path)).rstrip('/')}/"
        ):
            raise ValueError("the working directory and those above it cannot be removed")
        await files.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        """Whether the path exists, following links."""
        return await (await self._files(path)).exists(path)

    async def realpath(self, path: str) -> str:
        """The path without links, as the sandbox resolves it."""
        try:
            return await (await self._files(path)).realpath(path)
        except (FileNotFoundError, NotADirectoryError):  # keep names that do not exist
            return await self._resolved_by_program(path)

    async def _resolved_by_program(self, path: str) -> str:
        result = await (await self._opened()).exec(["realpath", "-m", "--", path])
        if not result.ok:
            raise OSError(result.stderr.strip())
        return result.stdout.removesuffix("\n")

    async def _files(self, path: str) -> Any:
        if not posixpath.isabs(path):
            raise ValueError(f"{path!r} is not an absolute path")
        try:
            return (await self._opened()).files
        except SandboxClosed as error:
            raise WorkspaceUnavailableError(str(error)) from error

    # ------------------------------------------------------------ opening

    async def _opened(self) -> AsyncSandbox:
        if self._sandbox is None:
            # Shielded: if the caller is cancelled meanwhile, the ref still finds the sandbox.
            await asyncio.shield(asyncio.ensure_future(self._open()))
        sandbox = self._sandbox
        alive: Any = sandbox is not None and sandbox.alive
        if callable(alive):  # a server is asked
            alive = await alive()
        if sandbox is None or not alive:
            raise WorkspaceUnavailableError("the sandbox is closed")
        return sandbox

    async def _open(self) -> None:
        async with self._opening:
            if self._sandbox is not None:
                return
            if self._ref is not None and self._ref.id.startswith(_SERVED):
                self._sandbox = await _served(self._ref.id.removeprefix(_SERVED))
                return
            if self._ref is None and self._server:
                self._sandbox = await (await connect_async()).create(**self._options)
                self._ref = WorkspaceRef(provider=PROVIDER, id=f"{_SERVED}{self._sandbox.id}")
                return
            if self._ref is not None:
                self._sandbox = _OPEN.get(self._ref.id) or await self._reopened(self._ref.id)
                return
            name = f"{_KEPT}{uuid.uuid4().hex}" if self._keep else None
            sandbox = await self._entered(name)
            self._ref = WorkspaceRef(provider=PROVIDER, id=_OPEN.add(sandbox, name))
            self._sandbox = sandbox

    async def _reopened(self, name: str) -> AsyncSandbox:
        """The kept sandbox of another process."""
        if not name.startswith(_KEPT) or name not in await _kept():
            raise WorkspaceUnavailableError(
                f"there is no sandbox {name!r}: it was closed or removed, or belongs to another process and "
                "is not kept (keep=True)"
            )
        sandbox = await self._entered(name)
        _OPEN.add(sandbox, name)
        return sandbox

    async def _entered(self, keep: str | None) -> AsyncSandbox:
        sandbox = AsyncSandbox(**self._options, keep=keep)
        await sandbox.__aenter__()
        return sandbox


@dataclass
class StaddleSandbox(AbstractCapability[Any] if TYPE_CHECKING else AbstractCapability):  # type: ignore[misc]
    """The capability: each run works in a new sandbox, or in the sandbox of the ref that it continues."""

    workspace: str | os.PathLike[str] | None = None
    _: KW_ONLY
    policy: AnyPolicy = None
    keep: bool = False
    server: bool = False
    read_only: bool = False
    options: Mapping[str, Any] | None = None
    id: str | None = "staddle_sandbox"

    def get_workspace(self, ctx: Any, *, ref: WorkspaceRef | None) -> Any:
        """The backend; None for a ref of another provider."""
        if ref is not None and ref.provider != PROVIDER:
            return None
        backend = StaddleWorkspace(
            self.workspace,
            ref=ref,
            policy=self.policy,
            keep=self.keep,
            server=self.server,
            **(self.options or {}),
        )
        return ReadOnlyWorkspace(Workspace(backend)) if self.read_only else backend


def _entry(path: str, *, is_dir: bool, size: int | None) -> FileEntry:
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=is_dir, size=None if is_dir else size)


async def _served(name: str) -> Any:
    """The sandbox of the server with this id or name."""
    try:
        client = await connect_async(start=False)
        try:
            return await client.get(name)
        except BaseException:
            await client.close()
            raise
    except (StaddleError, InvalidCall, FileNotFoundError) as error:
        raise WorkspaceUnavailableError(f"your server has no sandbox {name!r}: {error}") from error


async def _kept() -> set[str]:
    """The names of the kept sandboxes of this user."""
    return {row["name"] for row in json.loads(await _staddle("ls", "--json"))}


async def _staddle(*words: str) -> str:
    program = (sys.executable, "-m", "staddle", *words)
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()
