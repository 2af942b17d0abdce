"""The methods of a Sandbox about the changes to its files: diff, commit, discard, snapshot, restore, fork."""

from __future__ import annotations

from functools import partial
from os import fspath

from .. import check
from .._value import Value
from ..errors import InvalidCall, LayerError, SandboxLost, SessionError, StaddleError
from ..interrupts import unmistakable, with_all
from ..layers.drift import MOST_PATHS, Drift
from ..layers.store import no_room
from ..policy.paths import WORKSPACE_PATH
from .processes import EndedProcess
from .workspace.frozen import covered_in_workspace
from .workspace.snapshot import change, come_back, extend, history, loaded, restore, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Collection
    from os import PathLike
    from threading import RLock
    from typing import Any, Literal, Self, TypeVar

    from ..layers.changes import Change
    from ..layers.review import Committed, OnConflict, Review
    from ..packages.installed import Package
    from .open.settings import SandboxSettings
    from .open_sandbox import OpenSandbox
    from .session import Session
    from .workspace.snapshot import Snapshot
    from .workspace.workspace import SandboxWorkspace

    T = TypeVar("T")


class Restored(Value):
    """Result of a restore: the processes that were ended, and what the host has changed since then."""

    ended: tuple[EndedProcess, ...] = ()
    drift: Drift = Drift()


