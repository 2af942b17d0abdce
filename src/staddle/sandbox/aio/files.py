"""The files of a sandbox, awaited: each call is made in a thread, and runs to its end."""

from __future__ import annotations

from ..files import MOST_READ
from .event_loop import in_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import IO, Any, Literal

    from ...environment.aio import AsyncLocalEnvironment
    from ...environment.rules import CommandRules
    from ..files import AnyPath, Content, FileInfo, Names, Source
    from ..sandbox import Sandbox


class AsyncFiles:
    """The files inside, as the sandbox's own user sees them; see `Files` for each."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Sandbox]]) -> None:
        self._opened = opened

    async def read(self, path: AnyPath, *, limit: int = MOST_READ) -> str:
        """The text of a file."""
        files = (await self._opened()).files
        return await in_thread(lambda: files.read(path, limit=limit))

    async def read_bytes(self, path: AnyPath, *, limit: int = MOST_READ) -> bytes:
        """The content of a file of at most `limit` bytes."""
        files = (await self._opened()).files
        return await in_thread(lambda: files.read_bytes(path, limit=limit))

    async def open(self, path: AnyPath) -> IO[bytes]:
        """The file, to be read piece by piece; reading is not awaited."""
        return await in_thread((await self._opened()).files.open, path, undo=lambda file: file.close())

    async def write(self, path: AnyPath, content: Content, *, parents: bool = False) -> None:
        """Put `content` at `path`, whole or not at all."""
        files = (await self._opened()).files
        await in_thread(lambda: files.write(path, content, parents=parents))

    async def list(self, path: AnyPath = ".") -> list[FileInfo]:
        """What is in a directory, sorted by name."""
        return await in_thread((await self._opened()).files.list, path)

    async def exists(self, path: AnyPath) -> bool:
        """Whether there is something, at the end of any links."""
        return await in_thread((await self._opened()).files.exists, path)

    async def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileInfo:
        """What is known about a file."""
        files = (await self._opened()).files
        return await in_thread(lambda: files.stat(path, follow_symlinks=follow_symlinks))

    async def glob(self, pattern: str) -> Names:
        """The files, directories and links that `pattern` names, sorted."""
        return await in_thread((await self._opened()).files.glob, pattern)

    async def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Make a directory."""
        files = (await self._opened()).files
        await in_thread(lambda: files.mkdir(path, parents=parents))

    async def rename(self, old: AnyPath, new: AnyPath, *, replace: bool = False) -> None:
        """Give it another name."""
        files = (await self._opened()).files
        await in_thread(lambda: files.rename(old, new, replace=replace))

    async def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Remove a file, or a directory with all that is in it."""
        files = (await self._opened()).files
        await in_thread(lambda: files.remove(path, recursive=recursive))


class AsyncFiled:
    """The part of an awaited sandbox that knows about files; see `Sandbox` for each."""

    if TYPE_CHECKING:

        async def _opened(self) -> Sandbox: ...

    @property
    def files(self) -> AsyncFiles:
        """The files inside, as the sandbox's own user sees them."""
        return AsyncFiles(self._opened)

    async def upload_tar(self, f: Source, path: AnyPath = ".") -> None:
        """Unpack the tar that is read from `f`, in a thread, into the directory `path`."""
        await in_thread((await self._opened()).upload_tar, f, path)

    async def download_tar(self, f: IO[bytes], path: AnyPath = ".", *, limit: int | None = 16 << 30) -> None:
        """Write what is at `path` to `f`, in a thread, as a tar."""
        sandbox = await self._opened()
        await in_thread(lambda: sandbox.download_tar(f, path, limit=limit))

    async def environment(
        self,
        writable_paths: Iterable[str] | None = None,
        *,
        path: AnyPath = ".",
        on_unavailable: Literal["refuse", "record"] = "refuse",
        rules: CommandRules | None = None,
        secrets: Iterable[str] = (),
    ) -> AsyncLocalEnvironment:
        """The tools of an agent in the directory `path`, awaited."""
        from ...environment.aio import AsyncLocalEnvironment

        sandbox = await self._opened()
        made = await in_thread(
            lambda: sandbox.environment(
                writable_paths, path=path, on_unavailable=on_unavailable, rules=rules, secrets=secrets
            )
        )
        return AsyncLocalEnvironment(made)
