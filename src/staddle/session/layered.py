"""What a sandbox offers for the changes to its workspace: look at them, keep them, drop them, go back."""

from __future__ import annotations

from contextlib import contextmanager

from ..errors import InvalidCall
from . import snapshots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager
    from typing import Protocol, Self

    from ..layers.changes import Change
    from ..layers.commit import Committed
    from ..layers.review import OnConflict
    from .clerk import Clerk
    from .opening import Opened, Settings
    from .session import Session
    from .snapshots import Snapshot

    class _Inside(Protocol):
        opened: Opened
        clerk: Clerk

        def every_session(self) -> list[Session]: ...


class Layered:
    """The part of a sandbox that knows about layers."""

    if TYPE_CHECKING:
        _settings: Settings

        def _now(self) -> _Inside: ...

        @classmethod
        def _continued(cls, settings: Settings, snapshot: Snapshot) -> Self: ...

    def diff(self, paths: Collection[str] | None = None) -> list[Change]:
        """Every change to the workspace that is not the host's, by the path that is seen inside.

        Of `paths` only, when given: files or directories, relative to where the session is. Waits for
        commands that run; what runs in the background may change more meanwhile.
        """
        with self._at_rest() as (opened, sessions):
            layering = snapshots.layering_of(opened)
            return layering.diff(_below(paths, sessions))

    def commit(
        self,
        paths: Collection[str] | None = None,
        *,
        on_conflict: OnConflict = "refuse",
        allow_protected: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Committed:
        """Take the changes, or those of `paths`, over to the host: all of them, or none.

        Before anything is written, CommitRefused lists every file that changed on the host
        meanwhile (`on_conflict` "overwrite", or a function that decides for each, goes on), and
        protected names and new programs (`allow_protected` takes them). `progress` is called with
        how many of how many files are done.
        """
        with self._at_rest() as (opened, sessions):
            layering = snapshots.layering_of(opened)
            chosen = _below(paths, sessions)  # the shell is asked where it is: it must be able to answer
            with _stopped(opened):
                return layering.commit(chosen, on_conflict, allow_protected, progress)

    def discard(self, paths: Collection[str] | None = None) -> None:
        """Drop the changes, or those of `paths`: the workspace is there as the host has it now."""
        with self._at_rest() as (opened, sessions):
            layering = snapshots.layering_of(opened)
            chosen = _below(paths, sessions)
            following = layering.fresh() if chosen is None else layering.without(chosen)
            snapshots.change(opened, layering, following)
            snapshots.come_back(sessions)

    def snapshot(self, label: str = "") -> Snapshot:
        """This moment, to come back to: the workspace, and the state of every session.

        Waits for commands that run. Files outside of the workspace are not part of it.
        """
        with self._at_rest() as (opened, sessions):
            return snapshots.take(opened, sessions, label)

    def restore(self, snapshot: Snapshot) -> None:
        """Be as at that snapshot, of this sandbox or of one that it was forked from or to.

        Waits for commands that run. Programs in the background go on, in directories that are no
        longer the workspace.
        """
        with self._at_rest() as (opened, sessions):
            snapshots.restore(opened, sessions, snapshot)

    def fork(self, n: int = 1) -> list[Self]:
        """`n` sandboxes that continue from here, each with its own processes and its own changes."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidCall(f"fork({n!r})", why="a number of sandboxes is needed", fix="say fork(2)")
        point = self.snapshot("fork")
        made: list[Self] = []
        try:
            for _ in range(n):
                made.append(self._continued(self._settings, point))
        except BaseException:
            for sandbox in made:
                sandbox.close()  # type: ignore[attr-defined]
            raise
        finally:
            point.close()
        return made

    def _at_rest(self) -> AbstractContextManager[tuple[Opened, list[Session]]]:
        return _held(self._now())


@contextmanager
def _held(inside: _Inside) -> Iterator[tuple[Opened, list[Session]]]:
    sessions = inside.every_session()
    with snapshots.at_rest(sessions), inside.clerk.turn:
        yield inside.opened, sessions


@contextmanager
def _stopped(opened: Opened) -> Iterator[None]:
    opened.link.pause()
    try:
        yield
    finally:
        opened.link.resume()


def _below(paths: Collection[str] | None, sessions: list[Session]) -> tuple[str, ...] | None:
    from .layering import relative

    if isinstance(paths, str):
        raise InvalidCall(f"paths is {paths!r}", why="it is one text", fix=f"say [{paths!r}]")
    try:
        return relative(paths, sessions[0].shell.directory())
    except ValueError as error:
        raise InvalidCall(str(error)) from None
