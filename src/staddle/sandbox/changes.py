"""A sandbox's changes to files: diff, review, commit, discard, restore. Each waits until no command runs."""

from __future__ import annotations

from functools import partial
from os import PathLike, fspath

from .._value import Value
from ..errors import InvalidCall, LaunchFailed, LayerError, SandboxLost, SessionError
from ..interrupts import with_all
from ..layers.drift import Drift
from ..layers.store import no_room
from ..paths import WORKSPACE_PATH
from .processes import EndedProcess
from .workspace.snapshot import change, come_back, restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Collection, Mapping
    from os import PathLike
    from threading import RLock
    from typing import Any, Literal, TypeVar

    from ..layers.changes import Change
    from ..layers.review import Committed, Review
    from .open_sandbox import OpenSandbox
    from .session import Session
    from .workspace.snapshot import Snapshot
    from .workspace.workspace import SandboxWorkspace

    T = TypeVar("T")


class Restored(Value):
    """Result of a restore: the processes that it ended, and the host's changes since the snapshot.

    `continued` are the sessions whose interpreters went on from the snapshot. `lost` has the reason for each
    other interpreter that the snapshot was to keep.
    """

    ended: tuple[EndedProcess, ...] = ()
    drift: Drift = Drift()
    continued: tuple[str, ...] = ()
    lost: Mapping[str, str] = {}


def at_rest(
    inside: OpenSandbox, work: Callable[[SandboxWorkspace, list[Session]], T], *, exchanges: bool = False
) -> T:
    """Run `work` while no command and no file request runs, and none can start.

    Raises SessionError at once if the sandbox is paused and a command runs, or if `work` `exchanges` files:
    shells must then re-enter their directories.
    """
    sessions = inside.every_session()
    if inside.agent.is_paused and (exchanges or any(session._shell.busy for session in sessions)):
        raise SessionError(
            "this cannot be done while the sandbox is paused",
            why="shells have to run for it" if exchanges else "a command in it stands still",
            fix="resume() first",
        )
    workspace = workspace_of(inside)
    try:
        return with_all(_turns(inside, sessions), partial(work, workspace, sessions))
    except (OSError, LaunchFailed) as error:
        found = no_room(error, workspace.stack.store.path)
        if found is error:
            raise
        raise found from error


def _turns(inside: OpenSandbox, sessions: list[Session]) -> list[LockType | RLock]:
    """Return the locks of these sessions' shells, and of all file requests."""
    return [
        *(session._shell.lock() for session in sessions),
        *(client.turn for client in inside.file_clients),
    ]


def diff(inside: OpenSandbox, paths: Collection[str] | None, *, everything: bool) -> list[Change]:
    """Return the changes in the workspace, or of `paths`; with `everything` in the home and /tmp too."""

    def found(workspace: SandboxWorkspace, sessions: list[Session]) -> list[Change]:
        return workspace.diff(_by_tree(workspace, paths, sessions), everything=everything)

    return at_rest(inside, found)


def diff_now(inside: OpenSandbox) -> list[Change]:
    """Return the changes even while commands run: files may be half written. For displays."""
    idle = [session for session in inside.every_session() if not session._shell.busy]
    workspace = workspace_of(inside)
    return with_all(_turns(inside, idle), lambda: workspace.diff(None, everything=False))


def commit(
    inside: OpenSandbox,
    paths: Collection[str] | None,
    to: str | PathLike[str] | None,
    review: Review | None,
    **options: Any,
) -> Committed:
    """Write the changes, or only those of `paths`, to the host; see `Sandbox.commit`."""
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
            place = None if to is None else fspath(to)
            return workspace.commit(chosen, place, reviewed=review, at=workspace.mounted_at, **options)

    done = at_rest(inside, committed)
    inside.record("committed", changes=[f"{each.kind} {each.path}" for each in done.changes])
    return done


def review(inside: OpenSandbox, paths: Collection[str] | None) -> Review:
    """Return what a commit would write, taken while background processes are stopped."""

    def reviewed(workspace: SandboxWorkspace, sessions: list[Session]) -> Review:
        from ..layers.merged_view import OpenLayers
        from ..layers.review import review

        chosen = _below(workspace, paths, sessions)

        def look() -> Review:
            with OpenLayers(workspace.stack.host_view()) as opened:
                return review(opened, chosen, workspace.baseline, at=workspace.mounted_at)

        return workspace.mounts.while_stopped(look)

    return at_rest(inside, reviewed)


def discard(inside: OpenSandbox, paths: Collection[str] | None) -> None:
    """Drop the changes, or those of `paths`; see `Sandbox.discard`."""

    def discarded(workspace: SandboxWorkspace, sessions: list[Session]) -> None:
        chosen = _by_tree(workspace, paths, sessions)
        change(workspace, workspace.without(chosen), partial(come_back, sessions, at_once=True))

    at_rest(inside, discarded, exchanges=True)
    inside.record("discarded", paths=None if paths is None else sorted(paths))


def go_back(inside: OpenSandbox, point: Snapshot, processes: Literal["end", "keep"]) -> Restored:
    """Restore a snapshot; see `Sandbox.restore`."""

    work = partial(restored, inside, point, processes)
    done = at_rest(inside, work, exchanges=True)
    inside.record("restored", label=point.label, ended=[each.command for each in done.ended])
    return done


def restored(
    inside: OpenSandbox,
    point: Snapshot,
    processes: Literal["end", "keep"],
    workspace: SandboxWorkspace,
    sessions: list[Session],
    *,
    looks: bool = True,
) -> Restored:
    """Restore a snapshot, with its interpreters. For `at_rest`. `looks`: for the host's changes."""
    known = inside.processes.commands(sessions)
    before = {inside.interpreters[name].pid: name for name in point.twins if name in inside.interpreters}
    if inside.twins:
        from .interpreter_twins import spare

        spare(inside)
    if processes == "keep" or not (point.twins or point.without_twin):
        named, drift = restore(workspace, sessions, point, processes, looks=looks)
        rest: tuple[tuple[str, ...], Mapping[str, str]] = (), {}
    else:
        from contextlib import ExitStack

        from .interpreter_twins import Continuation

        with ExitStack() as held:
            following = Continuation(inside, point, held)
            named, drift = restore(
                workspace, sessions, point, processes, looks=looks, before_shells=following.wake
            )
            rest = following.end()
    ended = tuple(EndedProcess.of(pid, name, known) for pid, name in named if pid not in before)
    return Restored(ended, drift, *rest)


def workspace_of(inside: OpenSandbox) -> SandboxWorkspace:
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


def _refuse_text(paths: Collection[str]) -> None:
    if isinstance(paths, str):
        raise InvalidCall(f"paths is {paths!r}", why="it is one text", fix=f"use [{paths!r}]")
    if isinstance(paths, bytes) or not (hasattr(paths, "__iter__") and hasattr(paths, "__len__")):
        raise InvalidCall(f"paths is {paths!r}", why="it is no list", fix='give a list such as ["src/a.py"]')
    for path in paths:
        if path == "" or not isinstance(path, str | PathLike):
            why = "it is empty" if path == "" else "it is not a path"
            raise InvalidCall(f"paths has {path!r}", why=why, fix='give paths; "." is the whole workspace')


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


def labelled(snapshots: list[Snapshot], label: object) -> Snapshot:
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
