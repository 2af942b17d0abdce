"""Exchange the layers of an open sandbox for others, also beside programs that run."""

from __future__ import annotations

from ...errors import LayerError
from ...layers.stack import Stack, close_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, Protocol

    from ...ipc.agent_messages import NamedProcess
    from ...shell.shell import Shell
    from .workspace import SandboxWorkspace

    class NamedShell(Protocol):
        """A session, as far as a snapshot needs it."""

        @property
        def name(self) -> str: ...
        @property
        def _shell(self) -> Shell: ...
        @property
        def _user(self) -> str: ...


def change(
    workspace: SandboxWorkspace,
    following: dict[str, Stack],
    then: Callable[[], object] = tuple,
    others: Literal["keep", "end"] = "keep",
) -> list[NamedProcess]:
    """Go on with other layers, whatever runs, and call `then`; the processes that were ended for it.

    `following` is closed if that fails.
    """
    try:
        return workspace.swap(following, then, others) or []
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
        raise LayerError(
            "this sandbox has no layers",
            why="its workspace is a copy",
            fix="open it with mode='overlay' on the namespaces backend",
        )
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
    """Make shells enter their directory in the newly mounted tree; see `Shell.reenter_directory`."""
    for session in sessions:
        session._shell.reenter_directory(at_once=at_once)
