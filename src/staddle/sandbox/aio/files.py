"""The files of a sandbox, awaited."""

from __future__ import annotations

from ..files import Files
from .event_loop import awaited, in_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import IO, Any

    from ..arguments import User
    from ..sandbox import Sandbox


def _close(made: IO[bytes]) -> None:
    made.close()


class AsyncFiles:
    """The files inside, as the sandbox's own user sees them. Each call is that of `Files`, in a thread."""

    def __init__(self, sandbox: Callable[[], Coroutine[Any, Any, Sandbox]], user: User = None) -> None:
        self._sandbox, self._user = sandbox, user

    def as_user(self, user: User) -> AsyncFiles:
        """The same files as another user sees them; see `Files.as_user`."""
        return AsyncFiles(self._sandbox, user)

    async def _opened(self) -> Files:
        files = (await self._sandbox()).files
        return files if self._user is None else await in_thread(files.as_user, self._user)

    read = awaited(Files.read)
    read_bytes = awaited(Files.read_bytes)
    open = awaited(Files.open, undo=_close)
    write = awaited(Files.write)
    list = awaited(Files.list)
    exists = awaited(Files.exists)
    stat = awaited(Files.stat)
    glob = awaited(Files.glob)
    write_many = awaited(Files.write_many)
    append = awaited(Files.append)
    realpath = awaited(Files.realpath)
    readlink = awaited(Files.readlink)
    chmod = awaited(Files.chmod)
    copy = awaited(Files.copy)
    edit = awaited(Files.edit)
    grep = awaited(Files.grep)
    upload = awaited(Files.upload)
    download = awaited(Files.download)
    mkdir = awaited(Files.mkdir)
    rename = awaited(Files.rename)
    remove = awaited(Files.remove)
