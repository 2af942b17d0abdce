"""The changes to a sandbox's workspace, awaited: each call is made in a thread, and runs to its end."""

from __future__ import annotations

from ..sandbox import Sandbox
from ..workspace.snapshot import loaded
from .event_loop import in_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from os import PathLike
    from typing import Any, Self

    from ...layers.changes import Change
    from ...layers.commit import Committed
    from ...layers.review import OnConflict
    from ...packages.installed import Package
    from ..workspace.snapshot import Snapshot


class AsyncLayered:
    """The part of an awaited sandbox that knows about layers; see `Sandbox` for each."""

    if TYPE_CHECKING:

        async def _opened(self) -> Sandbox: ...
        def _around(self, sandbox: Sandbox) -> Self: ...
        async def close(self) -> None: ...

    async def diff(self, paths: Collection[str] | None = None, *, everything: bool = False) -> list[Change]:
        """Every change to the workspace that is not the host's; with `everything`, also to the rest."""
        sandbox = await self._opened()
        return await in_thread(lambda: sandbox.diff(paths, everything=everything))

    async def packages(self) -> tuple[Package, ...]:
        """What pip, apt and npm have installed in it."""
        return await in_thread((await self._opened()).packages)

    async def keep_downloads(self) -> int:
        """Keep what its pip, uv and npm have downloaded; see `Sandbox.keep_downloads`."""
        return await in_thread((await self._opened()).keep_downloads)

    async def use_downloads(self) -> None:
        """Have downloads that were kept under its own caches; see `Sandbox.use_downloads`."""
        await in_thread((await self._opened()).use_downloads)

    async def commit(
        self,
        paths: Collection[str] | None = None,
        *,
        on_conflict: OnConflict = "refuse",
        allow_protected: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Committed:
        """Take the changes over to the host: all of them, or none. `progress` is called in a thread."""
        sandbox = await self._opened()
        return await in_thread(
            lambda: sandbox.commit(
                paths, on_conflict=on_conflict, allow_protected=allow_protected, progress=progress
            )
        )

    async def discard(self, paths: Collection[str] | None = None) -> None:
        """Drop the changes: the workspace is there as the host has it now."""
        await in_thread((await self._opened()).discard, paths)

    async def snapshot(self, label: str = "") -> Snapshot:
        """This moment, to come back to: the files, and the state of every session."""
        return await in_thread((await self._opened()).snapshot, label)

    async def snapshots(self) -> list[Snapshot]:
        """The snapshots of it that somebody has, the oldest first."""
        return (await self._opened()).snapshots()

    async def restore(self, snapshot: Snapshot) -> None:
        """Be as at that snapshot."""
        await in_thread((await self._opened()).restore, snapshot)

    @classmethod
    async def from_snapshot(
        cls,
        snapshot: Snapshot | str | PathLike[str],
        workspace: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """A new sandbox as at that snapshot, or the one that was saved to that file, with every session."""
        found = loaded(snapshot)
        point = await in_thread(found.__enter__)
        try:
            made = cls(workspace, **options)  # type: ignore[call-arg]
            try:
                await in_thread((await made._opened())._go_on, point)
            except BaseException:
                await made.close()
                raise
            return made
        finally:
            found.__exit__(None, None, None)

    async def fork(self, n: int = 1) -> list[Self]:
        """`n` sandboxes that continue from here."""

        def undo(made: list[Sandbox]) -> None:
            for sandbox in made:
                sandbox.close()

        made = await in_thread((await self._opened()).fork, n, undo=undo)
        return [self._around(sandbox) for sandbox in made]
