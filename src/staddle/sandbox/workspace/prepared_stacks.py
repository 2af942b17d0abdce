"""`PreparedStacks`: the stacks of a sandbox's next snapshot, mounted in the quiet time after the last one.

A snapshot freezes the top layer of each changed tree, and mounts a stack with a new layer in its place. All
but the exchange of the mounts can be done in advance. The layer below the new one is still written then.
Overlayfs looks into it only when a process uses the mount, which no process can before the exchange. If the
layers differ by then, as after a squash, the snapshot makes its own stacks.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from ...background import do_later
from ...errors import StaddleError
from ...files.tree import MARKS
from ...forkserver.connection import in_order
from ...layers.stack import Stack, close_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...layers.stack import LayerSnapshot
    from ...layers.store import Layer
    from .trees import LayeredTree


#: Seconds without another snapshot: with less, the preparation would compete with the commands.
_QUIET = 0.01


class MountedStacks(dict[str, Stack]):
    """Stacks by root. If they are mounted where no process sees it, `mounts` are the descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.mounts: list[int] = []

    def continues(self, frozen: Mapping[str, LayerSnapshot]) -> bool:
        """Whether they are exactly the stacks to mount after these, up to the times of their roots."""
        return self.keys() == frozen.keys() and all(
            stack.frozen == frozen[root].layers
            and stack.bases == frozen[root].bases
            and _attributes(stack.top) == _attributes(stack.frozen[0])
            for root, stack in self.items()
        )

    def copy_times(self) -> None:
        """Give each mounted root the times of the layer below. Overlayfs has read them before."""
        for mount, root in zip(self.mounts, in_order(self), strict=True):
            found = os.stat(self[root].frozen[0].upper)
            os.utime(f"/proc/self/fd/{mount}", ns=(found.st_atime_ns, found.st_mtime_ns))

    def close(self) -> None:
        """Close the mounts, and the stacks that are still here."""
        while self.mounts:
            os.close(self.mounts.pop())
        close_all(self)


class PreparedStacks:
    """At most one `MountedStacks` of a sandbox, and whether another is being made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = MountedStacks()
        #: The trees that are being prepared. A preparation that ends when they are others drops its result.
        self._wanted: Sequence[LayeredTree] = ()

    def begin(self, trees: Sequence[LayeredTree], mount: Callable[[Mapping[str, Stack]], list[int]]) -> None:
        """Prepare the next stacks of these trees in the background, with `mount` for the mounts."""
        self._wanted = trees
        do_later(partial(self._prepare, trees, mount, time.monotonic() + _QUIET))

    def take(self, frozen: Mapping[str, LayerSnapshot]) -> MountedStacks:
        """Return stacks that continue these snapshots, for the caller to close; empty if none do."""
        if self._ready.continues(frozen):
            with self._lock:
                found, self._ready, self._wanted = self._ready, MountedStacks(), ()
            found.copy_times()
            return found
        self.drop()
        return MountedStacks()

    def drop(self) -> None:
        """Close what is prepared. Call this before the layers of the present stacks can be deleted."""
        with self._lock:
            found, self._ready, self._wanted = self._ready, MountedStacks(), ()
        if found:
            do_later(found.close)

    def _prepare(
        self,
        trees: Sequence[LayeredTree],
        mount: Callable[[Mapping[str, Stack]], list[int]],
        not_before: float,
    ) -> None:
        made = MountedStacks()
        if self._wanted is trees:
            time.sleep(max(0, not_before - time.monotonic()))
        try:
            with self._lock:
                if self._wanted is not trees:
                    return
                points = {tree.root: tree.stack.freeze() for tree in trees}
            try:
                for root, point in points.items():
                    made[root] = point.stack()
            finally:
                close_all(points)
            made.mounts = mount(made)
            with self._lock:
                if self._wanted is trees:
                    for tree in trees:
                        tree.others.append(made[tree.root])
                    self._ready, made = made, MountedStacks()
        except (OSError, StaddleError):
            pass  # the next snapshot makes its own, and reports why it cannot
        finally:
            made.close()


def _attributes(layer: Layer) -> tuple[int, int, int, list[tuple[str, bytes]]]:
    """Return what a layer's directory shows as the root of a mount, except times."""
    path, found = layer.upper, os.stat(layer.upper)
    names = [name for name in os.listxattr(path) if not name.startswith(MARKS)]
    return found.st_mode, found.st_uid, found.st_gid, [(name, os.getxattr(path, name)) for name in names]