@unmistakable(own=("commit", "diff", "discard", "drift", "fork", "restore", "review", "snapshot"))
class WorkspaceMethods:
    """The methods of a Sandbox about the changes to its files."""

    if TYPE_CHECKING:
        _settings: SandboxSettings

        def _now(self) -> OpenSandbox: ...

        @classmethod
        def _continued(cls, settings: SandboxSettings, snapshot: Snapshot) -> Self: ...
        def session(self, name: str) -> Session: ...
        def close(self) -> None: ...

    def diff(self, paths: Collection[str] | None = None, *, everything: bool = False) -> list[Change]:
        """Every change to the workspace that is not the host's, by the path that is seen inside.

        Of `paths` only, when given: files or directories, relative to where the session is, also in
        the home or in /tmp. With `everything`, the changes there are told, too, after those of the
        workspace. Waits for commands that run; what runs in the background may change more meanwhile.
        """

        def found(workspace: SandboxWorkspace, sessions: list[Session]) -> list[Change]:
            return workspace.diff(_by_tree(workspace, paths, sessions), everything=everything)

        return self._at_rest(found)

    def _diff_now(self) -> list[Change]:
        """As diff(), also while commands run: what they are writing may be there in part. For displays."""
        inside = self._now()
        idle = [session for session in inside.every_session() if not session._shell.busy]
        turns: list[LockType | RLock] = [
            *(session._shell.lock() for session in idle),
            *(client.turn for client in inside.file_clients),
        ]
        workspace = _workspace(inside)
        return with_all(turns, lambda: workspace.diff(None, everything=False))

    def packages(self) -> tuple[Package, ...]:
        """List what pip, apt and npm have installed in it, by the files they have left in its layers."""
        from ..packages.installed import installed

        return installed(self.diff(everything=True))

    def keep_downloads(self) -> int:
        """Keep what its pip, uv and npm have downloaded, for sandboxes that `use_downloads`; how many files.

        They will take it for what their indexes would have sent: keep only what you would install.
        """
        from ..packages.installed import KEPT, keep

        home = self._now().decided.plan.identity.home
        return keep(self.diff([f"{home}/{path.rstrip('/')}" for path in KEPT]), home)

    def use_downloads(self) -> None:
        """Have downloads that were kept under its own caches from now on; it cannot change them."""
        from ..packages.installed import PLACES, trees

        inside = self._now()
        workspace = _workspace(inside)
        home, store = inside.decided.plan.identity.home, workspace.stack.store
        for name in PLACES:
            self.files.mkdir(f"{home}/{name}", parents=True)  # type: ignore[attr-defined]
        found = trees(home, store.path, store.owner[0] if store.owner else None)
        extend(workspace, found)

    def commit(
        self,
        paths: Collection[str] | None = None,
        *,
        to: str | PathLike[str] | None = None,
        on_conflict: OnConflict = "refuse",
        allow: Collection[str] = (),
        allow_protected: bool = False,
        progress: Callable[[int, int], object] | None = None,
        review: Review | None = None,
    ) -> Committed:
        """Take the changes, or those of `paths`, over to the host: all of them, or none.

        Before anything is written, CommitRefused lists every file that changed on the host
        meanwhile (`on_conflict` "overwrite", or a function that decides for each, goes on), and
        protected names and new programs (`allow` names those that are fine this once, as paths
        below the workspace or globs of them; `allow_protected` takes all). `progress` is called with how
        many of how many files are done. `to` is another directory to write to: there, each file that would
        be replaced is a conflict. With `review`, only what that has seen is written; see `Review.commit`.
        """
        if review is not None and (to is not None or review.seen is None):
            raise InvalidCall(
                "this review cannot be committed so",
                why="it is of the workspace" if to is not None else "it is not one of Sandbox.review()",
                fix="commit without to=, or without review=",
            )

        def committed(workspace: SandboxWorkspace, sessions: list[Session]) -> Committed:
            # The shell is asked where it is: it must be able to answer.
            chosen = _below(workspace, paths, sessions)
            with workspace.mounts.stopped():
                done = workspace.commit(
                    chosen,
                    None if to is None else fspath(to),
                    on_conflict=on_conflict,
                    allow=allow,
                    allow_protected=allow_protected,
                    progress=progress,
                    reviewed=review,
                )
            return done.replace(changes=tuple(change.below(workspace.mounted_at) for change in done.changes))

        done = self._at_rest(committed)
        self._now().record("committed", changes=[f"{each.kind} {each.path}" for each in done.changes])
        return done

    def review(self, paths: Collection[str] | None = None) -> Review:
        """Look at what `commit` would do, at one moment, and write nothing.

        Programs in the background are stopped for it. `review.commit()` writes exactly what was seen, or
        says what has changed since.
        """

        def reviewed(workspace: SandboxWorkspace, sessions: list[Session]) -> Review:
            from ..layers.merged_view import OpenLayers
            from ..layers.review import review

            chosen = _below(workspace, paths, sessions)

            def look() -> Review:
                with OpenLayers(workspace.stack.host_view()) as opened:
                    return review(opened, chosen, workspace.baseline, at=workspace.mounted_at)

            return workspace.mounts.while_stopped(look)

        found = self._at_rest(reviewed)
        found._set("_commit", self.commit)
        return found

    def discard(self, paths: Collection[str] | None = None) -> None:
        """Drop the changes, or those of `paths`: the workspace is there as the host has it now.

        The home and /tmp stay as they are, unless a path is named there. This is about files only: shells
        and programs in the background go on, those in a directory that was exchanged in the old one.
        """

        def discarded(workspace: SandboxWorkspace, sessions: list[Session]) -> None:
            chosen = _by_tree(workspace, paths, sessions)
            change(workspace, workspace.without(chosen), partial(come_back, sessions, at_once=True))

        self._at_rest(discarded, exchanges=True)
        self._now().record("discarded", paths=None if paths is None else sorted(paths))

    def snapshot(self, label: str = "") -> Snapshot:
        """Save this moment, to come back to: the workspace, the home, /tmp, and the state of every session.

        Waits for commands that run. The newest with each `label` is kept until the sandbox is closed, one
        without a label as long as you have it.
        """
        inside = self._now()
        if inside.enforced_limits is not None and inside.enforced_limits.is_disk_full:
            raise LayerError(
                "no snapshot can be taken",
                why="the sandbox and its snapshots take more than limits.disk",
                fix="close snapshots, remove files, or open the sandbox with a higher limit",
            )
        taken = self._at_rest(partial(take, label=label))
        if label:
            inside.labelled[label] = taken
        inside.record("snapshot", label=label, method=taken.method)
        return taken

    def snapshots(self) -> list[Snapshot]:
        """List its snapshots that are not closed, the oldest first; each one's `parent` makes them a tree.

        `close()` deletes one.
        """
        return history(_workspace(self._now())).listed()

    def restore(self, snapshot: Snapshot | str, *, processes: Literal["end", "keep"] = "end") -> Restored:
        """Be as at that snapshot, of this sandbox or of one that it was forked from or to.

        A text is the label of one: the newest that has it.

        Waits for commands that run. Programs in the background, jobs and terminals are ended, and listed
        in `ended`: they would go on with the files of a future that is no more. With `processes="keep"` they
        go on, in directories that are no longer those that others see. `drift` is what the host has changed
        since, as far as a look at some entries tells; `snapshot.drift()` looks at all.
        """
        check.one_of("processes", processes, ("end", "keep"))
        if isinstance(snapshot, str):
            snapshot = _labelled(self.snapshots(), snapshot)
        point, inside = snapshot, self._now()

        def restored(workspace: SandboxWorkspace, sessions: list[Session]) -> Restored:
            known = inside.processes.commands(sessions)
            ended, drift = restore(workspace, sessions, point, processes)
            return Restored(tuple(EndedProcess.of(pid, name, known) for pid, name in ended), drift)

        done = self._at_rest(restored, exchanges=True)
        inside.record("restored", label=snapshot.label, ended=[each.command for each in done.ended])
        return done

    def drift(self, *, limit: int = MOST_PATHS) -> Drift:
        """The changes of the host since this sandbox, or that it was forked from, began with the workspace.

        Of a frozen one since its copy was made; they are not seen in it. Not where the sandbox has changed
        the same path, see `Change.conflict`. Walks the workspace; `limit` bounds the paths.
        """
        return self._at_rest(lambda workspace, _: workspace.drift(limit))

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot | str | PathLike[str],
        workspace: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """A new sandbox as at that snapshot, or the one that was saved to that file, with every session.

        A copy of the directory that is in the file is below its layers. If there is none, or with
        `freeze=False`, `workspace` is to have what was in the workspace then; without one there is only what
        the sandbox had written itself. The options are those of a new sandbox.
        """
        with loaded(snapshot) as point:
            made = cls(workspace, **options)  # type: ignore[call-arg]
            try:
                made._go_on(point, options.get("freeze") is not False)
            except BaseException:
                made.close()
                raise
            return made

    def _go_on(self, snapshot: Snapshot, with_base: bool) -> None:
        """Be as at the snapshot, with all sessions that there were, and the copy of the directory in it."""
        for name in snapshot.sessions:
            self.session(name)
        inside = self._now()
        if with_base and inside.workspace is not None and not covered_in_workspace(inside.decided.plan):
            inside.workspace.takes_saved_base = True
        self.restore(snapshot)
        if inside.workspace is not None:
            inside.workspace.takes_saved_base = False

    @property
    def frozen(self) -> bool:
        """Whether edits on the host are not seen in its workspace: a copy, or no directory, lies below."""
        workspace = self._now().workspace
        return workspace is not None and workspace.is_frozen

    def fork(self, n: int = 1, *, freeze: bool | None = None) -> list[Self]:
        """`n` sandboxes that continue from here, each with its own processes and its own changes.

        They have a copy of the workspace's directory as it is now, one for all, so that later edits on the
        host are not seen in them: if the directory is small, with `freeze` also a larger one, and LayerError
        if it cannot be copied. With `freeze=False` it is the directory itself, unless this sandbox is frozen.
        """
        check.count("the number of forks", n, fix="use fork(2)")
        point = self.snapshot("fork")
        made: list[Self] = []
        try:
            settings = self._settings if freeze is False else self._freeze(point, asked=bool(freeze))
            for _ in range(n):
                made.append(self._continued(settings, point))
        except BaseException:
            for sandbox in made:
                sandbox.close()
            raise
        finally:
            point.close()
        self._now().record("forked", count=n)
        return made

    def _freeze(self, point: Snapshot, *, asked: bool) -> SandboxSettings:
        """Freeze the directory below a snapshot, if it can be; the settings of who continues from it."""
        from .workspace.overlay import OverlayWorkspace

        given, workspace = self._settings, self._now().workspace
        base = point.freeze(asked=asked)
        if base is not None and isinstance(workspace, OverlayWorkspace):
            workspace.keep_for_forks(base)
        return given.replace(freeze=None) if point.frozen and given.freeze is False else given

    def _at_rest(self, work: Callable[[SandboxWorkspace, list[Session]], T], *, exchanges: bool = False) -> T:
        """Do it while no command runs in any session and no request to the file server, and none begins.

        SessionError at once in a pause, if that cannot be waited for, or if it `exchanges` files: shells
        have to enter their directories again.
        """
        inside = self._now()
        sessions = inside.every_session()
        if inside.agent.is_paused and (exchanges or any(session._shell.busy for session in sessions)):
            raise SessionError(
                "this cannot be done while the sandbox is paused",
                why="shells have to run for it" if exchanges else "a command in it stands still",
                fix="resume() first",
            )
        turns: list[LockType | RLock] = [
            *(session._shell.lock() for session in sessions),
            *(client.turn for client in inside.file_clients),
        ]
        workspace = _workspace(inside)
        try:
            return with_all(turns, partial(work, workspace, sessions))
        except OSError as error:
            if isinstance(error, StaddleError):
                raise
            found = no_room(error, workspace.stack.store.path)
            if found is error:
                raise
            raise found from error


