"""Split a view into the part that all sandboxes of a plan share, and each one's own. Pure.

Operations that only show the host, or never change, are carried out once for all sandboxes. The paths that a
sandbox can write, its processes and its terminals are its own, and so is everything below them. The shared
part only has their mount points. The workspace comes last, when its sandbox is known.

If changes are stored in layers, the writable places besides the workspace (the home, /tmp) are not empty.
They come from one tree of layers, the world. Its lowest layer is its skeleton, which has the initial files
and the mount points for later mounts.

A path of the host that is shown below a sandbox's own directory can no longer be opened when that is made. So
the shared part keeps it aside, in a directory that no sandbox sees.
"""

from __future__ import annotations

from .._value import Value
from ..paths import ALSO_AT, ROOT_HOME, WORKSPACE_PATH, covers
from .operations import Bind, Devices, Directory, Empty, File, Mask, ProcMount, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .operations import Operation

#: In the template: trees to show later, and the old root. It is unmounted before any process of a sandbox
#: runs. Then the session's control files are there, a directory for each shell.
ASIDE = CONTROL = "/dev/.staddle"
OLD_ROOT = f"{ASIDE}/host"
BORROWED = f"{ASIDE}/lent"
#: A whole base, for the layers of root's sandboxes: inside the host's tree they could not reach or change it.
BASE = f"{ASIDE}/base"
#: The place of the host's /proc once a sandbox has its own.
OLD_PROCESSES = f"{ASIDE}/processes"
_OURS = "sandbox"


class SharedView(Value):
    """The operations of a view, by the process that carries them out."""

    template: tuple[Operation, ...]
    own: tuple[Operation, ...]
    workspace: tuple[Operation, ...]
    #: The places of the world, and its initial contents: directories, files and links by their path inside,
    #: and the mount points for later mounts.
    places: tuple[str, ...] = ()
    skeleton: tuple[Operation, ...] = ()


def share(operations: Sequence[Operation], layered: Collection[str] = (), base: str = "") -> SharedView:
    """Split a view. The first operation is the root; `layered` are the places that belong to the world.

    The directory `base` is shown at BASE.
    """
    root, *rest = operations
    devices = [operation for operation in rest if isinstance(operation, Devices)]  # ASIDE is in there
    template: list[Operation] = [root, *devices, Empty(ASIDE, 0o700, 1 << 20, _OURS)]
    template += [Directory(path, 0o700, _OURS) for path in (OLD_ROOT, BORROWED, OLD_PROCESSES)]
    if not any(covers(ROOT_HOME, operation.path) for operation in rest):
        template.append(Directory(ROOT_HOME, 0o700, _OURS))  # it is empty until a command runs as root
    if base:
        template.append(Bind(BASE, False, _OURS, source=base))
    own: list[Operation] = []
    workspace: list[Operation] = []
    roots: list[str] = []
    places: list[str] = []
    mounted: list[str] = []  # in these
    also: list[str] = []  # further paths of the workspace
    is_shown = any(isinstance(operation, Bind) and operation.path == WORKSPACE_PATH for operation in rest)
    skeleton: list[Operation] = []
    for operation in rest:
        path = operation.path
        if is_shown and isinstance(operation, Symlink) and operation.origin == ALSO_AT:
            also.append(path)
            operation = Directory(path, 0o755, ALSO_AT)  # noqa: PLW2901 - a mount point instead of a link
        if path == "/proc/1" or isinstance(operation, Devices):
            continue  # the first process hides itself
        if (isinstance(operation, Bind) and path == WORKSPACE_PATH) or (
            workspace and covers(WORKSPACE_PATH, path)
        ):
            if not workspace:
                template.append(Directory(WORKSPACE_PATH, 0o755, _OURS))
            workspace.append(operation)
        elif isinstance(operation, Empty) and operation.mode and path in layered:
            skeleton.append(Directory(path, operation.mode, operation.origin))
            if not any(covers(place, path) for place in places):  # otherwise it is visible in that place
                places.append(path)
                template += [] if operation.below else [Directory(path, 0o755, _OURS)]
        elif any(covers(place, path) for place in places):
            within = any(covers(mount, path) for mount in mounted)
            left = operation if within else _in_the_world(operation, skeleton)
            if left is not None:
                mounted.append(path)
                own.append(_kept_aside(left, template))
        elif any(covers(root, path) for root in roots):
            own.append(_kept_aside(operation, template))
        elif isinstance(operation, ProcMount) or (isinstance(operation, Empty) and operation.mode):
            roots.append(path)
            if isinstance(operation, ProcMount) or not operation.below:
                template.append(Directory(path, 0o755, _OURS))
            if isinstance(operation, Empty):  # /proc comes before everything else
                own.append(operation.replace(below=True))
        else:
            template.append(operation)
    workspace += [Bind(path, True, ALSO_AT, below=True, source=WORKSPACE_PATH) for path in also]
    return SharedView(tuple(template), tuple(own), tuple(workspace), tuple(places), tuple(skeleton))


def _in_the_world(operation: Operation, skeleton: list[Operation]) -> Operation | None:
    """Add initial contents to the skeleton; return what is left to mount, if anything."""
    if isinstance(operation, Directory | Symlink) or (isinstance(operation, File) and not operation.below):
        skeleton.append(operation)
        return None
    if isinstance(operation, Empty) and not operation.below:
        skeleton.append(Directory(operation.path, operation.mode or 0o755, operation.origin))
        return operation.replace(below=True)
    if isinstance(operation, Bind) and not operation.again and not operation.below:
        skeleton.append(operation)
        return operation.replace(below=True)
    return operation


def carried(operations: Iterable[Operation], place: str, *, copied: bool = False) -> dict[str, bool]:
    """Return the paths in `place` that are mount points, except inside other such mounts.

    The value tells whether something is shown there; otherwise the mount only hides. With `copied`, leave out
    read-only paths of the host, of which there is a copy.
    """
    found: dict[str, bool] = {}
    for item in operations:
        if item.path == place or not covers(place, item.path) or any(covers(one, item.path) for one in found):
            continue
        if isinstance(item, Bind):
            if item.writable or not copied:
                found[item.path] = True
        elif isinstance(item, Empty | Mask) or (isinstance(item, File) and item.below and not copied):
            found[item.path] = isinstance(item, Empty) and bool(item.mode)
    return found


def _kept_aside(operation: Operation, template: list[Operation]) -> Operation:
    if isinstance(operation, File) and operation.below:
        # Over a file of /proc: by then, the shared part can no longer be written.
        place = f"{ASIDE}/{len(template)}"
        template.append(operation.replace(path=place, below=False))
        return Bind(operation.path, False, operation.origin, below=True, source=place)
    if not isinstance(operation, Bind) or operation.again:
        return operation
    place = f"{ASIDE}/{len(template)}"
    template.append(operation.replace(path=place, source=operation.outside, below=False))
    return operation.replace(source=place)
