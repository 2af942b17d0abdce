"""Points to come back to: the files of a workspace and the state of every shell, at one moment.

What was written until then is frozen and a new layer takes what comes; nothing is copied, so it
takes as long after one file as after ten thousand. Only while nothing but waiting shells is in
the sandbox, though: a program that works in the workspace would go on in the old one. Then
everything is stopped for as long as it takes to copy the layer.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager

from ..errors import InvalidCall, LayerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal

    from ..layers.baseline import Baseline
    from ..layers.stack import Frozen, Stack
    from .layering import Layering
    from .memory import Remembered
    from .opening import Opened
    from .session import Session


class Snapshot:
    """A moment of a sandbox. Holds what it needs until `close()`, or until nobody has it any more.

    `method` says how the files were taken: "swap", or "copy" because something ran.
    """

    def __init__(
        self,
        label: str,
        method: Literal["swap", "copy"],
        point: Frozen,
        baseline: Baseline,
        shells: Mapping[str, Remembered],
    ) -> None:
        self.label, self.method = label, method
        self.created = time.time()
        self.sessions = tuple(shells)
        self._point, self._baseline, self._shells = point, baseline, dict(shells)

    @property
    def workspace(self) -> str:
        """The directory of the host whose snapshot this is."""
        return self._point.bases[-1]

    def layering(self) -> Layering:
        """Layers for a sandbox that continues from here."""
        from .layering import Layering

        return Layering(self.workspace, self._point, self._baseline.copy())

    def continue_in(self, session: Session) -> None:
        """Have a session be as that of its name was."""
        with session.shell.held():
            session.shell.become(self._shells.get(session.name))

    def close(self) -> None:
        """Let its files go; those that a sandbox still works on stay as long as that does."""
        self._point.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Snapshot {self.label!r} ({self.method})>"


@contextmanager
def at_rest(sessions: list[Session]) -> Iterator[None]:
    """No command runs in any of these sessions, and none begins."""
    with ExitStack() as held:
        for session in sessions:
            held.enter_context(session.shell.held())
        yield


def layering_of(opened: Opened) -> Layering:
    """The layers of a sandbox, or LayerError when it has none."""
    if opened.layering is None:
        raise LayerError(
            "this sandbox keeps no changes apart",
            why="it has no workspace, or writes to it directly",
            fix="give it a workspace, with mode='overlay'",
        )
    return opened.layering


def take(opened: Opened, sessions: list[Session], label: str) -> Snapshot:
    """A snapshot of a sandbox whose `sessions` are at rest."""
    if not isinstance(label, str):
        raise InvalidCall(f"the label is {label!r}", why="it is not text")
    layering = layering_of(opened)
    shells = {session.name: session.shell.remembered() for session in sessions}
    method: Literal["swap", "copy"] = "swap"
    point = layering.stack.freeze()
    if layering.stack.is_untouched():
        point.close()
        point = layering.stack.below()
    else:
        following = point.stack()
        if _swapped(opened, following, alone=True):
            layering.replace(following)
            layering.tidy()
            come_back(sessions)
        else:
            following.close()
            point.close()
            method, point = "copy", _copied(opened, layering)
    return Snapshot(label, method, point, layering.baseline.copy(), shells)


def restore(opened: Opened, sessions: list[Session], snapshot: Snapshot) -> None:
    """Be as at the snapshot: its files, its shells; a session that was not there begins anew."""
    layering = layering_of(opened)
    if snapshot.workspace != layering.workspace:
        raise InvalidCall(
            f"{snapshot!r} is of another workspace", why=f"it is of {snapshot.workspace!r}", fix="open that"
        )
    following = snapshot._point.stack()
    change(opened, layering, following)
    layering.baseline = snapshot._baseline.with_commits_of(layering.baseline)
    for session in sessions:
        session.shell.become(snapshot._shells.get(session.name))


def change(opened: Opened, layering: Layering, following: Stack) -> None:
    """Go on with other layers, whoever is in the way."""
    try:
        _swapped(opened, following, alone=False)
    except BaseException:
        following.close()
        raise
    layering.replace(following)


def come_back(sessions: list[Session]) -> None:
    """Have shells be where they are, in the workspace that is mounted now."""
    for session in sessions:
        session.shell.come_back()


def _swapped(opened: Opened, stack: Stack, *, alone: bool) -> bool:
    layering = layering_of(opened)
    if opened.workspace is None:
        raise LayerError("this sandbox has no workspace")
    tree = opened.workspace(layering.mounted(stack))
    try:
        return not opened.link.swap(tree, alone=alone)
    finally:
        os.close(tree)


def _copied(opened: Opened, layering: Layering) -> Frozen:
    opened.link.pause()
    try:
        return layering.stack.copy()
    finally:
        opened.link.resume()