def _workspace(inside: OpenSandbox) -> SandboxWorkspace:
    """The layers of a sandbox, or LayerError when it has none."""
    if inside.workspace is None:
        raise LayerError(
            "this sandbox keeps no changes apart",
            why="it has no workspace, or writes to it directly",
            fix="give it a workspace, with mode='overlay'",
        )
    return inside.workspace


def _by_tree(
    workspace: SandboxWorkspace, paths: Collection[str] | None, sessions: list[Session]
) -> dict[str, list[str]] | None:
    if paths is None:
        return None
    _refuse_text(paths)
    try:
        return workspace.by_tree(paths, _directory(workspace, sessions))
    except ValueError as error:
        raise InvalidCall(
            str(error), why="it is not a path in this sandbox", fix="name paths as sb.diff() does"
        ) from None


def _directory(workspace: SandboxWorkspace, sessions: list[Session]) -> str:
    """Directory of the first session, or if the sandbox has ended by itself, the workspace."""
    try:
        return sessions[0]._shell.directory()
    except SandboxLost:
        return workspace.mounted_at


def _refuse_text(paths: Collection[str] | None) -> None:
    if isinstance(paths, str):
        raise InvalidCall(f"paths is {paths!r}", why="it is one text", fix=f"use [{paths!r}]")


def _below(
    workspace: SandboxWorkspace, paths: Collection[str] | None, sessions: list[Session]
) -> tuple[str, ...] | None:
    """Paths in the workspace, as paths below it."""
    found = _by_tree(workspace, paths, sessions)
    for path in paths or ():
        if WORKSPACE_PATH not in (_by_tree(workspace, [path], sessions) or ()):
            raise InvalidCall(
                f"cannot commit {path!r}",
                why=f"only what is under {workspace.mounted_at} can be committed",
                fix="use sb.files.read() or download_tar() for what is elsewhere",
            )
    return None if found is None else tuple(found.get(WORKSPACE_PATH, ()))


def _labelled(snapshots: list[Snapshot], label: object) -> Snapshot:
    """The newest snapshot with this label. InvalidCall if there is none."""
    for snapshot in reversed(snapshots):
        if snapshot.label == label:
            return snapshot
    known = ", ".join(sorted({repr(each.label) for each in snapshots if each.label})) or "there is none"
    raise InvalidCall(
        f"there is no snapshot {label!r}",
        why=f"those with a label: {known}",
        fix="name one of these, or give the Snapshot itself",
    )
