"""Take a snapshot of an open sandbox, go back to one, and mount other layers in it.

A snapshot freezes the layers and mounts new ones on top; nothing is copied, so it takes as long after one
file as after ten thousand. Only while nothing but idle shells is in the sandbox: a program that works on
files would go on with the old ones. Then everything is stopped for as long as it takes to copy the layers.
The workspace, the home and /tmp are taken together; a tree that was not written to is not mounted anew.
"""

from __future__ import annotations

from functools import partial
from weakref import ref

from ...errors import InvalidCall, LayerError
from ...layers.stack import Stack, close_all
from .snapshot import Snapshot, history

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .snapshot import NamedShell
    from .workspace import SandboxWorkspace


def take(workspace: SandboxWorkspace, sessions: Sequence[NamedShell], label: str) -> Snapshot:
    """A snapshot of a sandbox whose `sessions` are at rest."""
    if not isinstance(label, str):
        raise InvalidCall(f"the label is {label!r}", why="it is not text")
    shells = {session.name: session._shell.saved() for session in sessions}
    method, trees = workspace.freeze(partial(come_back, sessions))
    made = Snapshot(label, method, trees, workspace.baseline.copy(), shells)
    history(workspace).add(made)
    return made


def restore(workspace: SandboxWorkspace, sessions: Sequence[NamedShell], snapshot: Snapshot) -> None:
    """Be as at the snapshot: its files, its shells; a session that was not there begins anew."""
    fitting = snapshot.fitted_to(workspace)

    def then() -> None:
        workspace.baseline = fitting._baseline.with_commits_of(workspace.baseline)
        history(workspace).at = ref(snapshot)
        for session in sessions:
            session._shell.become(fitting.shell_state(session.name, workspace))

    change(workspace, workspace.restored(fitting._trees), then)


def change(
    workspace: SandboxWorkspace, following: dict[str, Stack], then: Callable[[], object] = tuple
) -> None:
    """Go on with other layers, whatever runs, and call `then`. `following` is closed if that fails."""
    try:
        workspace.swap(following, then)
    except BaseException:
        close_all(following)
        raise


def extend(workspace: SandboxWorkspace, bases: Mapping[str, Sequence[str]]) -> None:
    """Have directories of the system in layers of their own, so that they can be written, from now on.

    `bases` has for each, by its path inside, the directories of the host that lie below, topmost first. The
    owners in the topmost one decide which user may write where. Trees that have layers already stay as
    they are. The new ones are part of everything then: snapshots, forks, `diff(everything=True)`,
    kept sandboxes. Programs that run go on with what they have open.
    """
    from .overlay import OverlayWorkspace

    if not isinstance(workspace, OverlayWorkspace):
        raise LayerError("this sandbox has no layers", why="its workspace is a copy")
    following: dict[str, Stack] = {}
    try:
        for root, below in bases.items():
            if root not in workspace.trees:
                following[root] = Stack.new(workspace.stack.store, below)
    except BaseException:
        close_all(following)
        raise
    if following:
        change(workspace, following)


def come_back(sessions: Sequence[NamedShell], *, at_once: bool = False) -> None:
    """Have shells enter the directory that is mounted now where they are; see `Shell.come_back`."""
    for session in sessions:
        session._shell.reenter_directory(at_once=at_once)
