"""Build the view ourselves, in a mount namespace that belongs to this launch alone.

bwrap then starts in that namespace and uses the finished tree as its root. There are two reasons. As
root, staddle must show the grants through mounts that map their owner to the sandbox's unused id, and
only root can make such mounts. With very many mounts, bwrap takes seconds, because it reads the whole
mount table again for each.

Nothing can be left behind: a descriptor keeps the namespace alive, and the kernel removes it with the
last one.
"""

from __future__ import annotations

import os

from ..._value import Value
from ...linux import mounts
from ...linux.idmaps import translation
from ...mounts.builder import Builder, place_for
from ...mounts.host import not_built
from ...mounts.operations import File, Seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...mounts.operations import Operation


def split(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Split the operations into (ours, bwrap's).

    bwrap mounts /dev and /proc, because they need the sandbox's own namespaces, and then seals the root. It
    also makes files, faster than we do, unless their directory is sealed.
    """
    sealed = tuple(op.path for op in operations if isinstance(op, Seal) and op.path not in ("/", "/dev"))
    ours: list[Operation] = []
    left: list[Operation] = []
    for op in operations:
        kernels = _within(op.path, ("/dev", "/proc")) or (isinstance(op, Seal) and op.path == "/")
        file = isinstance(op, File) and (op.below or not _within(op.path, sealed))
        (left if kernels or file else ours).append(op)
    return ours, left


class Built(Value):
    """A tree at `place` in `mount_namespace`, which belongs to `user_namespace` (None: the host's)."""

    place: str
    mount_namespace: int
    user_namespace: int | None = None


def build_as_root(operations: Sequence[Operation], unprivileged_uid: int) -> Built:
    """Carry out `operations` for a sandbox that will run as `unprivileged_uid`. Needs CAP_SYS_ADMIN.

    Runs in its own thread: only that thread enters the new namespace, and it ends afterwards.
    """
    import _thread

    from ... import interrupts  # noqa: F401 - by the main thread, see there

    place = place_for(operations)
    builder = Builder(
        place,
        owner=unprivileged_uid,
        handed_on=True,
        translation=lambda owner, group: translation(owner, group, unprivileged_uid),
    )
    outcome: list[int | BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def build() -> None:
        try:
            mounts.private_namespace()
            builder.build(operations)
            outcome.append(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        except BaseException as error:
            outcome.append(error)
        finally:
            done.release()

    try:
        _thread.start_new_thread(build, ())
    except RuntimeError as error:
        raise not_built(str(error)) from None
    done.acquire()
    result = outcome[0]
    if isinstance(result, int):
        return Built(place, result)
    raise _explained(result)


def build_as_user(operations: Sequence[Operation]) -> Built:
    """Carry out `operations` as an ordinary user, in a child with its own user namespace."""
    from ...linux.own_mounts import with_own_mounts

    place = place_for(operations)
    try:
        return Built(place, *with_own_mounts(lambda: Builder(place).build(operations)))
    except OSError as error:
        raise _explained(error) from None


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        where = f" at {error.filename!r}" if error.filename else ""
        return not_built(f"{error.strerror or error}{where}")
    return error


def _within(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
