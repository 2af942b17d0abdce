"""A layer for one command, which can write anywhere in it. Allowed changes are committed at its end.

The command works in an overlay of the working directory, or in a copy if nothing can be mounted. When all its
processes have exited, we read its changes with our own rights. The allowed changes are written to the
directory, all or none, and each of the others is reported by name.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref

from ..errors import LayerError
from ..events import Event
from ..files.tree import Tree, walk
from ..layers.baseline import Baseline, CopyBaseline
from ..layers.commit import commit
from ..layers.commit_dir import recover
from ..layers.differences import Selection
from ..layers.merge import copy_of
from ..layers.merged_view import LayerView
from ..layers.persistent_store import give
from ..layers.review import Names
from ..layers.store import Store, home_for, home_for_copies, sweep
from ..linux.idmaps import id_for_sandbox
from ..paths import covers
from ..policy.plan import Layered
from ..policy.workspace import with_copy
from .writable_paths import refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..layers.differences import Difference
    from ..layers.merged_view import OpenLayers
    from ..layers.store import Layer
    from ..policy.plan import Plan

ORIGIN = "writable_paths"
#: Maximum number of refused changes reported by name; the rest is counted, it can be a million files.
MOST_TOLD = 1000


class CommandLayers:
    """Creates the layers, or the `copies`, for the commands of one environment, and owns their store."""

    def __init__(self, directory: str, *, copies: bool = False) -> None:
        self._directory, self._copies = directory, copies
        self._store: tuple[int, Store] | None = None
        self._opening = threading.Lock()
        self._closing: Callable[[], object] = lambda: None

    def layer(self, root: int, owner: int | None) -> CommandLayer:
        """Create a layer for the next command, which has the uid `owner` on the host (default: ours).

        `root` is the open directory. Raises LayerError if no layer is possible.
        """
        _refuse_mounts(self._directory)
        return CommandLayer(self._directory, root, self._opened().layer(like=self._directory), owner)

    def copy(self, root: int, hidden: Sequence[str]) -> CommandCopy:
        """Copy the directory for the next command, without the `hidden` paths below it. We are root."""
        return CommandCopy(self._directory, root, self._opened().layer(like=self._directory), hidden)

    def close(self) -> None:
        """Release the store. Further calls do nothing."""
        self._store = None
        self._closing()

    def _opened(self) -> Store:
        with self._opening:
            if self._store is None or self._store[0] != os.getpid():  # in a fork, the store is our parent's
                directory = self._directory
                home = home_for_copies(directory) if self._copies else home_for([directory])
                sweep(home)  # layers of our killed processes
                recover()  # and their interrupted commits
                store, maker = Store(home), os.getpid()
                if self._copies:
                    os.chmod(store.path, 0o711)  # noqa: S103 - commands must pass through it
                self._store = (maker, store)
                self._closing = weakref.finalize(self, _close, store, maker)
            return self._store[1]


def _close(store: Store, maker: int) -> None:
    if os.getpid() == maker:
        store.close()
    else:
        store.leave()


def _refuse_mounts(directory: str) -> None:
    """Raise LayerError if anything is mounted below the directory: an overlay would hide the mount."""
    below = os.fsencode(directory).rstrip(b"/") + b"/"
    for letter in (b"\\", b" ", b"\t", b"\n"):  # the kernel's escapes, backslash first
        below = below.replace(letter, b"\\%03o" % letter[0])
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            place = line.split(b" ", 5)[4]
            if place.startswith(below):
                raise LayerError(
                    f"there can be no layer over {directory!r}",
                    why=f"something is mounted at {os.fsdecode(place)!r}",
                    fix="choose a directory without mounts in it, or on_unavailable='record'",
                )


class CommandLayer:
    """The layer of one command. The caller closes it after `take_over`, or instead."""

    def __init__(self, directory: str, root: int, layer: Layer, owner: int | None) -> None:
        self._directory, self._layer = directory, layer.hold()
        self._root = os.dup(root)  # a copy, because the environment may be closed
        if owner is not None:
            os.chown(layer.upper, owner, owner)
        self._mode = stat.S_IMODE(os.stat(layer.upper).st_mode)
        self._baseline: Baseline = Baseline()

    def under(self, plan: Plan) -> Plan:
        """Return `plan` with this layer mounted over the directory."""
        return plan.replace(layers=(Layered(self._directory, self._layer.upper, self._layer.work, ORIGIN),))

    def take_over(
        self, why_not: Callable[[str], str], may_be_protected: Callable[[str, str], bool]
    ) -> tuple[Event, ...]:
        """Write the allowed changes to the directory. Returns an event with the reason for each other change.

        `why_not` returns the reason against a path below the directory, or "". `may_be_protected` tells
        whether a path is allowed although it is, or is in, that protected name. Raises CommitFailed if the
        host refused; then nothing was written.
        """
        if not self._has_changes():
            return self._told({})
        left: dict[str, str] = {}

        def only(opened: OpenLayers, found: Sequence[Difference]) -> list[Difference]:
            by_path, names = {item.path: item for item in found}, Names(opened)

            def why(path: str) -> str:
                item = by_path[path]
                return (
                    why_not(path)
                    or _special(item.new)
                    or self._baseline.conflict(path, item.old)
                    or _protected(names.protected(path, item), path, may_be_protected)
                    or _leading_out(names.leads_out(item))
                )

            touched = [(item.path, _kind(item.old), _kind(item.new)) for item in found]
            left.update(refused(touched, why))
            return [item for item in found if item.path not in left]

        # By our descriptor, because the path may lead elsewhere by now.
        view = self._view(f"/proc/self/fd/{self._root}")
        # Not durable: a command that writes without a layer does not wait for the disk either.
        commit(
            view,
            baseline=self._baseline if view.plain else None,  # a layer contains only changes
            on_conflict="overwrite",
            allow_protected=True,
            only=only,
            durable=False,
        )
        return self._told(left)

    def _has_changes(self) -> bool:
        return not _is_empty(self._layer.upper)

    def _view(self, base: str) -> LayerView:
        """Return the changes of the command, on top of the directory at `base`."""
        return LayerView((self._layer.upper,), (base,))

    def close(self) -> None:
        """Delete the layer with its content."""
        os.close(self._root)
        self._layer.drop()

    def _told(self, left: dict[str, str]) -> tuple[Event, ...]:
        events = [
            Event("violation", f"{self._directory}/{path}", f"{left[path]}; it was left out", path)
            for path in sorted(left, key=lambda path: path.split("/"))[:MOST_TOLD]
        ]
        if len(left) > MOST_TOLD:
            more = len(left) - MOST_TOLD
            events.append(Event("violation", self._directory, f"{more:,} more changes were left out"))
        if stat.S_IMODE(os.stat(self._layer.upper).st_mode) != self._mode:
            why = "the permissions of the working directory itself stay as they are"
            events.append(Event("violation", self._directory, why))
        return tuple(events)


class CommandCopy(CommandLayer):
    """A copy of the directory for one command of root, which runs with an id that owns nothing on the host.

    Root in a container may not mount a layer, nor show files with another owner. So the copied files get
    another owner, for this command alone. The copy is at another path than the directory.
    """

    def __init__(self, directory: str, root: int, layer: Layer, hidden: Sequence[str]) -> None:
        """Copy the directory, except denied files. Raises LayerError if no copy is possible."""
        super().__init__(directory, root, layer, None)
        self._hidden = tuple(hidden)
        try:
            self._fill()
        except PermissionError as error:
            self.close()
            raise LayerError(
                "the working directory cannot be copied",
                why=f"{error.filename!r} cannot be read",
                fix="deny it, or let it be read",
            ) from None
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        uid, upper = id_for_sandbox(), self._layer.upper
        if uid is None:
            raise LayerError(
                "there can be no copy of the working directory",
                why="no other id exists in this user namespace to own it",
                fix="run staddle as an ordinary user",
            )
        self._baseline = baseline = CopyBaseline()
        without = Selection(self._hidden) if self._hidden else None
        copy_of(f"/proc/self/fd/{self._root}", upper, without=without)
        with Tree(upper, ours=True) as tree:
            baseline.note(self._root, [path for path, _ in walk(tree)])
        os.chmod(self._layer.path, 0o711)  # noqa: S103 - commands must pass to `upper`
        give(upper, (uid, uid))
        with Tree(upper, ours=True) as tree:
            for path, status in walk(tree):
                baseline.resettle(path, status)

    def under(self, plan: Plan) -> Plan:
        """Return `plan` with this copy in place of the directory, and `cwd` at the same place in the copy."""
        made = with_copy(plan, self._layer.upper, moved=False)
        if not covers(self._directory, plan.cwd):
            return made.replace(cwd=plan.cwd)
        return made.replace(cwd=self._layer.upper + plan.cwd[len(self._directory.rstrip("/")) :])

    def _has_changes(self) -> bool:
        return True  # only the comparison can tell

    def _view(self, base: str) -> LayerView:
        return LayerView((self._layer.upper,), (base,), plain=True, hidden=self._hidden)


def _is_empty(directory: str) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def _special(status: os.stat_result | None) -> str:
    if status is None or stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        return ""
    return "it is a pipe, a socket or a device"


def _leading_out(target: str) -> str:
    return f"it is a link that points out of the directory, to {target!r}" if target else ""


def _protected(name: str | None, path: str, may_be: Callable[[str, str], bool]) -> str:
    if name is None or may_be(path, name):
        return ""
    return f"{name} is a protected name: other programs run what it contains"


def _kind(status: os.stat_result | None) -> str:
    if status is None:
        return ""
    return "directory" if stat.S_ISDIR(status.st_mode) else "file"
