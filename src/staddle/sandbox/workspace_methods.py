"""Sandbox's methods about changes to files: diff, commit, discard, snapshot, restore, fork."""

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
    """Result of a restore: the processes that it ended, and the host's changes since the snapshot."""

    ended: tuple[EndedProcess, ...] = ()
    drift: Drift = Drift()


@unmistakable(own=("commit", "diff", "discard", "drift", "fork", "restore", "review", "snapshot"))
class WorkspaceMethods:
    """Sandbox's methods about changes to its files."""

    if TYPE_CHECKING:
        _settings: SandboxSettings

        def _now(self) -> OpenSandbox: ...

        @classmethod
        def _continued(cls, settings: SandboxSettings, snapshot: Snapshot) -> Self: ...
        def session(self, name: str) -> Session: ...
        def close(self) -> None: ...

    def diff(self, paths: Collection[str] | None = None, *, everything: bool = False) -> list[Change]:
        """Return the changes that the sandbox made to the workspace, with paths as seen inside.

        `paths` limits them to these files or directories, relative to the session's directory; they may be in
        the home or in /tmp. `everything` adds the changes in the home and /tmp, after the workspace's. The
        call waits for running commands; background processes may change more meanwhile.
        """

        def found(workspace: SandboxWorkspace, sessions: list[Session]) -> list[Change]:
            return workspace.diff(_by_tree(workspace, paths, sessions), everything=everything)

        return self._at_rest(found)

    def _diff_now(self) -> list[Change]:
        """As diff(), even while commands run: files may be half written. For displays."""
        inside = self._now()
        idle = [session for session in inside.every_session() if not session._shell.busy]
        turns: list[LockType | RLock] = [
            *(session._shell.lock() for session in idle),
            *(client.turn for client in inside.file_clients),
        ]
        workspace = _workspace(inside)
        return with_all(turns, lambda: workspace.diff(None, everything=False))

    def packages(self) -> tuple[Package, ...]:
        """List the packages that pip, apt and npm installed inside, judged by the files in its layers."""
        from ..packages.installed import installed

        return installed(self.diff(everything=True))

    def keep_downloads(self) -> int:
        """Keep the downloads of its pip, uv and npm for `use_downloads`. Returns the number of files.

        Other sandboxes trust them as if the index had sent them: keep only what you would install.
        """
        from ..packages.installed import KEPT, keep

        home = self._now().decided.plan.identity.home
        return keep(self.diff([f"{home}/{path.rstrip('/')}" for path in KEPT]), home)

    def use_downloads(self) -> None:
        """Mount the kept downloads, which it cannot change, below the sandbox's own caches."""
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
        """Write the changes, or only those of `paths`, to the host: all of them or none.

        Before it writes, it raises CommitRefused with every file that has changed on the host meanwhile, and
        with protected names and new programs. `on_conflict` "overwrite", or a function that decides per file,
        overrides conflicts. `allow` lists accepted names, as paths below the workspace or globs;
        `allow_protected` accepts all. `progress` is called with the number of files done and the total. `to`
        is another directory to write to, where each file to be replaced is a conflict. With `review`, it
        writes only the reviewed changes; see `Review.commit`.
        """
        if review is not None and (to is not None or review.seen is None):
            raise InvalidCall(
                "this review cannot be committed so",
                why="it is of the workspace" if to is not None else "it is not one of Sandbox.review()",
                fix="commit without to=, or without review=",
            )

        def committed(workspace: SandboxWorkspace, sessions: list[Session]) -> Committed:
            # The shell must be running to report its directory.
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
        """Return what `commit` would do, taken at one moment. Writes nothing.

        Background processes are stopped meanwhile. `review.commit()` writes exactly the reviewed changes, or
        reports which have changed since.
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
        """Drop the changes, or those of `paths`: the workspace is again as on the host now.

        The home and /tmp stay unless `paths` names something in them. Shells and background processes
        continue; a background process in a replaced directory stays in the old one.
        """

        def discarded(workspace: SandboxWorkspace, sessions: list[Session]) -> None:
            chosen = _by_tree(workspace, paths, sessions)
            change(workspace, workspace.without(chosen), partial(come_back, sessions, at_once=True))

        self._at_rest(discarded, exchanges=True)
        self._now().record("discarded", paths=None if paths is None else sorted(paths))

    def snapshot(self, label: str = "") -> Snapshot:
        """Save the workspace, the home, /tmp, and the state of every session.

        It waits for running commands. The sandbox keeps the newest snapshot of each `label` until it is
        closed. A snapshot without a label lives as long as you hold it.
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
        """List the snapshots that are not closed, oldest first; their `parent` makes them a tree.

        `close()` deletes one.
        """
        return history(_workspace(self._now())).listed()

    def restore(self, snapshot: Snapshot | str, *, processes: Literal["end", "keep"] = "end") -> Restored:
        """Return to a snapshot of this sandbox, of its parent, or of a fork of it.

        A string is a label: the newest snapshot that has it.

        The call waits for running commands. It ends background processes, jobs and terminals and lists them
        in `ended`: they would go on with files that no longer exist. With `processes="keep"` they continue in
        directories that nobody else sees. `drift` lists the host's changes since the snapshot, judged by a
        sample of entries; `snapshot.drift()` checks all.
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
        """Return the host's changes to the workspace since this sandbox, or its origin by fork, opened it.

        For a frozen workspace: since the copy, which does not show them. Paths that the sandbox changed as
        well are omitted; see `Change.conflict`. It walks the workspace and returns at most `limit` paths.
        """
        return self._at_rest(lambda workspace, _: workspace.drift(limit))

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot | str | PathLike[str],
        workspace: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Open a new sandbox from a snapshot, or from a saved snapshot file, with all its sessions.

        If the file holds a copy of the workspace's directory, that copy is below the layers. If not, or with
        `freeze=False`, give a `workspace` with the contents of that time. Without either, only files that the
        sandbox wrote are there. `options` are those of a new sandbox.
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
        """Restore the snapshot with all its sessions and its copy of the directory."""
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
        """Whether its workspace hides later edits on the host: below it is a copy, or no directory."""
        workspace = self._now().workspace
        return workspace is not None and workspace.is_frozen

    def fork(self, n: int = 1, *, freeze: bool | None = None) -> list[Self]:
        """Open `n` sandboxes that continue from here, each with its own processes and changes.

        If the workspace's directory is small, all share one copy of it, so that later edits on the host are
        not seen. `freeze=True` also copies a large directory, and raises LayerError if it cannot. With
        `freeze=False` they use the directory itself, unless this sandbox is frozen.
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
        """Freeze the directory below a snapshot if possible. Returns the settings for the forks."""
        from .workspace.overlay import OverlayWorkspace

        given, workspace = self._settings, self._now().workspace
        base = point.freeze(asked=asked)
        if base is not None and isinstance(workspace, OverlayWorkspace):
            workspace.keep_for_forks(base)
        return given.replace(freeze=None) if point.frozen and given.freeze is False else given

    def _at_rest(self, work: Callable[[SandboxWorkspace, list[Session]], T], *, exchanges: bool = False) -> T:
        """Run `work` while no command and no file request runs, and none can start.

        Raises SessionError at once if the sandbox is paused and a command runs, or if `work` `exchanges`
        files: shells must then re-enter their directories.
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
    """Return the layers of a sandbox. Raises LayerError if it has none."""
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
    """Return the first session's directory, or the workspace if the sandbox has died."""
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
    """Convert `paths` to paths relative to the workspace."""
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
    """Return the newest snapshot with this label. Raises InvalidCall if there is none."""
    for snapshot in reversed(snapshots):
        if snapshot.label == label:
            return snapshot
    known = ", ".join(sorted({repr(each.label) for each in snapshots if each.label})) or "there is none"
    raise InvalidCall(
        f"there is no snapshot {label!r}",
        why=f"those with a label: {known}",
        fix="name one of these, or give the Snapshot itself",
    )
