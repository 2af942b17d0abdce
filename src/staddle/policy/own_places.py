"""Protect staddle's own places (`staddle.places`) from writes, regardless of the policy.

A grant at or below such a place is refused. Below a grant that contains one, the place is guarded like a
protected name. A missing place is created as an empty directory before the command starts, and removed
afterwards. Otherwise the command could create it, and staddle would trust it later.
"""

from __future__ import annotations

import os
import stat

from .. import places
from ..errors import LaunchFailed, PathEscape, PolicyError
from ..paths import covers
from .plan import Guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..hostinfo.resolution import HostPaths
    from .grants import Visibility
    from .plan import Grant, Plan

ORIGIN = "staddle's own"


def own_paths(grants: Mapping[str, Grant], host: HostPaths) -> dict[str, str]:
    """Return path and kind of each place below a write grant. PolicyError for a grant in a place."""
    written = [path for path, grant in grants.items() if grant.access == "write"]
    if not written:
        return {}
    found: dict[str, str] = {}
    known = {place: host.find(place) for place in places.trusted()}
    for path in written:
        inside = next((place.path for place in known.values() if covers(place.path, path)), None)
        if (inside is not None or places.is_shared(path)) and not places.is_worktree(path):
            raise PolicyError(
                f"{grants[path].origin} cannot be granted",
                why=f"{inside or path!r} is staddle's own: what is stored there is trusted later",
                fix="work in another directory",
            )
    for name, place in known.items():
        links = [link for link, _ in place.links if any(covers(path, link) for path in written)]
        if links:
            raise PathEscape(
                f"{links[0]!r} is a link, and leads to {place.path!r}, which is staddle's own",
                why="the sandbox could replace the link",
                fix="put the real directory there, or grant less",
            )
        if any(covers(path, place.path) for path in written):
            if place.kind == "missing" and name == os.environ.get(places.JAIL_CONFIG):
                raise PolicyError(
                    f"{places.JAIL_CONFIG} names {name!r}, which does not exist",
                    why="the sandbox could make that file, and it would be obeyed",
                    fix=f"make it, or unset {places.JAIL_CONFIG}",
                )
            if place.kind != "missing" or _can_appear(place.path):
                found[place.path] = place.kind
    return found


def refuse_server(path: str, origin: str) -> None:
    """Raise PolicyError for the socket of the user's server: it gives the user's rights to who connects."""
    place = places.server()
    if covers(place, path) or covers(path, place):
        raise PolicyError(
            f"{origin} cannot be granted",
            why=f"the server of sandboxes listens in {place!r}, and a sandbox could open others there",
            fix="let the program outside use the server",
        )


def _can_appear(path: str) -> bool:
    """Whether this user, and so a sandbox, could create `path`."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()


def guard_own(own: Mapping[str, str], sight: Visibility) -> dict[str, Guard]:
    """Return guards for the outermost places that are visible and writable."""
    seen = {path: kind for path, kind in own.items() if _is_written(sight.through(path))}
    return {
        path: Guard(path, kind != "file", ORIGIN)
        for path, kind in seen.items()
        if not any(path != other and covers(other, path) for other in seen)
    }


def _is_written(grant: Grant | None) -> bool:
    return grant is not None and grant.access == "write"


def make_own(plan: Plan) -> None:
    """Create missing guarded places before a command starts. The last process that needs them removes them.

    Runs outside, with the rights of the starting user.
    """
    for guard in plan.guards:
        if guard.origin == ORIGIN and guard.directory:
            _hold(plan.outside(guard.path))


#: Places that this process keeps for its sandboxes, each open with a shared lock; and the directories to
#: remove, which it or another process of ours created. Their mode marks them.
_held: dict[str, int] = {}
_made: set[str] = set()
_MADE = stat.S_IFDIR | stat.S_ISVTX | 0o700


def _hold(path: str) -> None:
    """Create a place if it is missing, and lock it so that no other process of ours removes it."""
    if path in _held and os.path.lexists(path):
        return
    import fcntl

    while True:
        missing = []
        place = path
        while not os.path.lexists(place):
            missing.append(place)
            place = os.path.dirname(place)
        for place in reversed(missing):
            try:
                places.make_directory(place, stat.S_IMODE(_MADE))
            except (FileExistsError, FileNotFoundError):
                continue  # another process created it, or removed its parent
            except OSError as error:
                raise LaunchFailed(
                    f"{place!r} cannot be made",
                    why=f"it is staddle's own, below what may be written, and must exist: {error.strerror}",
                    fix="make it, or grant less",
                ) from None
            _remove_at_exit(place)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its creator has just removed it
        except OSError:
            return  # a file or not ours: we would not remove it
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.path.lexists(path):
            _held[path] = fd
            _remove_at_exit(*_marked(path))
            return
        os.close(fd)


def _remove_at_exit(*directories: str) -> None:
    import atexit

    if directories and not _made:
        atexit.register(remove_made, os.getpid())
    _made.update(directories)


def _marked(path: str) -> Iterator[str]:
    """Yield `path` and its parents, as long as a process of ours has created them."""
    while os.lstat(path).st_mode == _MADE:
        yield path
        path = os.path.dirname(path)


def remove_made(process: int = 0) -> None:
    """Remove empty directories that `make_own` created, unless a sandbox of another process needs them.

    Does nothing in a fork of `process`.
    """
    import fcntl

    for path in sorted(_made if process in (0, os.getpid()) else (), reverse=True):  # children first
        try:
            if path in _held:
                fcntl.flock(_held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
        except OSError:
            pass  # in use by another process, or no longer empty
